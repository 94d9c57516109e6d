"""Which records the walker of FetchResponse leaves out as aborted: those that the Java client leaves out."""

import random
import struct
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from proxy.compiled import walk_door as walk
from proxy.core.bodies import MAX_ABORTED_TRANSACTIONS
from proxy.core.exchange import EMPTY_RECORD_SET, FetchedPartition
from tests.cases import each
from tests.tools import messages
from tests.tools.messages import Made, encode

TRANSACTIONAL, CONTROL = 0x10, 0x20
VERSIONS = (4, 11, 12, 18)


class Batch(NamedTuple):
    """A batch of ``count`` records without gaps."""

    base_offset: int
    count: int
    attributes: int = 0
    producer_id: int = -1

    @property
    def last_offset(self) -> int:
        return self.base_offset + max(self.count - 1, 0)


def marker(offset: int, producer_id: int) -> Batch:
    return Batch(offset, 1, TRANSACTIONAL | CONTROL, producer_id)


def data(offset: int, count: int, producer_id: int) -> Batch:
    return Batch(offset, count, TRANSACTIONAL, producer_id)


def encoded(batch: Batch) -> bytes:
    delta = batch.last_offset - batch.base_offset
    tail = struct.pack(">hiqqqhii", batch.attributes, delta, 0, 0, batch.producer_id, 0, 0, batch.count)
    return struct.pack(">qiibI", batch.base_offset, 9 + len(tail), 0, 2, 0) + tail


def body_of(version: int, *partitions: tuple[Sequence[Batch], Sequence[tuple[int, int]]]) -> bytes:
    """A response; of each partition, its batches and the aborted transactions that it lists."""
    parts = [
        {
            "partition_index": number,
            "error_code": 0,
            "high_watermark": 9,
            "last_stable_offset": 9,
            "log_start_offset": 0,
            "aborted_transactions": [{"producer_id": one, "first_offset": offset} for one, offset in aborted],
            "preferred_read_replica": -1,
            "records": Made(b"".join(map(encoded, batches)), EMPTY_RECORD_SET),
        }
        for number, (batches, aborted) in enumerate(partitions)
    ]
    one = {"topic": b"t", "topic_id": bytes(16), "partitions": parts}
    values = {"throttle_time_ms": 0, "error_code": 0, "session_id": 0, "responses": [one]}
    return encode(messages.FETCH_RESPONSE, version, values)


def walked(batches: Sequence[Batch], aborted: Sequence[tuple[int, int]], version: int = 18) -> FetchedPartition:
    """The facts of a response with one partition, read whole and in pieces."""
    body = body_of(version, (batches, aborted))
    feed = walk.BodyFeed(walk.fetch_response, version, "broker")
    step = max(1, len(body) // 500)
    for at in range(0, len(body), step):
        feed.feed(body, at, min(at + step, len(body)))
    facts = feed.finish()
    assert facts == walk.walk_whole(walk.fetch_response, body, 0, len(body), version, "broker")
    return facts.partitions[0]


def of_java(batches: Sequence[Batch], aborted: Sequence[tuple[int, int]]) -> int:
    """Aborted records as ``CompletedFetch.nextFetchedRecord`` of the Java client finds them."""
    waiting = sorted(aborted, key=lambda one: one[1])
    producers: set[int] = set()
    left_out = 0
    for batch in batches:
        while waiting and waiting[0][1] <= batch.last_offset:
            producers.add(waiting.pop(0)[0])
        if batch.attributes & CONTROL:
            producers.discard(batch.producer_id)
        elif batch.attributes & TRANSACTIONAL and batch.producer_id in producers:
            left_out += batch.count
    return left_out


@pytest.mark.promise(
    "consumed-records.md",
    "Records of aborted transactions count as not consumed exactly where Java's consumer leaves them out.",
)
@each("seed", range(200))
def test_any_log_is_read_as_java_reads_it(seed: int) -> None:
    """Transactions of four producers that overlap; what the fetch begins after is not in it."""
    chance = random.Random(seed)
    log: list[Batch] = []
    aborted: list[tuple[int, int]] = []
    begun: dict[int, int] = {}
    offset = 0
    for _ in range(60):
        producer = chance.randrange(4)
        if producer in begun and chance.random() < 0.3:
            if chance.random() < 0.5:
                aborted.append((producer, begun[producer]))
            log.append(marker(offset, producer))
            del begun[producer]
        elif chance.random() < 0.2:
            log.append(Batch(offset, chance.randint(1, 9), 0, producer))
        else:
            begun.setdefault(producer, offset)
            log.append(data(offset, chance.randint(1, 9), producer))
        offset = log[-1].last_offset + 1
    start = chance.randrange(len(log))
    found = walked(log[start:], aborted, VERSIONS[seed % len(VERSIONS)])
    assert found.aborted_records == of_java(log[start:], aborted)


def test_transactions_of_a_partition_are_bounded_and_charged() -> None:
    batches = [data(0, 5, 1), marker(5, 1)]
    most = [(1, 0)] * MAX_ABORTED_TRANSACTIONS
    assert walked(batches, most).aborted_records == 5
    found = walked(batches, [*most, (1, 0)])
    assert (found.aborted_records, found.first_batch_records) == (-1, 5)
    body = body_of(18, (batches, [(1, 0)] * 1000), (batches, []))
    feed = walk.BodyFeed(walk.fetch_response, 18, "broker")
    before = feed.size()
    feed.feed(body, 0, 16_000)
    assert feed.size() - before > 900 * 24
    feed.feed(body, 16_000, len(body))
    assert [part.aborted_records for part in feed.finish().partitions] == [5, 0]
