"""Finds peers that are gone without a word, a machine without power or a network that drops everything, and no others.

TCP_USER_TIMEOUT cannot be used for that: it also ends connections to a peer that lives and does not read. Its kernel
confirms every probe of the closed window, and TCP_USER_TIMEOUT counts them all the same. What tells the two apart is
whether anything was confirmed at all.

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

LOST_AFTER_MS = 30_000
"""Milliseconds without a confirmation of anything after which a peer counts as gone, while something waits for one."""

RETRANSMITS = 3
"""Times that bytes were sent again in vain. A peer with a slow network is none that is gone."""

PROBES = 2
"""The same for probes of a closed window, which come up to two minutes apart; one may just be on its way."""

SAMPLE_EVERY = 2.0
"""Seconds between two looks at one connection."""

SLICE = 100
"""Connections that are looked at in one beat, or a twentieth of all."""

CAUSES: dict[Side, Cause] = {"client": "client_timeout", "broker": "broker_timeout"}

_TCP_INFO = struct.Struct("=2xBB20xI28xI")  # retransmits, probes, unacked, last_ack_recv


def is_lost(descriptor: int, lost_after_ms: int = LOST_AFTER_MS) -> bool:
    """Return whether the peer of a connected TCP socket is gone; False where the kernel does not say."""
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
    waits = probes >= PROBES or (unacked > 0 and retransmits >= RETRANSMITS)
    return bool(waits and last_ack_ms >= lost_after_ms)


class LostPeers:
    """Closes the relays of peers that are gone. ``beat`` is to be called now and then, on the loop."""

    def __init__(self, relays: Collection[Relay]) -> None:
        self._relays = relays
        self._left: Iterator[Relay] = iter(())
        self._slice = SLICE
        self._next_at = 0.0

    def beat(self) -> None:
        """Look at some connections."""
        looked = 0
        for relay in self._left:
            if not relay.closed:
                self._look_at(relay)
            looked += 1
            if looked == self._slice:
                return
        now = monotonic()
        if now >= self._next_at and not looked:
            self._next_at = now + SAMPLE_EVERY
            self._left = iter(tuple(self._relays))
            self._slice = max(SLICE, len(self._relays) // 20)

    @staticmethod
    def _look_at(relay: Relay) -> None:
        for side, cause in CAUSES.items():
            descriptor = relay.descriptor(side)
            if descriptor >= 0 and is_lost(descriptor):
                with contextlib.suppress(OSError):
                    relay.close(cause, "nothing is confirmed any more", abort=True)
                return
