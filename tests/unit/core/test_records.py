import struct
import tracemalloc
from collections.abc import Callable

import pytest

from proxy.compiled import walk_door as walk
from proxy.core.exchange import ProduceRequest, RecordSet
from proxy.core.records import sums_of
from proxy.errors import MalformedBody
from tests.cases import each


def batch(
    records: int = 1,
    *,
    magic: int = 2,
    attributes: int = 0,
    base_offset: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
    payload: bytes = b"",
    length: int | None = None,
) -> bytes:
    tail = struct.pack(">hiqqqhii", attributes, 0, 0, 0, *producer, records) + payload
    return struct.pack(">qiibI", base_offset, 9 + len(tail) if length is None else length, 0, magic, 0) + tail


def entry(magic: int, *, codec: int = 0, offset: int = 0, value: bytes = b"value") -> bytes:
    timestamp = struct.pack(">q", 0) if magic else b""
    body = struct.pack(">Ibb", 0, magic, codec) + timestamp + struct.pack(">ii", -1, len(value)) + value
    return struct.pack(">qi", offset, len(body)) + body


def walked(data: bytes) -> RecordSet:
    """What the walker says of it, in a request of one partition: whole, and byte by byte."""
    body = body_of(data)
    [partition] = walk.walk_whole(walk.produce_request, body, 0, len(body), 3, "client").partitions
    assert fed(body, 1).partitions == (partition,)
    return partition.records


def body_of(data: bytes) -> bytes:
    return struct.pack(">hhiihiii", -1, 1, 0, 1, 0, 1, 0, len(data)) + data


def fed(body: bytes, step: int) -> ProduceRequest:
    feed = walk.BodyFeed(walk.produce_request, 3, "client")
    for at in range(0, len(body), step):
        feed.feed(body, at, min(at + step, len(body)))
    return feed.finish()


Sums = Callable[[bytes], RecordSet]


@pytest.fixture(params=[walked, sums_of])
def sums(request: pytest.FixtureRequest) -> Sums:
    return request.param


def test_several_batches_add_up_and_the_first_names_the_producer(sums: Sums) -> None:
    data = batch(7, base_offset=40, producer=(9, 2, 100)) + batch(
        3, base_offset=47, producer=(10, 0, 5), payload=b"abc"
    )
    assert sums(data) == RecordSet(len(data), 2, 10, 2, 9, 2, 100, 40)


def test_control_batches_count_as_batches_but_their_records_do_not(sums: Sums) -> None:
    marker = batch(1, attributes=0x30, base_offset=50, producer=(9, 2, -1))
    assert sums(marker) == RecordSet(61, 1, 0, 2, 9, 2, -1, 50)
    assert sums(batch(5) + marker).records == 5


@pytest.mark.promise(
    "consumed-records.md",
    "Records are counted from the headers of batches and message sets of every magic, without reading them.",
)
@each("magic", [0, 1])
def test_old_message_sets_count_entries(sums: Sums, magic: int) -> None:
    data = entry(magic, offset=3) + entry(magic, offset=4) + entry(magic, offset=5, value=bytes(200))
    assert sums(data) == RecordSet(len(data), 3, 3, magic, base_offset=3)


@each("magic", [0, 1])
@each("codec", [1, 2, 3])
def test_a_compressed_wrapper_counts_as_one_and_is_claimed(sums: Sums, magic: int, codec: int) -> None:
    assert sums(entry(magic) + entry(magic, codec=codec)) == RecordSet(
        len(entry(magic)) * 2, 2, 2, magic, base_offset=0, claimed=True
    )


@each(
    "data",
    [
        batch(magic=3),
        batch(magic=-1),
        batch(length=48),
        batch(length=0),
        batch(length=-(2**31)),
        batch(-1),
        struct.pack(">qiIbbii", 0, 13, 0, 0, 0, -1, -1),
    ],
)
def test_headers_that_no_writer_writes_are_nonsense(sums: Sums, data: bytes) -> None:
    with pytest.raises(MalformedBody):
        sums(data)


def test_records_are_passed_over_and_not_kept() -> None:
    body = body_of(batch(1, payload=bytes(1_000_000)) + batch(2))
    tracemalloc.start()
    try:
        found = fed(body, 1000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.partitions[0].records == RecordSet(1_000_122, 2, 3, 2, -1, -1, -1, 0)
    assert peak < 10_000
