"""One connection of the sidecar to a Kafka listener, with TLS and SASL. It carries one request at a time."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proxy.config import Endpoint
from proxy.errors import BrokersideError, PeerError, describe_os_error
from proxy.fleet.scram import HASHES, Scram
from proxy.fleet.security import Security
from proxy.rpc import messages
from proxy.rpc.call import call
from proxy.rpc.messages import RpcRequest

CALL_TIMEOUT = 5.0
"""Seconds to connect, with TLS and SASL; and for each response, unless the caller says otherwise."""

MAX_RESPONSE_BYTES = 64 * 1024 * 1024
"""Bytes; 100,000 quotas of addresses are 6 MB."""


NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
"""OpenSSL's reasons for bytes that are no TLS record, by version."""


class BrokerUnreachable(BrokersideError):
    """The broker cannot be connected to, or does not respond in time."""


class ConnectionClosed(BrokerUnreachable):
    """The broker closed the connection."""


class BrokerConnection:
    """Close it after any error or cancellation: the response that it would deliver next is not known."""

    def __init__(
        self, endpoint: Endpoint, client_id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.endpoint = endpoint
        self._client_id = client_id
        self._reader = reader
        self._writer = writer
        self._correlation_id = 0

    @classmethod
    async def open(
        cls,
        endpoint: Endpoint,
        security: Security,
        context: ssl.SSLContext | None,
        client_id: str,
        source: str | None = None,
    ) -> BrokerConnection:
        """Connect, from the address ``source`` where one is given, and authenticate.

        Raises BrokerUnreachable, RequestRefused, PeerError.
        """
        local = None if source is None else (source, 0)
        async with _bounded(endpoint, CALL_TIMEOUT):
            try:
                streams = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=context, local_addr=local)
            except ConnectionError as error:
                if context is None or isinstance(error, ConnectionRefusedError):
                    raise
                raise ConnectionClosed(f"{endpoint}: closed within the TLS handshake; does it use TLS?") from None
            reader, writer = streams
            connection = cls(endpoint, client_id, reader, writer)
            try:
                await connection._authenticate(security)
            except BaseException:
                connection.close()
                raise
            return connection

    async def call(self, request: RpcRequest, seconds: float = CALL_TIMEOUT) -> bytes:
        """Send ``request``; return what follows the response's correlation id, which may take ``seconds``.

        Raises BrokerUnreachable, PeerError.
        """
        async with _bounded(self.endpoint, seconds):
            return await self._call(request)

    def close(self) -> None:
        """Close the connection at once."""
        self._writer.transport.abort()

    async def _call(self, request: RpcRequest) -> bytes:
        self._correlation_id += 1
        try:
            return await call(
                self._reader,
                self._writer,
                request,
                correlation_id=self._correlation_id,
                client_id=self._client_id,
                max_size=MAX_RESPONSE_BYTES,
            )
        except PeerError as error:
            raise PeerError(error.side, error.reason, f"{self.endpoint}: {error.detail}") from None

    async def _authenticate(self, security: Security) -> None:
        if security.mechanism is None:
            return
        messages.check_sasl_handshake(await self._call(messages.sasl_handshake_request(security.mechanism)))
        if security.mechanism == "PLAIN":
            await self._step(f"\0{security.user}\0{security.password}".encode())
            return
        scram = Scram(HASHES[security.mechanism], security.user, security.password)
        challenge = await self._step(scram.first_message())
        scram.verify_server(await self._step(await asyncio.to_thread(scram.final_message, challenge)))

    async def _step(self, token: bytes) -> bytes:
        return messages.decode_sasl_token(await self._call(messages.sasl_authenticate_request(token)))


@asynccontextmanager
async def _bounded(endpoint: Endpoint, seconds: float) -> AsyncIterator[None]:
    """Bound the block by ``seconds``, and raise BrokerUnreachable for a timeout and any error of the network."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise BrokerUnreachable(f"{endpoint}: no answer within {seconds:.0f} s") from None
    except asyncio.IncompleteReadError:
        raise ConnectionClosed(f"{endpoint}: the connection was closed") from None
    except ConnectionResetError as error:
        raise ConnectionClosed(f"{endpoint}: {error.strerror or 'the connection was closed'}") from None
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", None) or error.reason
        hint = "; the listener does not use TLS" if error.reason in NO_TLS else ""
        raise BrokerUnreachable(f"{endpoint}: TLS: {reason}{hint}") from None
    except OSError as error:
        raise BrokerUnreachable(f"{endpoint}: {describe_os_error(error) or 'the connection was closed'}") from None
