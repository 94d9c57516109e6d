"""Asks a sidecar for BrokerMetadata, over one connection that is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from proxy import __version__
from proxy.client.errors import BrokerIdMismatch, UnsupportedRequestError
from proxy.config.key_definition import INT32_MAX
from proxy.config.values import Endpoint
from proxy.errors import LocalError
from proxy.fleet.connection import BrokerConnection, BrokerUnreachable, ConnectionClosed
from proxy.fleet.security import Security
from proxy.interceptors.broker_metadata import (
    BROKER_METADATA_VERSION,
    THIS_BROKER,
    BrokerEntry,
    decode_response,
    encode_request,
)
from proxy.protocol.private import BASE, PRIVATE
from proxy.rpc.messages import RpcRequest


class BrokerMetadataClient:
    """For one thread; not within a running event loop. Every error is a BrokersideError."""

    def __init__(
        self,
        address: str | Endpoint,
        settings: Mapping[str, str] = MappingProxyType({}),
        *,
        api_key: int = BASE,
    ) -> None:
        """``settings``: librdkafka's of TLS and SASL. ``api_key``: the sidecars' ``private.api.key.base``.

        Connects with the first question. Raises LocalError for what is no address, and settings that are not heeded.
        """
        try:
            self.address = address if isinstance(address, Endpoint) else Endpoint.parse(address)
        except ValueError as error:
            raise LocalError(f"{address!r} {error}") from None
        self._security = Security.from_settings(settings)
        self._api_key = api_key
        self._loop = asyncio.Runner()
        self._connection: BrokerConnection | None = None

    def brokers(self, node_ids: Iterable[int] = ()) -> list[BrokerEntry]:
        """Return these brokers, all without any; those that are not known are left out.

        Raises UnsupportedRequestError where the other end answers requests that it does not have, and LocalError for
        what is no node id.
        """
        node_ids = list(node_ids)
        for node_id in node_ids:
            if not THIS_BROKER <= node_id <= INT32_MAX:
                raise LocalError(f"broker {node_id}: allowed are node ids up to {INT32_MAX}, and {THIS_BROKER}")
        request = RpcRequest(self._api_key, BROKER_METADATA_VERSION, encode_request(node_ids))
        answer = self._loop.run(self._call(request))
        if not answer:
            raise UnsupportedRequestError(PRIVATE[BASE].name, BROKER_METADATA_VERSION)
        return decode_response(answer)

    def this_broker(self) -> BrokerEntry:
        """Return the broker at the other end of the connection."""
        [broker] = self.brokers([THIS_BROKER])
        return broker

    def check(self, node_id: int) -> BrokerEntry:
        """Return the broker at the other end. Raises BrokerIdMismatch where it is another one."""
        broker = self.this_broker()
        if broker.node_id != node_id:
            raise BrokerIdMismatch(node_id, broker.node_id)
        return broker

    def move_to(self, node_id: int) -> BrokerEntry:
        """Talk to this broker from now on: over the connection that is there where it is the one, else over another.

        Raises LocalError for a broker that is not known, or not where its clients reach it.
        """
        here, *others = sorted(self.brokers([THIS_BROKER, node_id]), key=lambda one: one.node_id == node_id)
        if here.node_id == node_id:
            return here
        if not others:
            raise LocalError(f"broker {node_id} is not in the fleet of {self.address}")
        [wanted] = others
        if wanted.port < 0:
            raise LocalError(f"broker {node_id}: {self.address} does not know where clients reach it")
        self._disconnect()
        self.address = Endpoint(wanted.host, wanted.port)
        return self.check(node_id)

    def close(self) -> None:
        """End the connection."""
        self._disconnect()
        self._loop.close()

    def __enter__(self) -> BrokerMetadataClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _call(self, request: RpcRequest) -> bytes:
        if self._connection is None:
            context = await asyncio.to_thread(self._security.build_ssl_context)
            client_id = f"brokerside-client-{__version__}"
            self._connection = await BrokerConnection.open(self.address, self._security, context, client_id)
        try:
            return await self._connection.call(request)
        except ConnectionClosed as error:
            self._disconnect()
            hint = "there may be no sidecar at that address, or one that wants a login"
            raise BrokerUnreachable(f"{error}; {hint}") from None
        except BaseException:
            self._disconnect()
            raise
