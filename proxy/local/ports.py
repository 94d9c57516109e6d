"""Free ports on loopback, for processes that are started a moment later."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection
from itertools import count

from proxy.errors import LocalError

HOST = "127.0.0.1"
FIRST, LAST = 15_000, 31_999
"""Below the range Linux takes ports from by itself (32768–60999), so no passing connection takes one in between."""

_given: dict[int, int] = {}
"""The ports that this process has chosen so far, and when: by a number that only grows."""

_turn = count(1)


def free_ports(number: int, *, avoid: Collection[int] = ()) -> list[int]:
    """Return ``number`` different ports that nobody listens on now, none of ``avoid``.

    What was chosen before comes last: its server may not listen yet, or may be down for a moment.
    Raises LocalError if there are not that many.
    """
    chosen: list[int] = []
    for port in sorted(random.sample(range(FIRST, LAST + 1), LAST - FIRST + 1), key=lambda port: _given.get(port, 0)):
        if len(chosen) == number:
            break
        if port not in avoid and is_free(port):
            chosen.append(port)
    if len(chosen) < number:
        raise LocalError(f"there are not {number} free ports between {FIRST} and {LAST} on {HOST}")
    for port in chosen:
        _given[port] = next(_turn)
    return chosen


def is_free(port: int, host: str = HOST) -> bool:
    """Whether a server could listen on ``port`` of ``host``, an address of loopback, now."""
    with socket.socket() as sock:
        # As Java does: a port that only has old connections in TIME_WAIT is free.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
            sock.listen(1)
        except OSError:
            return False
    return True
