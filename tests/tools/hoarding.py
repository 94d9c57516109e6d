"""What sessions hold of clients that make them hold as much as they can: run as a process, it prints what it grew by.

``python -m tests.tools.hoarding``: the requests of ``FLOODS`` are fed to sessions, a million bytes
to each, and no broker answers. Prints a line of JSON for each.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from struct import pack
from typing import NamedTuple

from proxy.core.budget import SCARCE_CHUNK, Budget
from proxy.core.counters import ListenerCounters
from proxy.core.exchange import Connection
from proxy.core.interceptor import InterceptorChain
from proxy.core.observation_interest import WANT_EXCHANGE, WANT_FACTS, WANT_REQUEST_BODY, WANT_RESPONSE_BODY
from proxy.core.principal_tracker import PrincipalTracker
from proxy.core.session import Session
from tests.frames import request
from tests.tools.bench.measure import memory
from tests.tools.interceptors import HELD, Chooser
from tests.tools.messages import uvarint
from tests.tools.observation_sinks import watching

MILLION = 1_000_000
SESSIONS = 30
"""Connections that do it at the same time."""

CHUNK = 131_072
"""Bytes that a relay reads at a time."""

LIMIT = 16 << 20
"""Bytes of the budget here, which these connections fill."""


COUNT = 40_000
"""Partitions of one body: their facts fit into the budget once."""


class Flood(NamedTuple):
    """``frames``: the requests of one connection, of up to a million bytes."""

    frames: Callable[[], bytes]
    wanted: int = WANT_EXCHANGE | WANT_FACTS


def items(count: int, each: bytes) -> bytes:
    return uvarint(count + 1) + each * count


def produced() -> bytes:
    """Record sets that are null, in one topic: six bytes each."""
    one = b"\0\0\0\1\0\0"
    return request(0, 9, 1, b"\0" + b"\0" + pack(">hi", 1, 1000) + b"\2\2t" + items(COUNT, one) + b"\0\0")


def produced_topics() -> bytes:
    """As many topics, of one partition each."""
    one = b"\3ab\2\0\0\0\1\0\0\0"
    return request(0, 9, 1, b"\0" + b"\0" + pack(">hi", 1, 1000) + items(COUNT, one) + b"\0")


def fetched() -> bytes:
    wanted = bytes(16) + pack(">ii", 1, 0) + bytes(8)
    body = pack(">iiiibii", -1, 500, 1, 1 << 20, 0, 0, -1) + pack(">i", 1) + pack(">h1s", 1, b"t")
    return request(1, 7, 1, body + pack(">i", COUNT) + wanted[:24] * COUNT + pack(">i", 0))


def forgotten() -> bytes:
    """Partitions that leave a fetch session: four bytes each."""
    body = pack(">iiiibii", -1, 500, 1, 1 << 20, 0, 7, 3) + pack(">i", 0) + pack(">ih1s", 1, 1, b"t")
    return request(1, 7, 1, body + pack(">i", COUNT) + bytes(4 * COUNT))


def shared() -> bytes:
    """Of ShareFetch: partitions without acknowledgements."""
    body = b"\0" + b"\2g\2m" + pack(">iiiiii", 0, 500, 1, 1 << 20, 100, 100)
    return request(78, 1, 1, body + b"\2" + bytes(16) + items(COUNT, b"\0\0\0\1\1\0") + b"\0\1\0")


def cut(frame: bytes) -> bytes:
    return frame[:-1]


def many(key: int, version: int, body: bytes, client_id: str | None = "c") -> bytes:
    one = request(key, version, 1, body, client_id)
    return one * (MILLION // len(one))


def names() -> bytes:
    """Client ids that are all different, and take four bytes a character once they are decoded."""
    return b"".join(request(3, 1, n, b"\0\0\0\0", f"\N{GRINNING FACE}{n:04}" + "x" * 30_000) for n in range(33))


KEPT = WANT_EXCHANGE | WANT_FACTS | WANT_REQUEST_BODY | WANT_RESPONSE_BODY

FLOODS = {
    "Produce": Flood(produced),
    "Produce, cut": Flood(lambda: cut(produced())),
    "Produce, topics": Flood(produced_topics),
    "Produce, acks=0": Flood(lambda: produced().replace(pack(">hi", 1, 1000), pack(">hi", 0, 1000), 1)),
    "Fetch": Flood(fetched),
    "Fetch, forgotten": Flood(forgotten),
    "Fetch, cut": Flood(lambda: cut(forgotten())),
    "ShareFetch": Flood(shared),
    "Metadata": Flood(lambda: request(3, 9, 1, b"\0" + items(500_000, b"\1\0"))),
    "Metadata, kept": Flood(lambda: request(3, 9, 1, b"\0" + items(500_000, b"\1\0")), KEPT),
    "AlterClientQuotas, kept": Flood(lambda: request(49, 1, 1, b"\0" + items(300_000, b"\1\1\0")), KEPT),
    "ApiVersions": Flood(lambda: many(18, 3, b"\0\2j\2" + b"1\0")),
    "SaslHandshake": Flood(lambda: many(17, 1, pack(">h", 5) + b"PLAIN")),
    "SaslAuthenticate": Flood(
        lambda: (
            request(17, 1, 1, pack(">h", 5) + b"PLAIN")
            + request(36, 1, 1, pack(">i", 60_006) + b"\0\xf0\x9f\x98\x80" + b"u" * 59_996 + b"\0pass") * 16
        )
    ),
    "SaslAuthenticate, cut": Flood(lambda: request(36, 1, 1, pack(">i", 60_000) + bytes(60_000))[:-1]),
    "held requests": Flood(lambda: cut(request(HELD, 0, 1, bytes(60_000)))),
    "smallest requests": Flood(lambda: many(12, 0, b"", None)),
    "client ids": Flood(names),
    "header": Flood(lambda: request(3, 9, 1, b"\xff\xff\7" + b"\1\1x" * 40_000)[:120_000]),
}
"""By api, or by what of a connection is held."""


class Hoard:
    """Sessions, each fed with the requests of a flood as a relay feeds them; nothing is ever answered."""

    def __init__(self, flood: Flood) -> None:
        self._flood = flood
        self.budget = Budget(LIMIT)
        self.recorded = 0
        self._watch = watching(self._record, wanted=flood.wanted, max_body=2 * MILLION)
        self.sessions: list[Session] = []

    def _record(self, exchange: object) -> None:
        self.recorded += 1  # and let go of

    def connect(self) -> None:
        """One client more, whose first request the broker answers late."""
        connection = Connection("c-1", "CLIENT", "127.0.0.1", 5, 0.0, "User:ANONYMOUS", "unauthenticated")
        interceptors = InterceptorChain([Chooser()])
        session = Session(
            connection,
            ListenerCounters(),
            self._watch,
            100 * MILLION,
            PrincipalTracker(connection),
            interceptors,
            self.budget,
        )
        self.sessions.append(session)
        data = request(11, 0, 0, b"")  # JoinGroup: whatever follows waits for its answer
        while len(data) < MILLION:
            data += self._flood.frames()
        at = 0
        while (session.rest or at < len(data)) and not session.saturated and not session.must_pause("client"):
            size = SCARCE_CHUNK if self.budget.full else CHUNK
            chunk = session.rest or data[at : at + size]
            at += 0 if session.rest else size
            session.read_client_data(chunk, 1.0)
            session.observe(1.0)
            if session.interception is not None:
                session.interception.release_chunk()


def measured(flood: Flood) -> dict[str, int]:
    """What the process grew by, and what stays charged once all connections have ended."""
    warm = Hoard(flood)
    warm.connect()
    warm.sessions.pop().close(2.0)
    hoard = Hoard(flood)
    before = memory([os.getpid()]).rss
    for _ in range(SESSIONS):
        hoard.connect()
    grown = memory([os.getpid()]).rss - before
    for session in hoard.sessions:
        session.close(2.0)
    hoard.budget.clear_recorded()
    return {"grown": round(grown * (1 << 20)), "left": hoard.budget.charged}


def main() -> None:
    """Print the figures of each flood, each from a process of its own: memory that is free again is not given back."""
    for name, flood in FLOODS.items():
        sys.stdout.flush()
        child = os.fork()
        if not child:
            print(json.dumps([name, measured(flood)]), flush=True)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            raise SystemExit(f"{name}: failed")


if __name__ == "__main__":
    main()
