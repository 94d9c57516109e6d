"""PROXY headers at the beginning of accepted connections: read before anything else, and not a byte more."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from functools import cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

import structlog

from proxy.config import Listener
from proxy.core.causes import Cause
from proxy.core.proxy_protocol import MAX_SIZE, parse
from proxy.core.tally import Tally
from proxy.errors import PeerError
from proxy.limits.model import canonical
from proxy.telemetry import Repeated

HEADER_TIMEOUT = 10.0
"""Seconds that a header may take from the accept to its last byte; load balancers send it at once."""

MAX_PENDING_HEADERS = 1024
"""Connections whose header is not complete, all listeners together; one more is closed at once. Each costs a descriptor
and at most ``MAX_SIZE`` bytes."""

PeerAddress = tuple[str, int]
OnHeader = Callable[[socket.socket, PeerAddress], None]

log = structlog.get_logger(__name__)


class ProxyHeaderReader:
    """Connections whose header is awaited; they count as active in ``tallies``. Belongs to the loop's thread."""

    def __init__(self, tallies: Mapping[str, Tally]) -> None:
        """``tallies``: by listener; what is closed here is counted there."""
        self._tallies = tallies
        self._pending: set[_PendingHeader] = set()
        self._repeated = Repeated(log)

    def read_header(self, listener: Listener, sock: socket.socket, address: PeerAddress, on_header: OnHeader) -> None:
        """Take over ``sock``, accepted from ``address``, and call ``on_header(sock, address)`` once its header is read.

        That address is the one in the header, or else the one given. It may be called before this returns, or never:
        then the socket has been closed and its cause counted.
        """
        self._tallies[listener.name].active += 1
        pending = _PendingHeader(self, listener, sock, address, on_header)
        if not _is_trusted(address[0], listener.proxy_protocol_trusted):
            pending.close("untrusted_proxy", "not in proxy.protocol.trusted")
        elif len(self._pending) >= MAX_PENDING_HEADERS:
            pending.close("proxy_header_overload", f"{MAX_PENDING_HEADERS} connections wait for their header already")
        else:
            self._pending.add(pending)
            pending.start()

    @property
    def pending(self) -> int:
        """How many there are."""
        return len(self._pending)

    def close(self) -> None:
        """Close whatever is still without its header."""
        for pending in list(self._pending):
            pending.close("drain_completed")

    def flush_warnings(self) -> None:
        """Log how often a repeated warning was held back, where it is time to."""
        self._repeated.flush()

    def on_finished(self, pending: _PendingHeader, cause: Cause | None, detail: str) -> None:
        """``pending`` is no longer: its socket is closed for ``cause``, or was handed on without any."""
        self._pending.discard(pending)
        tally = self._tallies[pending.listener.name]
        tally.active -= 1
        if cause is not None:
            tally.closed[cause] += 1
        if detail:
            self._repeated.warning(
                "proxy_header_refused",
                listener=pending.listener.name,
                peer=pending.address[0],
                cause=cause,
                detail=detail,
            )


class _PendingHeader:
    """One connection until its header is complete.

    It looks at what has come before it takes it (MSG_PEEK), and takes no more than belongs to the header. What does not
    complete it belongs to it altogether and is taken as well, so that the loop calls only when there is more.
    """

    def __init__(
        self,
        owner: ProxyHeaderReader,
        listener: Listener,
        sock: socket.socket,
        address: PeerAddress,
        on_header: OnHeader,
    ) -> None:
        self.listener = listener
        self.address = address
        self._owner = owner
        self._sock = sock
        self._on_header = on_header
        self._loop = asyncio.get_running_loop()
        self._data = b""  # the beginning of the header
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = self._loop.call_later(HEADER_TIMEOUT, self._on_timeout)
        self._on_readable()  # most headers are there already
        if not self._timer.cancelled():
            self._loop.add_reader(self._sock, self._on_readable)

    def close(self, cause: Cause, detail: str = "") -> None:
        self._finish(cause, detail)
        self._sock.close()

    def _on_readable(self) -> None:
        try:
            seen = self._sock.recv(MAX_SIZE - len(self._data), socket.MSG_PEEK)
            header = parse(self._data + seen)
            taken = self._sock.recv((header.size if header else len(self._data + seen)) - len(self._data))
        except BlockingIOError:
            return
        except PeerError as error:
            self.close("invalid_proxy_header", error.detail)
            return
        except OSError:
            self.close("client_reset")
            return
        if header is not None:
            self._finish(None)
            self._on_header(self._sock, header.address or self.address)
        elif seen:
            self._data += taken
        elif self._data:
            self.close("invalid_proxy_header", f"it ends after {len(self._data)} bytes")
        else:
            self.close("client_closed")  # without a word, as health checks do

    def _on_timeout(self) -> None:
        self.close("proxy_header_timeout", f"not complete after {HEADER_TIMEOUT:.0f} s")

    def _finish(self, cause: Cause | None, detail: str = "") -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._loop.remove_reader(self._sock)
        self._owner.on_finished(self, cause, detail)


def _is_trusted(host: str, trusted: tuple[str, ...]) -> bool:
    address = ip_address(canonical(host))
    return any(address in network for network in _networks(trusted))


@cache
def _networks(trusted: tuple[str, ...]) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(ip_network(network) for network in trusted)
