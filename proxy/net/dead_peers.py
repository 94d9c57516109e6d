"""Detects peers that vanished without closing the connection, such as a machine without power or a network that drops
all packets.

TCP_USER_TIMEOUT cannot be used, because it also ends connections to a living peer that does not read. The kernel of
such a peer acknowledges every zero-window probe, and TCP_USER_TIMEOUT counts these probes all the same. The difference
is whether the peer has acknowledged anything at all.

Source: ``struct tcp_info`` of linux/tcp.h; ``tcp_retransmit_timer`` and ``tcp_probe_timer`` of net/ipv4/tcp_timer.c.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
from collections.abc import Collection, Iterator
from time import monotonic

from proxy.core.causes import Cause
from proxy.errors import Side
from proxy.net.relay import Relay

PEER_DEAD_AFTER_MS = 30_000
"""Milliseconds without any acknowledgement after which a peer counts as dead, while one is outstanding."""

MIN_RETRANSMITS = 3
"""Unanswered retransmissions required. A peer behind a slow network is not dead."""

MIN_WINDOW_PROBES = 2
"""Unanswered zero-window probes required. They are up to two minutes apart, and the last one may still be in flight."""

CHECK_INTERVAL = 2.0
"""Seconds between two checks of the same connection."""

MIN_PEER_CHECKS_PER_TICK = 100
"""Connections checked in one tick, or a twentieth of all connections if that is more."""

CAUSE_BY_SIDE: dict[Side, Cause] = {"client": "client_timeout", "broker": "broker_timeout"}

_TCP_INFO = struct.Struct("=2xBB20xI28xI")  # retransmits, probes, unacked, last_ack_recv


def is_dead(descriptor: int, dead_after_ms: int = PEER_DEAD_AFTER_MS) -> bool:
    """Return whether the peer of a connected TCP socket is dead; False if the kernel does not report it."""
    if sys.platform != "linux":
        return False
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=descriptor)
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    except OSError:
        return False
    finally:
        sock.detach()
    if len(info) < _TCP_INFO.size:
        return False
    retransmits, probes, unacked, last_ack_ms = _TCP_INFO.unpack(info)
    waits = probes >= MIN_WINDOW_PROBES or (unacked > 0 and retransmits >= MIN_RETRANSMITS)
    return bool(waits and last_ack_ms >= dead_after_ms)


class DeadPeerDetector:
    """Closes relays whose peer is dead. Belongs to the event loop's thread."""

    def __init__(self, relays: Collection[Relay]) -> None:
        self._relays = relays
        self._unchecked: Iterator[Relay] = iter(())
        self._checks_per_tick = MIN_PEER_CHECKS_PER_TICK
        self._next_at = 0.0

    def on_tick(self) -> None:
        """Check some connections. Called by the ticker."""
        checked = 0
        for relay in self._unchecked:
            if not relay.closed:
                self._check(relay)
            checked += 1
            if checked == self._checks_per_tick:
                return
        now = monotonic()
        if now >= self._next_at and not checked:
            self._next_at = now + CHECK_INTERVAL
            self._unchecked = iter(tuple(self._relays))
            self._checks_per_tick = max(MIN_PEER_CHECKS_PER_TICK, len(self._relays) // 20)

    @staticmethod
    def _check(relay: Relay) -> None:
        for side, cause in CAUSE_BY_SIDE.items():
            descriptor = relay.descriptor(side)
            if descriptor >= 0 and is_dead(descriptor):
                with contextlib.suppress(OSError):
                    relay.close(cause, "the peer acknowledges nothing any more", abort=True)
                return
