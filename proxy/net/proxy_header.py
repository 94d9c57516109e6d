"""Reads the PROXY protocol header with which an accepted connection begins, and not one byte more."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from functools import cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import NamedTuple

import structlog

from proxy.config import Listener
from proxy.core.causes import Cause
from proxy.core.counters import ListenerCounters
from proxy.core.proxy_protocol import MAX_SIZE, parse
from proxy.errors import PeerError
from proxy.limits.model import canonical
from proxy.net.sockets import AcceptedSocket
from proxy.telemetry import RateLimitedLogger

HEADER_TIMEOUT = 10.0
"""Seconds from the accept to the last byte of the header. Load balancers send it at once."""

MAX_PENDING_HEADERS = 1024
"""Connections of all listeners whose header is incomplete. One more is closed at once. Each of them costs a descriptor
and at most ``MAX_SIZE`` bytes."""

PeerAddress = tuple[str, int]
OnHeader = Callable[[AcceptedSocket, PeerAddress], None]

log = structlog.get_logger(__name__)


class PartialHeader(NamedTuple):
    """A connection whose header is incomplete. ``data``: the part that was read."""

    listener: Listener
    sock: AcceptedSocket
    address: PeerAddress
    data: bytes


class ProxyHeaderReader:
    """Reads the headers of accepted connections, which count as active in ``tallies``. Belongs to the event loop's
    thread.

    ``tallies``: counters by listener name. Connections that are closed here are counted there.
    """

    def __init__(self, listener_counters: Mapping[str, ListenerCounters]) -> None:
        self._listener_counters = listener_counters
        self._pending: set[_PendingHeader] = set()
        self._rate_limited = RateLimitedLogger(log)

    def read_header(
        self, listener: Listener, sock: AcceptedSocket, address: PeerAddress, on_header: OnHeader, data: bytes = b""
    ) -> None:
        """Take ownership of ``sock``, accepted from ``address``, and call ``on_header(sock, address)`` with the
        header's address. ``data``: the part of the header that was read from it before.

        The address stays the same if the header has none. The call may happen before this method returns. It does not
        happen if the socket was closed; the cause is then counted.
        """
        self._listener_counters[listener.name].active += 1
        pending = _PendingHeader(self, listener, sock, address, on_header, data)
        if not _is_trusted(address[0], listener.proxy_protocol_trusted):
            pending.close("untrusted_proxy", "not in proxy.protocol.trusted")
        elif len(self._pending) >= MAX_PENDING_HEADERS:
            pending.close(
                "proxy_header_overload", f"{MAX_PENDING_HEADERS} connections without a complete header already"
            )
        else:
            self._pending.add(pending)
            pending.start()

    @property
    def pending_count(self) -> int:
        """Connections whose header is incomplete."""
        return len(self._pending)

    def pause(self) -> None:
        """Read nothing until ``resume``."""
        for one in self._pending:
            one.pause()

    def resume(self) -> None:
        """Continue after ``pause``."""
        for one in list(self._pending):
            one.resume()

    def pending(self) -> list[PartialHeader]:
        """Return all connections whose header is incomplete. Needs ``pause``."""
        return [PartialHeader(one.listener, one.sock, one.address, one.data) for one in self._pending]

    def forget_pending(self) -> None:
        """Close the sockets of ``pending``. Another process has them, too."""
        for one in list(self._pending):
            one.finish(None)
            one.sock.close()

    def close(self) -> None:
        """Close all connections whose header is incomplete."""
        for pending in list(self._pending):
            pending.close("drain_completed")

    def flush_warnings(self) -> None:
        """Log how often a rate-limited warning was suppressed, if it is time to."""
        self._rate_limited.flush()

    def on_finished(self, pending: _PendingHeader, cause: Cause | None, detail: str) -> None:
        """Remove ``pending``: its socket was closed for ``cause``, or passed on if ``cause`` is None."""
        self._pending.discard(pending)
        counters = self._listener_counters[pending.listener.name]
        counters.active -= 1
        if cause is not None:
            counters.closed[cause] += 1
        if detail:
            self._rate_limited.warning(
                "proxy_header_refused",
                listener=pending.listener.name,
                peer=pending.address[0],
                cause=cause,
                detail=detail,
            )


class _PendingHeader:
    """One connection whose header is incomplete.

    It peeks at the received bytes (MSG_PEEK) and then reads only those that belong to the header. Bytes that do not
    complete the header all belong to it. They are read as well, so that the event loop calls again only for new bytes.
    """

    def __init__(
        self,
        owner: ProxyHeaderReader,
        listener: Listener,
        sock: AcceptedSocket,
        address: PeerAddress,
        on_header: OnHeader,
        data: bytes,
    ) -> None:
        self.listener = listener
        self.address = address
        self._owner = owner
        self.sock = sock
        self._on_header = on_header
        self._loop = asyncio.get_running_loop()
        self.data = data
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = self._loop.call_later(HEADER_TIMEOUT, self._on_timeout)
        self._on_readable()  # most headers have arrived by now
        if not self._timer.cancelled():
            self._loop.add_reader(self.sock, self._on_readable)

    def pause(self) -> None:
        self._loop.remove_reader(self.sock)

    def resume(self) -> None:
        self._loop.add_reader(self.sock, self._on_readable)

    def close(self, cause: Cause, detail: str = "") -> None:
        self.finish(cause, detail)
        self.sock.close()

    def _on_readable(self) -> None:
        try:
            seen = self.sock.recv(MAX_SIZE - len(self.data), socket.MSG_PEEK)
            header = parse(self.data + seen)
            taken = self.sock.recv((header.size if header else len(self.data + seen)) - len(self.data))
        except BlockingIOError:
            return
        except PeerError as error:
            self.close("invalid_proxy_header", error.detail)
            return
        except OSError:
            self.close("client_reset")
            return
        if header is not None:
            self.finish(None)
            self._on_header(self.sock, header.address or self.address)
        elif seen:
            self.data += taken
        elif self.data:
            self.close("invalid_proxy_header", f"connection closed after {len(self.data)} bytes")
        else:
            self.close("client_closed")  # without a byte, like health checks

    def _on_timeout(self) -> None:
        self.close("proxy_header_timeout", f"not complete after {HEADER_TIMEOUT:.0f} s")

    def finish(self, cause: Cause | None, detail: str = "") -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._loop.remove_reader(self.sock)
        self._owner.on_finished(self, cause, detail)


def _is_trusted(host: str, trusted: tuple[str, ...]) -> bool:
    address = ip_address(canonical(host))
    return any(address in network for network in _networks(trusted))


@cache
def _networks(trusted: tuple[str, ...]) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(ip_network(network) for network in trusted)
