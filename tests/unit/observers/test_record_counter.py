"""Records inside of compressed message sets are counted exactly, or not at all."""

from __future__ import annotations

import gzip as stdlib_gzip
import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import Codec

from observers import decompress
from observers.decompress import (
    DECODERS,
    LZ4_MAGIC,
    MAX_DECOMPRESSION_STEPS,
    MAX_OUTPUT_BYTES,
    XERIAL_MAGIC,
    DecompressionBudget,
    DecompressionError,
)
from observers.record_counter import count_compressed_records, count_records
from proxy.compiled.exchange import Exchange
from proxy.compiled.walk_door import walk_whole, walker_for_request, walker_for_response
from proxy.core.exchange import ProduceRequest, RecordSet
from tests.frames import batch
from tests.golden.frames import Frame, recordings
from tests.golden.message_sets import MessageSet, message_sets
from tests.tools import messages
from tests.tools.messages import Made, encode
from tests.unit.observers.samples import exchange

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3}

SETS = message_sets()
COMPRESSED = [one for one in SETS if one.codec != "none"]


def counted(data: bytes) -> int | None:
    return count_records(memoryview(data))


def entry(value: bytes | None, magic: int = 1, codec: int = 0, key: bytes | None = None) -> bytes:
    timestamp = struct.pack(">q", 0) if magic else b""
    body = struct.pack(">Ibb", 0, magic, codec) + timestamp
    for one in (key, value):
        body += struct.pack(">i", -1 if one is None else len(one)) + (one or b"")
    return struct.pack(">qi", 0, len(body)) + body


def lz4_frame(*blocks: bytes, flags: int = 0x60, size: int = 4) -> bytes:
    return LZ4_MAGIC + bytes([flags, size << 4, 0]) + b"".join(blocks) + bytes(4)


def plain_block(data: bytes) -> bytes:
    return (len(data) | 1 << 31).to_bytes(4, "little") + data


# ---- counting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("one", SETS, ids=lambda one: f"{one.magic}-{one.codec}-{one.records}")
def test_what_kafka_wrote_is_counted(one: MessageSet) -> None:
    assert counted(one.data) == one.records


@pytest.mark.parametrize("one", COMPRESSED, ids=lambda one: f"{one.magic}-{one.codec}-{one.records}")
def test_several_wrappers_batches_of_every_magic_and_a_cut_one_add_up(one: MessageSet) -> None:
    control = bytearray(batch(1, b"marker"))
    control[22] |= 0x20
    data = one.data + batch(5, b"five") + one.data + entry(b"v", 0) + entry(None) + bytes(control)
    expected = 2 * one.records + 5 + 2
    assert counted(data) == expected
    assert counted(data + one.data[:-1]) == expected
    assert counted(data + one.data[:17]) == expected
    assert counted(data[: len(one.data) - 1]) == 0


