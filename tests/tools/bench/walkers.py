"""How long the walkers take: ``python -m tests.tools.bench.walkers`` prints CPU microseconds a message, best of nine.

``bare`` is a walk that builds no facts for Python, as the session runs it.
"""

from __future__ import annotations

import struct
import time
import timeit
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

from proxy.compiled import walk_door
from proxy.core.exchange import EMPTY_RECORD_SET
from proxy.errors import Side
from tests.tools import messages
from tests.tools.messages import Made, Message, Values, encode

SHAPES = [(1, 1, 1, 218), (1, 1, 66, 15_887), (10, 5, 1, 16_000), (1, 1, 6000, 181)]
"""Topics, partitions of each, batches of each, bytes of a batch."""


def record_set(batches: int, size: int) -> Made:
    header = struct.pack(">qiibIhiqqqhii", 0, size - 12, 0, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1)
    return Made((header + bytes(size - 61)) * batches, EMPTY_RECORD_SET)


def produce_request(topics: int, partitions: int, records: Made) -> Values:
    parts = [{"index": number, "records": records} for number in range(partitions)]
    data = [{"name": b"topic-%02d" % number, "partition_data": parts} for number in range(topics)]
    return {"transactional_id": None, "acks": -1, "timeout_ms": 30000, "topic_data": data}


def fetch_response(topics: int, partitions: int, records: Made) -> Values:
    parts = [
        {
            "partition_index": number,
            "error_code": 0,
            "high_watermark": 0,
            "last_stable_offset": 0,
            "log_start_offset": 0,
            "aborted_transactions": None,
            "preferred_read_replica": -1,
            "records": records,
        }
        for number in range(partitions)
    ]
    data = [{"topic_id": bytes(16), "partitions": parts} for _ in range(topics)]
    return {"throttle_time_ms": 0, "error_code": 0, "session_id": 0, "responses": data}


def microseconds(work: Callable[[], Any]) -> float:
    once = timeit.timeit(work, number=3, timer=time.perf_counter) / 3
    number = max(3, int(0.05 / once))
    return min(timeit.repeat(work, number=number, repeat=9, timer=time.process_time)) / number * 1e6


def in_pieces(walker: int, pieces: list[bytes], version: int, side: Side) -> Any:
    feed = walk_door.BodyFeed(walker, version, side)
    for piece in pieces:
        feed.feed(piece, 0, len(piece))
    return feed.finish()


def main() -> None:
    cases: list[tuple[str, Message, int, Side, Callable[..., Values]]] = [
        ("produce_request", messages.PRODUCE_REQUEST, 9, "client", produce_request),
        ("fetch_response", messages.FETCH_RESPONSE, 17, "broker", fetch_response),
    ]
    print(f"{'message':<20} {'bytes':>9} {'bare':>9} {'whole':>9} {'in 64 KiB pieces':>17}")
    for (name, message, version, side, values), shape in product(cases, SHAPES):
        topics, partitions, batches, size = shape
        body = encode(message, version, values(topics, partitions, record_set(batches, size)))
        pieces = [body[at : at + 65536] for at in range(0, len(body), 65536)]
        walker = getattr(walk_door, name)
        bare = microseconds(partial(walk_door.walk_often, walker, body, version, 100)) / 100
        whole = microseconds(partial(walk_door.walk_whole, walker, body, 0, len(body), version, side))
        fed = microseconds(partial(in_pieces, walker, pieces, version, side))
        print(f"{f'{name} v{version}':<20} {len(body):>9} {bare:>9.3f} {whole:>9.2f} {fed:>17.2f}")


if __name__ == "__main__":
    main()
