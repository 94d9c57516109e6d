"""A client's connection to a sidecar or a broker, for programs that are not asyncio's."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Self

from proxy import __version__
from proxy.config.values import Endpoint
from proxy.errors import LocalError
from proxy.fleet.connection import CALL_TIMEOUT, BrokerConnection, BrokerUnreachable, ConnectionClosed
from proxy.fleet.security import Security
from proxy.rpc.messages import RpcRequest


class BlockingClient:
    """One connection that is kept. For one thread; not within a running event loop. Every error is a
    BrokersideError."""

    closed_hint = "there may be no sidecar at that address, or one that wants a login"
    """What it may mean that the other end closes the connection."""

    def __init__(self, address: str | Endpoint, settings: Mapping[str, str] = MappingProxyType({})) -> None:
        """``settings``: librdkafka's of TLS and SASL.

        Connects with the first question. Raises LocalError for what is no address, and settings that are not heeded.
        """
        try:
            self.address = address if isinstance(address, Endpoint) else Endpoint.parse(address)
        except ValueError as error:
            raise LocalError(f"{address!r} {error}") from None
        self._security = Security.from_settings(settings)
        self._loop = asyncio.Runner()
        self._connection: BrokerConnection | None = None

    def close(self) -> None:
        """End the connection."""
        self._disconnect()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, request: RpcRequest, seconds: float = CALL_TIMEOUT) -> bytes:
        """Return what follows the correlation id of the response, which may take ``seconds``."""
        return self._loop.run(self._called(request, seconds))

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _called(self, request: RpcRequest, seconds: float) -> bytes:
        if self._connection is None:
            context = await asyncio.to_thread(self._security.build_ssl_context)
            client_id = f"brokerside-client-{__version__}"
            self._connection = await BrokerConnection.open(self.address, self._security, context, client_id)
        try:
            return await self._connection.call(request, seconds)
        except ConnectionClosed as error:
            self._disconnect()
            raise BrokerUnreachable(f"{error}; {self.closed_hint}") from None
        except BaseException:
            self._disconnect()
            raise
