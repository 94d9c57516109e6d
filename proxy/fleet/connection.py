"""One connection of the sidecar's own to a Kafka listener: TLS, SASL, and one request at a time."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proxy.config import Endpoint
from proxy.errors import BrokersideError, PeerError
from proxy.fleet.scram import HASHES, Scram
from proxy.fleet.security import Security
from proxy.rpc import messages
from proxy.rpc.call import call
from proxy.rpc.messages import Request

TIMEOUT = 5.0
"""Seconds for a connection to be there, TLS and SASL included, and for each answer."""

MAX_ANSWER = 64 * 1024 * 1024
"""Bytes; 100,000 quotas of addresses are 6 MB."""


class Unreachable(BrokersideError):
    """There is no connection, or no answer on it."""


class Closed(Unreachable):
    """The other end has closed the connection."""


class Connection:
    """Whoever gets any error from it, or stops waiting, is to close it: what it would answer next is not known."""

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
    ) -> Connection:
        """Connect, from the address ``source`` where one is given, and authenticate.

        Raises Unreachable, Refused, PeerError.
        """
        local = None if source is None else (source, 0)
        async with _bounded(endpoint):
            reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=context, local_addr=local)
            connection = cls(endpoint, client_id, reader, writer)
            try:
                await connection._authenticate(security)
            except BaseException:
                connection.close()
                raise
            return connection

    async def ask(self, request: Request) -> bytes:
        """Return the answer without its header. Raises Unreachable, PeerError."""
        async with _bounded(self.endpoint):
            return await self._ask(request)

    def close(self) -> None:
        """End it at once."""
        self._writer.transport.abort()

    async def _ask(self, request: Request) -> bytes:
        self._correlation_id += 1
        try:
            return await call(
                self._reader,
                self._writer,
                request,
                correlation_id=self._correlation_id,
                client_id=self._client_id,
                max_size=MAX_ANSWER,
            )
        except PeerError as error:
            raise PeerError(error.side, error.reason, f"{self.endpoint}: {error.detail}") from None

    async def _authenticate(self, security: Security) -> None:
        if security.mechanism is None:
            return
        messages.check_handshake(await self._ask(messages.sasl_handshake(security.mechanism)))
        if security.mechanism == "PLAIN":
            await self._step(f"\0{security.user}\0{security.password}".encode())
            return
        scram = Scram(HASHES[security.mechanism], security.user, security.password)
        challenge = await self._step(scram.first())
        scram.check(await self._step(await asyncio.to_thread(scram.final, challenge)))

    async def _step(self, token: bytes) -> bytes:
        return messages.sasl_token(await self._ask(messages.sasl_authenticate(token)))


@asynccontextmanager
async def _bounded(endpoint: Endpoint) -> AsyncIterator[None]:
    """Let what is done take ``TIMEOUT`` at most, and call every way in which it fails Unreachable."""
    try:
        async with asyncio.timeout(TIMEOUT):
            yield
    except TimeoutError:
        raise Unreachable(f"{endpoint}: no answer within {TIMEOUT:.0f} s") from None
    except asyncio.IncompleteReadError:
        raise Closed(f"{endpoint}: the connection was closed") from None
    except ConnectionResetError as error:
        raise Closed(f"{endpoint}: {error.strerror or 'the connection was closed'}") from None
    except ssl.SSLError as error:
        raise Unreachable(f"{endpoint}: TLS: {getattr(error, 'verify_message', None) or error.reason}") from None
    except OSError as error:
        raise Unreachable(f"{endpoint}: {error.strerror or str(error) or 'the connection was closed'}") from None