@pytest.mark.parametrize("one", COMPRESSED, ids=lambda one: f"{one.magic}-{one.codec}-{one.records}")
def test_a_wrapper_that_lost_bytes_inside_is_not_counted(one: MessageSet) -> None:
    head = 26 if one.magic else 18
    value = one.data[head + 8 :]
    for kept in {0, 1, len(value) // 2, len(value) - 1}:
        assert counted(entry(value[:kept], one.magic, CODECS[one.codec])) is None


def test_what_is_no_wrapper_is_not_counted() -> None:
    inside = stdlib_gzip.compress(entry(b"v"))
    assert counted(entry(inside, codec=1)) == 1
    assert counted(entry(inside, codec=1, key=b"k")) == 1
    assert counted(entry(None, codec=1)) is None
    assert counted(entry(inside, codec=4)) is None  # zstd needs magic 2
    assert counted(entry(inside + b"\0", codec=1)) is None
    assert counted(entry(inside + inside, codec=1)) is None
    assert counted(entry(stdlib_gzip.compress(entry(b"v")[:-1]), codec=1)) is None
    assert counted(entry(stdlib_gzip.compress(entry(b"v") + b"1234567"), codec=1)) is None
    assert counted(entry(stdlib_gzip.compress(batch(3)), codec=1)) is None
    assert counted(bytes(100)) is None
    assert counted(entry(b"v")[:-4] + struct.pack(">i", 99)) == 1  # what is no wrapper is not looked into


def test_a_wrapper_inside_a_wrapper_is_not_counted() -> None:
    inner = entry(stdlib_gzip.compress(entry(b"v")), codec=1)
    assert counted(inner) == 1
    assert counted(entry(stdlib_gzip.compress(inner), codec=1)) is None


def test_nothing_is_counted_as_nothing() -> None:
    assert counted(b"") == 0
    assert counted(entry(stdlib_gzip.compress(b""), codec=1)) == 0


PACKED = {
    1: stdlib_gzip.compress,
    2: lambda data: Codec("snappy").compress(data, asbytes=True),
    3: lambda data: Codec("lz4").compress(data, asbytes=True),
}


@st.composite
def batches(draw: st.DrawFn) -> tuple[bytes, int]:
    """A batch or wrapper of any magic and codec, and its number of records."""
    count = draw(st.integers(0, 6))
    kind = draw(st.sampled_from(["batch", "control", "entry", "wrapper"]))
    if kind in ("batch", "control"):
        data = bytearray(batch(count, b"x" * 9 * count, producer_id=draw(st.sampled_from([-1, 7]))))
        data[22] |= draw(st.integers(0, 0x1F)) | (0x20 if kind == "control" else 0)
        return bytes(data), 0 if kind == "control" else count
    magic, value = draw(st.integers(0, 1)), draw(st.none() | st.binary(max_size=30))
    if kind == "entry":
        return entry(value, magic, key=draw(st.none() | st.binary(max_size=5))), 1
    codec = draw(st.sampled_from(sorted(PACKED)))
    return entry(PACKED[codec](entry(value, magic) * count), magic, codec), count


@settings(max_examples=settings().max_examples * 10, deadline=None)
@given(st.lists(batches(), max_size=6), batches(), st.data())
def test_any_mixture_is_counted_exactly(
    whole: list[tuple[bytes, int]], last: tuple[bytes, int], data: st.DataObject
) -> None:
    cut = last[0][: data.draw(st.integers(0, len(last[0]) - 1))]
    assert counted(b"".join(one for one, _ in whole) + cut) == sum(count for _, count in whole)


# ---- bombs ----------------------------------------------------------------------------------------------------------


def test_what_unpacks_to_a_hundred_times_its_size_is_left_alone() -> None:
    bomb = entry(zlib.compress(bytes(1 << 20), wbits=31), codec=1)
    assert len(bomb) * 100 < 1 << 20
    assert counted(bomb) is None


@pytest.mark.parametrize("codec", ["snappy", "lz4"])
def test_bombs_of_other_codecs_are_left_alone(codec: str) -> None:
    packed = Codec(codec).compress(entry(bytes(8 << 20)), asbytes=True)
    data = entry(packed, codec=CODECS[codec])
    room = DecompressionBudget(len(data)).room
    assert (counted(data) == 1) == (room >= 8 << 20)


def test_the_budget_is_of_the_whole_record_set() -> None:
    one = entry(zlib.compress(entry(bytes(9_000_000)), wbits=31), codec=1)
    filler = entry(bytes(700_000))
    assert DecompressionBudget(len(one + filler)).room == MAX_OUTPUT_BYTES
    assert counted(filler + one) == 2
    assert counted(filler + one * 7) == 8
    assert counted(filler + one * 8) is None


def test_a_set_of_too_many_records_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decompress, "MAX_DECOMPRESSION_STEPS", 50)
    assert MAX_DECOMPRESSION_STEPS > 50
    wrapper = entry(stdlib_gzip.compress(entry(b"") * 40), codec=1)
    assert counted(wrapper) == 40
    assert counted(wrapper * 2) is None
    assert counted(entry(b"") * 50) == 50
    assert counted(entry(b"") * 51) is None


def test_bytes_after_a_gzip_member_are_found_at_once() -> None:
    data = zlib.compress(bytes(3 * decompress.OUTPUT_BLOCK_BYTES + 5), wbits=31) + b"more"
    budget = DecompressionBudget(1 << 20)
    with pytest.raises(DecompressionError):
        list(DECODERS[1](data, budget))
    assert budget.steps > MAX_DECOMPRESSION_STEPS - 20


def test_a_declared_size_is_not_believed() -> None:
    huge = b"\xff\xff\xff\xff\x0f"
    with pytest.raises(DecompressionError):
        list(DECODERS[2](huge + b"\0a", DecompressionBudget(100)))
    with pytest.raises(DecompressionError):
        list(DECODERS[2](XERIAL_MAGIC + bytes(8) + b"\x7f\xff\xff\xff", DecompressionBudget(100)))
    with pytest.raises(DecompressionError):
        list(DECODERS[3](lz4_frame(b"\xff\xff\xff\x7f"), DecompressionBudget(100)))


# ---- decoders -------------------------------------------------------------------------------------------------------

