"""The records of ``__brokerside_groups``, as bytes."""

from __future__ import annotations

from collections import Counter

import pytest

from proxy.coordinator.records import (
    ClaimRecord,
    GenerationRecord,
    GenerationValue,
    GroupRecord,
    MemberRecord,
    MemberValue,
    OwnersRecord,
    OwnersValue,
    UnreadableRecord,
    decode_record,
    encode_key,
    encode_value,
    partition_of,
)

MEMBER = MemberValue('{"t":2}', True, "smallest", 6000, 1, "app", "User:alice", "CLIENT")

GOLDEN: list[tuple[bytes, ClaimRecord | GroupRecord, bytes | None]] = [
    (
        b"coordinator/7",
        ClaimRecord(7, 3, 1, "boot"),
        b'{"version":1,"claim":3,"broker_id":1,"boot_id":"boot"}',
    ),
    (
        b"g/registry",
        GenerationRecord("g", GenerationValue(7, "starting", 1)),
        b'{"version":1,"generation":7,"state":"starting","level":1}',
    ),
    (
        b"g/ids/c1",
        MemberRecord("g", "c1", MEMBER),
        (
            b'{"version":1,"topic_count":"{\\"t\\":2}","auto_commit":true,"auto_offset_reset":"smallest",'
            b'"session_timeout_ms":6000,"protocol_level":1,"client_id":"app","principal":"User:alice",'
            b'"listener":"CLIENT"}'
        ),
    ),
    (
        b"g/owners/t",
        OwnersRecord("g", "t", OwnersValue(7, "AbC", {"c1-0": (0, 1), "c1-1": (2,)})),
        b'{"version":1,"generation":7,"topic_id":"AbC","owners":{"c1-0":[0,1],"c1-1":[2]}}',
    ),
    (b"g/registry", GenerationRecord("g", None), None),
    (b"g/ids/c1", MemberRecord("g", "c1", None), None),
    (b"g/owners/t", OwnersRecord("g", "t", None), None),
    (b"coordinator/registry", GenerationRecord("coordinator", None), None),
    (b"coordinator/ids/7", MemberRecord("coordinator", "7", None), None),
    (b"a%2Fb%25%20%C3%A9/ids/..%2F%0A", MemberRecord("a/b% é", "../\n", None), None),
    (b"/ids/", MemberRecord("", "", None), None),
]


@pytest.mark.parametrize(("key", "record", "value"), GOLDEN)
def test_records_are_these_bytes(key: bytes, record: ClaimRecord | GroupRecord, value: bytes | None) -> None:
    assert (encode_key(record), encode_value(record)) == (key, value)
    found = decode_record(key, value)
    assert (type(found), found) == (type(record), record)


def test_fields_of_later_releases_are_passed_over() -> None:
    value = b'{"later":{"x":[1]},"version":1,"level":2,"state":"stable","generation":1}'
    assert decode_record(b"g/registry", value) == GenerationRecord("g", GenerationValue(1, "stable", 2))


def test_a_record_of_a_later_version_is_named() -> None:
    with pytest.raises(
        UnreadableRecord, match=r"record 'g/registry' of __brokerside_groups: version 2 is later than 1"
    ):
        decode_record(b"g/registry", b'{"version":2,"state":{}}')


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"g/registry", b""),
        (b"g/registry", b"{}"),
        (b"g/registry", b'{"version":0,"generation":7,"state":"stable","level":1}'),
        (b"g/registry", b'{"version":1,"generation":0,"state":"stable","level":1}'),
        (b"g/registry", b'{"version":1,"generation":2147483648,"state":"stable","level":1}'),
        (b"g/registry", b'{"version":1,"generation":7,"state":"failed","level":1}'),
        (b"g/registry", b'{"version":1,"generation":7,"state":"stable"}'),
        (b"g/registry", b'{"version":1,"generation":7,"state":"stable","level":1'),
        (b"g/registry", b'{"version":1,"x":' + b"[" * 100_000),
        (b"g/registry", b"\xff"),
        (b"g/owners/t", b'{"version":1,"generation":7,"topic_id":"AbC","owners":{"c1-0":[-1]}}'),
        (b"coordinator/7", b'{"version":1,"claim":0,"broker_id":1,"boot_id":"boot"}'),
    ],
)
def test_a_value_that_is_none_is_named(key: bytes, value: bytes) -> None:
    with pytest.raises(UnreadableRecord, match="not as defined") as error:
        decode_record(key, value)
    assert error.value.key == key
    assert repr(key.decode()) in str(error.value)


def test_a_partition_with_two_owners_is_refused() -> None:
    value = b'{"version":1,"generation":7,"topic_id":"AbC","owners":{"c1-0":[0,1],"c1-1":[1]}}'
    with pytest.raises(UnreadableRecord, match="two owners"):
        decode_record(b"g/owners/t", value)


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"g",
        b"g/",
        b"g/ids",
        b"g/later/x",
        b"g/registry/",
        b"g/ids/a/b",
        b"a b/registry",
        b"a%2fb/registry",
        b"%ff/registry",
        b"\xff/registry",
        b"coordinator/",
        b"coordinator/07",
        b"coordinator/-1",
    ],
)
def test_a_key_that_is_none_is_named(key: bytes) -> None:
    with pytest.raises(UnreadableRecord, match="a key that no sidecar writes"):
        decode_record(key, None)


def test_a_claim_has_no_tombstone() -> None:
    with pytest.raises(UnreadableRecord, match="a claim without a value"):
        decode_record(b"coordinator/7", None)


def test_a_long_key_is_cut_in_the_text() -> None:
    with pytest.raises(UnreadableRecord) as error:
        decode_record(b"\n" + b"k" * 10_000, None)
    assert len(str(error.value)) < 500
    assert "\n" not in str(error.value)


def test_a_group_belongs_to_the_crc32_of_its_id() -> None:
    assert partition_of("123456789", 12) == 0xCBF43926 % 12
    assert {partition_of(f"group-{number}", 12) for number in range(200)} == set(range(12))
    assert partition_of("é", 12) == 0x0E048D3E % 12


def test_groups_are_spread_evenly_over_three_sidecars() -> None:
    """S1-06; each holds four of the twelve partitions, as their leaders are spread."""
    held = Counter(partition_of(f"group-{number}", 12) % 3 for number in range(300))
    assert all(60 <= count <= 140 for count in held.values())
