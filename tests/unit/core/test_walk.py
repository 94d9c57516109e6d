"""Fields and facts of hostile and of large bodies, and records that are counted by the headers of their batches."""

import struct
from collections.abc import Callable

import pytest

from proxy.compiled import walk_door as walk
from proxy.core import wire
from proxy.core.bodies import MAX_PARTITIONS
from proxy.core.exchange import ProduceRequest, RecordSet
from proxy.core.records import sums_of
from proxy.errors import MalformedBody
from tests.cases import each

MANY = 2**31 - 1
OLD_HEAD = struct.pack(">hhi", -1, 1, 1000)  # transactional id, acks, timeout
NEW_HEAD = b"\0" + struct.pack(">hi", 1, 1000)


@pytest.mark.promise("architecture.md", "A hostile body is counted as malformed in the event of its request.")
@each(
    ("version", "body"),
    [
        (7, OLD_HEAD + struct.pack(">i", MANY)),
        (7, OLD_HEAD + struct.pack(">i", -1)),
        (7, OLD_HEAD + struct.pack(">i", -2)),
        (7, OLD_HEAD + struct.pack(">ih", 1, -1) + bytes(99)),
        (7, OLD_HEAD + struct.pack(">ih", 1, -2) + bytes(99)),
        (7, OLD_HEAD + struct.pack(">ihi", 1, 0, MANY) + bytes(99)),
        (7, OLD_HEAD + struct.pack(">ihi", 1, 0, -1)),
        (7, OLD_HEAD + struct.pack(">ihiii", 1, 0, 1, 0, -2)),
        (7, OLD_HEAD + struct.pack(">ihiii", 1, 0, 1, 0, MANY)),
        (7, OLD_HEAD + struct.pack(">i", 0) + b"x"),
        (7, OLD_HEAD + struct.pack(">ihiii", 1, 0, 1, 0, 61) + bytes(61)),
        (9, NEW_HEAD + b"\xff" * 10),
        (9, NEW_HEAD + b"\0"),
        (9, NEW_HEAD + b"\2\0\1\0\0"),
        (9, NEW_HEAD + b"\1\xff\xff\xff\xff\x0f" + bytes(99)),
        (9, NEW_HEAD + b"\1\1\0\xff\xff\xff\xff\x0f"),
        (9, NEW_HEAD + b"\1"),
        (9, b""),
    ],
)
def test_hostile_requests_are_malformed_and_blamed_on_the_client(version: int, body: bytes) -> None:
    with pytest.raises(MalformedBody) as whole:
        walk.walk_whole(walk.produce_request, body, 0, len(body), version, "client")
    assert whole.value.side == "client"
    feed = walk.BodyFeed(walk.produce_request, version, "client")
    with pytest.raises(MalformedBody) as pieces:  # noqa: PT012 - any of the pieces, or the end, may be the one
        for at in range(len(body)):
            feed.feed(body, at, at + 1)
        feed.finish()
    assert pieces.value.side == "client"


def test_more_partitions_than_the_bound_are_malformed() -> None:
    def body(count: int) -> bytes:
        half = count // 2
        topics = struct.pack(">ihi", 2, 0, half) + struct.pack(">ii", 0, -1) * half
        topics += struct.pack(">hi", 0, count - half) + struct.pack(">ii", 0, -1) * (count - half)
        return OLD_HEAD + topics

    most = body(MAX_PARTITIONS)
    found = walk.walk_whole(walk.produce_request, most, 0, len(most), 7, "client")
    assert len(found.partitions) == MAX_PARTITIONS
    more = body(MAX_PARTITIONS + 1)
    with pytest.raises(MalformedBody, match="200000"):
        walk.walk_whole(walk.produce_request, more, 0, len(more), 7, "client")


@pytest.mark.promise(
    "architecture.md", "A field of Kafka's protocol is read, cut or nonsense, and these are told apart."
)
def test_a_field_is_read_or_cut_or_nonsense() -> None:
    numbers = {b"\0": 0, b"\x7f": 127, b"\x80\1": 128, b"\xff\x7f": 16383, b"\xff\xff\xff\xff\7": 2**31 - 1}
    for data, value in numbers.items():
        assert wire.uvarint(b"-" + data + b"-", 1) == (value, 1 + len(data))
        assert wire.compact_length(b"-" + data + b"-", 1) == (value - 1, 1 + len(data))
    texts = {b"\4abc": b"abc", b"\1": b"", b"\0": None, b"\xac\2" + b"x" * 299: b"x" * 299}
    for data, text in texts.items():
        assert wire.compact_string(data + b"-", 0) == (text, len(data))
    assert [wire.string(data + b"-", 0)[0] for data in (b"\0\3abc", b"\0\0", b"\xff\xff")] == [b"abc", b"", None]
    for reader in (wire.uvarint, wire.compact_length, wire.compact_string, wire.skip_tags):
        with pytest.raises(wire.DecodeError):
            reader(b"\x80" * 10 + b"\x01" + bytes(100), 0)
        for length in range(5):
            with pytest.raises(wire.TRUNCATED):
                reader(b"\x80" * length, 0)
    for reader, data in ((wire.compact_string, b"\4abc"), (wire.string, b"\0\3abc"), (wire.skip_tags, b"\1\5\2xy")):
        assert reader(data, 0) is not None
        for length in range(len(data)):
            with pytest.raises(wire.TRUNCATED):
                reader(data[:length], 0)
    for reader, data in (
        (wire.int16_length, b"\xff\xfe"),
        (wire.string, b"\x80\0"),
        (wire.int32_length, b"\xff\xff\xff\xfe"),
        (wire.compact_string, b"\x81\x80\x02"),  # 32768 bytes
    ):
        with pytest.raises(MalformedBody):
            reader(data + bytes(40_000), 0)


def batch(records=1, *, magic=2, attributes=0, base_offset=0, producer=(-1, -1, -1), payload=b"", length=None) -> bytes:
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
