"""Free ports on loopback, for processes that are started a moment later."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection

from proxy.errors import LocalError

HOST = "127.0.0.1"
FIRST, LAST = 15_000, 31_999
"""Below the range Linux takes ports from by itself (32768–60999), so no passing connection takes one in between."""

ATTEMPTS = 1_000


def free_ports(count: int, *, avoid: Collection[int] = ()) -> list[int]:
    """Return ``count`` different ports that nobody listens on now, none of ``avoid``.

    Raises LocalError if there are not that many.
    """
    chosen: list[int] = []
    for port in random.sample(range(FIRST, LAST + 1), ATTEMPTS):
        if len(chosen) == count:
            break
        if port not in avoid and is_free(port):
            chosen.append(port)
    if len(chosen) < count:
        raise LocalError(f"there are not {count} free ports between {FIRST} and {LAST} on {HOST}")
    return chosen


def is_free(port: int) -> bool:
    """Whether a server could listen on ``port`` of loopback now."""
    with socket.socket() as sock:
        # As Java does: a port that only has old connections in TIME_WAIT is free.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, port))
            sock.listen(1)
        except OSError:
            return False
    return True