DATA = st.one_of(
    st.binary(max_size=300),
    st.lists(st.sampled_from([b"a", b"bc", b"hello", bytes(20), b"0123456789" * 20]), max_size=60).map(b"".join),
    st.tuples(st.binary(min_size=1, max_size=9), st.integers(1, 30_000)).map(lambda drawn: drawn[0] * drawn[1]),
)


def decompressed(codec: str, data: bytes) -> bytes:
    return b"".join(DECODERS[CODECS[codec]](data, DecompressionBudget(MAX_OUTPUT_BYTES)))


@settings(max_examples=settings().max_examples * 5)
@given(DATA)
def test_what_other_libraries_packed_comes_back(data: bytes) -> None:
    assert decompressed("gzip", stdlib_gzip.compress(data)) == data
    raw = Codec("snappy").compress(data, asbytes=True)
    assert decompressed("snappy", raw) == data
    chunk = struct.pack(">i", len(raw)) + raw
    head = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
    assert decompressed("snappy", head + chunk + chunk + head + chunk) == data * 3
    assert decompressed("lz4", Codec("lz4").compress(data, asbytes=True)) == data


@settings(max_examples=settings().max_examples * 5)
@given(DATA, DATA.filter(lambda data: 0 < len(data) <= 65536))
def test_lz4_blocks_packed_and_plain_with_every_checksum(first: bytes, second: bytes) -> None:
    first = first[:65536]
    packed = Codec("lz4_raw").compress(first, asbytes=True)
    for flags, extra, end in ((0x60, b"", b""), (0x70, b"sum1", b""), (0x74, b"sum1", b"sum2"), (0x40, b"", b"")):
        blocks = [len(packed).to_bytes(4, "little") + packed + extra, plain_block(second) + extra]
        assert decompressed("lz4", lz4_frame(*blocks, flags=flags) + end) == first + second


def test_lz4_blocks_that_refer_to_those_before_them() -> None:
    data = bytes(range(256)) * 1200
    packed = Codec("lz4").compress(data, asbytes=True)
    assert not packed[4] & 0x20
    assert decompressed("lz4", packed) == data
    alone = bytearray(packed)
    alone[4] |= 0x20
    with pytest.raises(DecompressionError):
        decompressed("lz4", bytes(alone))


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        pytest.param("gzip", b"", id="gzip of nothing"),
        pytest.param("gzip", b"\x1f\x8b", id="gzip cut"),
        pytest.param("gzip", b"no gzip at all", id="no gzip"),
        pytest.param("snappy", b"", id="snappy of nothing"),
        pytest.param("snappy", b"\x80", id="snappy's size cut"),
        pytest.param("snappy", b"\x80\x80\x80\x80\x80\x01", id="snappy's size too long"),
        pytest.param("snappy", b"\x02\x04a", id="snappy's literal cut"),
        pytest.param("snappy", b"\x02\xf0", id="snappy's literal length cut"),
        pytest.param("snappy", b"\x01\x04ab", id="more snappy than declared"),
        pytest.param("snappy", b"\x03\x00a", id="less snappy than declared"),
        pytest.param("snappy", b"\x05\x00a\x01\x00", id="snappy's offset 0"),
        pytest.param("snappy", b"\x05\x00a\x01\x02", id="snappy's offset before the start"),
        pytest.param("snappy", b"\x05\x00a\x0e\x01", id="snappy's offset cut"),
        pytest.param("snappy", XERIAL_MAGIC, id="xerial cut"),
        pytest.param("snappy", XERIAL_MAGIC + bytes(8) + b"\0\0\0\2\1", id="xerial chunk cut"),
        pytest.param("lz4", b"", id="lz4 of nothing"),
        pytest.param("lz4", LZ4_MAGIC + b"\x60\x40\0", id="lz4 without an end"),
        pytest.param("lz4", lz4_frame(flags=0x20), id="lz4 of another version"),
        pytest.param("lz4", lz4_frame(flags=0x61), id="lz4 with a dictionary"),
        pytest.param("lz4", lz4_frame(size=3), id="lz4 with unknown blocks"),
        pytest.param("lz4", lz4_frame() + b"x", id="more after lz4"),
        pytest.param("lz4", lz4_frame(flags=0x64), id="lz4's checksum cut"),
        pytest.param("lz4", lz4_frame(plain_block(bytes(65537))), id="lz4's block too large"),
        pytest.param("lz4", lz4_frame(b"\2\0\0\0\x2f\1"), id="lz4's literal cut"),
        pytest.param("lz4", lz4_frame(b"\5\0\0\0\x10a\0\0\0"), id="lz4's offset 0"),
        pytest.param("lz4", lz4_frame(b"\5\0\0\0\x10a\2\0\0"), id="lz4's offset before the start"),
        pytest.param("lz4", lz4_frame(b"\3\0\0\0\x10a\1"), id="lz4's offset cut"),
        pytest.param(
            "lz4", lz4_frame(b"\x09\1\0\0\x1fa\1\0" + b"\xff" * 258 + b"\0\x10a"), id="lz4's block unpacks too far"
        ),
    ],
)
def test_what_cannot_be_unpacked_is_unreadable(codec: str, data: bytes) -> None:
    with pytest.raises(DecompressionError):
        decompressed(codec, data)


