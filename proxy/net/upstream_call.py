"""One request of the sidecar's own to the broker behind a listener, on a connection of its own."""

from __future__ import annotations

import asyncio
import socket

from proxy import __version__
from proxy.net.tls_stream import TlsStream
from proxy.net.upstream import Upstream
from proxy.rpc.call import call, call_once
from proxy.rpc.messages import RpcRequest

RECEIVED_SIZE = 65_536
"""Bytes received at a time."""


async def call_upstream(upstream: Upstream, request: RpcRequest, max_size: int) -> bytes:
    """Send ``request``, and return what follows the correlation id in the response.

    ``max_size``: of the response, in bytes. Raises OSError, EOFError and PeerError.
    """
    sock, tls = await upstream.open()
    client_id = f"brokerside-{__version__}"
    if tls is None:
        streams = await asyncio.open_connection(sock=sock)
        return await call_once(streams, request, client_id=client_id, max_size=max_size)
    try:
        peer = SocketPeer(sock, tls)
        return await call(peer, peer, request, correlation_id=1, client_id=client_id, max_size=max_size)
    finally:
        sock.close()


class SocketPeer:
    """A socket, with TLS or without, as what ``proxy.rpc.call`` needs of streams. uvloop's own TLS is used nowhere
    here. It costs nothing while it is not used."""

    def __init__(self, sock: socket.socket, tls: TlsStream | None = None) -> None:
        self._sock = sock
        self._tls = tls
        self._unsent = b""
        self._received = bytearray()

    def write(self, data: bytes) -> None:
        """Send ``data`` before the next read."""
        self._unsent += data if self._tls is None else self._tls.encrypt(data)

    async def readexactly(self, size: int) -> bytes:
        """Return the next ``size`` bytes."""
        loop = asyncio.get_running_loop()
        if self._unsent:
            await loop.sock_sendall(self._sock, self._unsent)
            self._unsent = b""
        while len(self._received) < size:
            received = await loop.sock_recv(self._sock, RECEIVED_SIZE)
            if not received:
                raise EOFError
            self._received += received if self._tls is None else self._tls.decrypt(received)
        found = bytes(self._received[:size])
        del self._received[:size]
        return found
