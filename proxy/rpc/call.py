"""One request to a Kafka broker and its response.

The caller sets the deadline: ``async with asyncio.timeout(seconds)`` around a call. After any error, a timeout and a
cancellation among them, the connection is of no further use: the response that it would deliver next is not known.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Protocol

from proxy.core.wire import BROKER_USES_TLS, tls_hint
from proxy.errors import PeerError
from proxy.rpc.messages import RpcRequest

if TYPE_CHECKING:
    import asyncio

CORRELATION_ID_SIZE = 4
"""Bytes of the response header version 0. The header of flexible responses has tagged fields after it, which are
returned with the body."""


class RpcReader(Protocol):
    """What is read from, as ``asyncio.StreamReader``."""

    async def readexactly(self, n: int, /) -> bytes:
        """Return the next ``n`` bytes. Raises EOFError."""


class RpcWriter(Protocol):
    """What is written to, as ``asyncio.StreamWriter``."""

    def write(self, data: bytes, /) -> None:
        """Send ``data``."""


def encode_frame(request: RpcRequest, correlation_id: int, client_id: str | None) -> bytes:
    """Return the request as it goes over the wire: its size, request header version 1, and its body."""
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    header = struct.pack(">hhih", request.key, request.version, correlation_id, length) + name
    return struct.pack(">i", len(header) + len(request.body)) + header + request.body


async def call(
    reader: RpcReader,
    writer: RpcWriter,
    request: RpcRequest,
    *,
    correlation_id: int,
    client_id: str | None,
    max_size: int,
) -> bytes:
    """Send ``request`` and return what follows the correlation id in the response.

    ``max_size``: of the response, in bytes. Raises PeerError for a response that is larger, or to another request;
    OSError, and EOFError where the connection ends before the response is complete.
    """
    writer.write(encode_frame(request, correlation_id, client_id))
    size = int.from_bytes(await reader.readexactly(4), "big", signed=True)
    if not CORRELATION_ID_SIZE <= size <= max_size:
        raise PeerError("broker", "malformed", f"an answer of {size} bytes{tls_hint(size, BROKER_USES_TLS)}")
    answer_to = int.from_bytes(await reader.readexactly(CORRELATION_ID_SIZE), "big", signed=True)
    if answer_to != correlation_id:
        raise PeerError("broker", "malformed", "an answer to another request")
    return await reader.readexactly(size - CORRELATION_ID_SIZE)


async def call_once(
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    request: RpcRequest,
    *,
    client_id: str | None,
    max_size: int,
) -> bytes:
    """As ``call``, as the only request of its connection, which is closed afterwards in any case."""
    reader, writer = streams
    try:
        return await call(reader, writer, request, correlation_id=1, client_id=client_id, max_size=max_size)
    finally:
        writer.transport.abort()
