"""What is known of a connection that was given up to the coordinator of consumer groups, on its way to the main
process."""

from __future__ import annotations

import socket
from collections.abc import Callable

from msgspec import Struct

from proxy.core.exchange import Connection
from proxy.interceptors.consumer_groups import Registration


class HandedConnection(Struct, array_like=True):
    """A client that has sent RegisterConsumer, and may read what it names.

    ``number``: of the connection, as the limits count it. ``rest``: what the client has sent behind the request.
    ``requests``, ``received_bytes``, ``sent_bytes``: so far, for the event of its end.
    ``login_at``, ``login_seconds``: when it has logged in, in monotonic seconds, and how long the broker lets that
    last (KIP-368); 0: for ever. ``worker``: number of the process that has served it.
    """

    number: int
    connection: Connection
    registration: Registration
    rest: bytes
    requests: int
    received_bytes: int
    sent_bytes: int
    login_at: float = 0.0
    login_seconds: float = 0.0
    worker: int = 1


TakeConsumer = Callable[[HandedConnection, socket.socket | None, socket.socket | None], None]
"""Takes the ownership of the socket of a client that registers as a consumer, and of its connection to the broker.

There is none to the broker where that authenticates nobody, so that any connection has the same rights. Otherwise a
socket is missing that this process had no descriptor for.
"""


def refuse_consumer(handed: HandedConnection, client: socket.socket | None, broker: socket.socket | None) -> None:
    """Raise AssertionError: without a coordinator no connection is given up."""
    raise AssertionError("nobody takes consumers")
