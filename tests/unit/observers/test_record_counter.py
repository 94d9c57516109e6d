"""Records inside of compressed message sets are counted exactly, or not at all."""

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
from proxy.compiled.walk_door import walk_whole, walker_for_request
from proxy.core.exchange import ProduceRequest, RecordSet
from tests.frames import batch
from tests.golden.frames import message_sets
from tests.tools import messages
from tests.tools.messages import Made, encode
from tests.unit.observers.samples import exchange

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3}

SETS = message_sets()


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


@pytest.mark.promise("consumed-records.md", "With observer.records.deep old compressed sets are counted exactly.")
def test_what_kafka_wrote_is_counted() -> None:
    control = bytearray(batch(1, b"marker"))
    control[22] |= 0x20
    for one in SETS:
        assert counted(one.data) == one.records, one
        if one.codec == "none":
            continue
        data = one.data + batch(5, b"five") + one.data + entry(b"v", 0) + entry(None) + bytes(control)
        expected = 2 * one.records + 5 + 2
        assert counted(data) == counted(data + one.data[:-1]) == counted(data + one.data[:17]) == expected, one
        assert counted(data[: len(one.data) - 1]) == 0, one


def test_what_is_no_wrapper_is_not_counted() -> None:
    inside = stdlib_gzip.compress(entry(b"v"))
    wrapper = entry(inside, codec=1)
    for data, count in (
        (b"", 0),
        (wrapper, 1),
        (entry(inside, codec=1, key=b"k"), 1),
        (entry(stdlib_gzip.compress(b""), codec=1), 0),
        (entry(b"v")[:-4] + struct.pack(">i", 99), 1),  # what is no wrapper is not looked into
        (entry(None, codec=1), None),
        (entry(inside, codec=4), None),  # zstd needs magic 2
        (entry(inside + b"\0", codec=1), None),
        (entry(inside + inside, codec=1), None),
        (entry(stdlib_gzip.compress(entry(b"v")[:-1]), codec=1), None),
        (entry(stdlib_gzip.compress(entry(b"v") + b"1234567"), codec=1), None),
        (entry(stdlib_gzip.compress(batch(3)), codec=1), None),
        (entry(stdlib_gzip.compress(wrapper), codec=1), None),  # a wrapper inside
        (bytes(100), None),
    ):
        assert counted(data) == count, data


# ---- bombs ----------------------------------------------------------------------------------------------------------


def test_bombs_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What unpacks to a hundred times its size."""
    bomb = entry(zlib.compress(bytes(1 << 20), wbits=31), codec=1)
    assert len(bomb) * 100 < 1 << 20
    assert counted(bomb) is None
    for codec in ("snappy", "lz4"):
        packed = Codec(codec).compress(entry(bytes(8 << 20)), asbytes=True)
        data = entry(packed, codec=CODECS[codec])
        assert (counted(data) == 1) == (DecompressionBudget(len(data)).room >= 8 << 20), codec
    # The budget is of the whole record set.
    one = entry(zlib.compress(entry(bytes(9_000_000)), wbits=31), codec=1)
    filler = entry(bytes(700_000))
    assert DecompressionBudget(len(one + filler)).room == MAX_OUTPUT_BYTES
    assert counted(filler + one) == 2
    assert counted(filler + one * 7) == 8
    assert counted(filler + one * 8) is None
    # A set of too many records is left alone.
    monkeypatch.setattr(decompress, "MAX_DECOMPRESSION_STEPS", 50)
    assert MAX_DECOMPRESSION_STEPS > 50
    wrapper = entry(stdlib_gzip.compress(entry(b"") * 40), codec=1)
    assert counted(wrapper) == 40
    assert counted(wrapper * 2) is None
    assert counted(entry(b"") * 50) == 50
    assert counted(entry(b"") * 51) is None


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


def test_what_cannot_be_unpacked_is_unreadable() -> None:
    for codec, data, what in (
        ("gzip", b"\x1f\x8b", "gzip cut"),
        ("snappy", b"\x80\x80\x80\x80\x80\x01", "snappy's size too long"),
        ("snappy", b"\x02\x04a", "snappy's literal cut"),
        ("snappy", b"\x01\x04ab", "more snappy than declared"),
        ("snappy", b"\x03\x00a", "less snappy than declared"),
        ("snappy", b"\x05\x00a\x01\x00", "snappy's offset 0"),
        ("snappy", b"\x05\x00a\x01\x02", "snappy's offset before the start"),
        ("snappy", b"\xff\xff\xff\xff\x0f\0a", "snappy's declared size is not believed"),
        ("snappy", XERIAL_MAGIC + bytes(8) + b"\0\0\0\2\1", "xerial chunk cut"),
        ("snappy", XERIAL_MAGIC + bytes(8) + b"\x7f\xff\xff\xff", "xerial's declared size"),
        ("lz4", LZ4_MAGIC + b"\x60\x40\0", "lz4 without an end"),
        ("lz4", lz4_frame(flags=0x61), "lz4 with a dictionary"),
        ("lz4", lz4_frame() + b"x", "more after lz4"),
        ("lz4", lz4_frame(plain_block(bytes(65537))), "lz4's block too large"),
        ("lz4", lz4_frame(b"\xff\xff\xff\x7f"), "lz4's declared size"),
        ("lz4", lz4_frame(b"\2\0\0\0\x2f\1"), "lz4's literal cut"),
        ("lz4", lz4_frame(b"\5\0\0\0\x10a\0\0\0"), "lz4's offset 0"),
        ("lz4", lz4_frame(b"\5\0\0\0\x10a\2\0\0"), "lz4's offset before the start"),
        ("lz4", lz4_frame(b"\x09\1\0\0\x1fa\1\0" + b"\xff" * 258 + b"\0\x10a"), "lz4's block unpacks too far"),
    ):
        try:
            unpacked = b"".join(DECODERS[CODECS[codec]](data, DecompressionBudget(1000)))
        except DecompressionError:
            continue
        raise AssertionError((what, unpacked))


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


def test_claimed_facts_become_exact_and_what_cannot_be_counted_stays_claimed() -> None:
    sets = [one for one in SETS if one.records == 7]
    observed, facts = produced(*(one.data for one in sets))
    request, response = count_compressed_records(observed)
    assert response is None
    assert [(part.records.records, part.records.claimed) for part in request.partitions] == [(7, False)] * len(sets)
    for before, after in zip(facts.partitions, request.partitions, strict=True):
        assert (after.topic, after.partition) == (before.topic, before.partition)
        assert (after.records.size, after.records.batches) == (before.records.size, before.records.batches)
    good, bad = entry(stdlib_gzip.compress(entry(b"v") * 3), codec=1), entry(b"no gzip", codec=1)
    request, _ = count_compressed_records(produced(bad, good, bad)[0])
    counts = [(part.records.records, part.records.claimed) for part in request.partitions]
    assert counts == [(1, True), (3, False), (1, True)]
    observed, facts = produced(good)
    observed.request_raw = None
    assert count_compressed_records(observed) == (facts, None), "without a body"
    observed, facts = produced(entry(b"v"))
    assert count_compressed_records(observed)[0] is observed.request == facts, "without a claim"
    assert count_compressed_records(exchange()) == (None, None)