@settings(max_examples=settings().max_examples * 10, deadline=None)
@given(st.sampled_from(["gzip", "snappy", "lz4"]), st.sampled_from(COMPRESSED), st.data())
def test_damaged_data_is_unreadable_or_other_data(codec: str, one: MessageSet, data: st.DataObject) -> None:
    value = bytearray(one.data[34 if one.magic else 26 :])
    for _ in range(data.draw(st.integers(0, 3))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    assert (counted(entry(bytes(value), codec=CODECS[codec])) or 0) <= MAX_DECOMPRESSION_STEPS


# ---- facts ----------------------------------------------------------------------------------------------------------


def produced(*sets: bytes, version: int = 2) -> tuple[Exchange, ProduceRequest]:
    parts = [{"index": number, "records": Made(data, RecordSet(0, 0, 0))} for number, data in enumerate(sets)]
    topics = [{"name": b"t%d" % number, "partition_data": [part]} for number, part in enumerate(parts)]
    body = encode(messages.PRODUCE_REQUEST, version, {"acks": 1, "timeout_ms": 9, "topic_data": topics})
    walker = walker_for_request(0, version)
    assert walker is not None
    facts = walk_whole(walker, body, 0, len(body), version, "client")
    assert isinstance(facts, ProduceRequest)
    return exchange(api_key=0, api_version=version, request=facts, request_raw=body), facts


def test_claimed_facts_become_exact() -> None:
    sets = [one for one in SETS if one.records == 7]
    observed, facts = produced(*(one.data for one in sets))
    request, response = count_compressed_records(observed)
    assert response is None
    assert [part.records.records for part in request.partitions] == [7] * len(sets)
    assert not any(part.records.claimed for part in request.partitions)
    for before, after in zip(facts.partitions, request.partitions, strict=True):
        assert (after.topic, after.partition) == (before.topic, before.partition)
        assert (after.records.size, after.records.batches) == (before.records.size, before.records.batches)


def test_what_cannot_be_counted_stays_claimed() -> None:
    good = entry(stdlib_gzip.compress(entry(b"v") * 3), codec=1)
    bad = entry(b"no gzip", codec=1)
    observed, _ = produced(bad, good, bad)
    request, _ = count_compressed_records(observed)
    assert [(part.records.records, part.records.claimed) for part in request.partitions] == [
        (1, True),
        (3, False),
        (1, True),
    ]


def test_without_a_body_or_a_claim_the_facts_stay_what_they_are() -> None:
    observed, facts = produced(entry(stdlib_gzip.compress(entry(b"v") * 3), codec=1))
    observed.request_raw = None
    assert count_compressed_records(observed) == (facts, None)
    observed, facts = produced(entry(b"v"))
    assert count_compressed_records(observed)[0] is observed.request
    assert observed.request == facts
    assert count_compressed_records(exchange()) == (None, None)


@pytest.mark.parametrize("name", ["kafka-python-as-0.10-consume-gzip", "kafka-python-as-0.10-produce-gzip"])
def test_recorded_wrappers_are_counted_as_the_client_did(name: str) -> None:
    [recording] = [one for one in recordings() if one.name == name]
    total = 0
    for frame in recording.frames:
        find = walker_for_request if frame.kind == "request" else walker_for_response
        walker = find(frame.key, frame.version)
        assert walker is not None
        total += moved(frame)
    words = recording.provenance.split()
    assert total == int(words[words.index("records") - 1])


def moved(frame: Frame) -> int:
    """Records of one frame, counted deeply."""
    observed = exchange(
        api_key=frame.key,
        api_version=frame.version,
        **{frame.kind: frame.facts(), f"{frame.kind}_raw": frame.data[frame.body() :]},
    )
    facts = count_compressed_records(observed)[0 if frame.kind == "request" else 1]
    sets = [part.records for part in facts.partitions if hasattr(part, "records")]
    assert not any(one.claimed for one in sets)
    return sum(one.records for one in sets)
