import pytest

from proxy.core import wire
from proxy.core.wire import DecodeError
from proxy.errors import MalformedBody
from tests.cases import each


@each(
    ("data", "value"),
    [
        (b"\x00", 0),
        (b"\x7f", 127),
        (b"\x80\x01", 128),
        (b"\xff\x7f", 16383),
        (b"\x80\x80\x01", 16384),
        (b"\xff\xff\xff\xff\x07", 2**31 - 1),
    ],
)
def test_uvarint_reads_one_to_five_bytes(data: bytes, value: int) -> None:
    assert wire.uvarint(b"-" + data + b"-", 1) == (value, 1 + len(data))
    assert wire.compact_length(b"-" + data + b"-", 1) == (value - 1, 1 + len(data))


@pytest.mark.promise(
    "architecture.md", "A field of Kafka's protocol is read, cut or nonsense, and these are told apart."
)
@each("reader", [wire.uvarint, wire.compact_length, wire.compact_string, wire.skip_tags])
def test_a_varint_of_more_than_five_bytes_is_nonsense_and_a_cut_one_is_truncated(reader) -> None:
    with pytest.raises(DecodeError):
        reader(b"\x80" * 10 + b"\x01" + bytes(100), 0)
    for length in range(5):
        with pytest.raises(wire.TRUNCATED):
            reader(b"\x80" * length, 0)


def test_strings_of_both_encodings() -> None:
    assert wire.compact_string(b"\x04abc-", 0) == (b"abc", 4)
    assert wire.compact_string(b"\x01-", 0) == (b"", 1)
    assert wire.compact_string(b"\x00-", 0) == (None, 1)
    assert wire.compact_string(b"\xac\x02" + b"x" * 299 + b"-", 0) == (b"x" * 299, 301)
    assert wire.compact_string(b"\x7f" + b"x" * 126, 0) == (b"x" * 126, 127)
    assert wire.string(b"\0\3abc-", 0) == (b"abc", 5)
    assert wire.string(b"\0\0-", 0) == (b"", 2)
    assert wire.string(b"\xff\xff-", 0) == (None, 2)


@each(
    ("reader", "data"),
    [
        (wire.compact_string, b"\x04abc"),
        (wire.compact_string, b"\x81\x01" + b"x" * 128),
        (wire.string, b"\0\3abc"),
        (wire.skip_tags, b"\1\5\2xy"),
    ],
)
def test_every_proper_prefix_is_truncated(reader, data: bytes) -> None:
    reader(data, 0)
    for length in range(len(data)):
        with pytest.raises(wire.TRUNCATED):
            reader(data[:length], 0)


@each(
    ("reader", "data"),
    [
        (wire.int16_length, b"\xff\xfe"),
        (wire.string, b"\x80\0"),
        (wire.int32_length, b"\xff\xff\xff\xfe"),
        (wire.compact_string, b"\x81\x80\x02"),  # 32768 bytes
    ],
)
def test_lengths_that_no_writer_writes_are_nonsense(reader, data: bytes) -> None:
    with pytest.raises(MalformedBody):
        reader(data + bytes(40_000), 0)


def test_skip_tags_passes_known_and_unknown_fields() -> None:
    assert wire.skip_tags(b"-\0-", 1) == 2
    assert wire.skip_tags(b"-\2\0\1a\x80\x01\3bcd-", 1) == 11
