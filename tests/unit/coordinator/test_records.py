"""The records of ``__brokerside_groups``, as bytes."""

from collections import Counter

import pytest

from proxy.coordinator import records

MEMBER = records.MemberValue('{"t":2}', True, "smallest", 6000, 1, "app", "User:alice", "CLIENT")

GOLDEN: list[tuple[bytes, records.ClaimRecord | records.GroupRecord, bytes | None]] = [
    (b"coordinator/7", records.ClaimRecord(7, 3, 1, "boot"), b'{"version":1,"claim":3,"broker_id":1,"boot_id":"boot"}'),
    (
        b"g/registry",
        records.GenerationRecord("g", records.GenerationValue(7, "starting", 1)),
        b'{"version":1,"generation":7,"state":"starting","level":1}',
    ),
    (
        b"g/ids/c1",
        records.MemberRecord("g", "c1", MEMBER),
        (
            b'{"version":1,"topic_count":"{\\"t\\":2}","auto_commit":true,"auto_offset_reset":"smallest",'
            b'"session_timeout_ms":6000,"protocol_level":1,"client_id":"app","principal":"User:alice",'
            b'"listener":"CLIENT"}'
        ),
    ),
    (
        b"g/owners/t",
        records.OwnersRecord("g", "t", records.OwnersValue(7, "AbC", {"c1-0": (0, 1), "c1-1": (2,)})),
        b'{"version":1,"generation":7,"topic_id":"AbC","owners":{"c1-0":[0,1],"c1-1":[2]}}',
    ),
    (b"g/registry", records.GenerationRecord("g", None), None),
    (b"g/ids/c1", records.MemberRecord("g", "c1", None), None),
    (b"g/owners/t", records.OwnersRecord("g", "t", None), None),
    (b"coordinator/registry", records.GenerationRecord("coordinator", None), None),
    (b"coordinator/ids/7", records.MemberRecord("coordinator", "7", None), None),
    (b"a%2Fb%25%20%C3%A9/ids/..%2F%0A", records.MemberRecord("a/b% é", "../\n", None), None),
    (b"/ids/", records.MemberRecord("", "", None), None),
]

NO_VALUES: list[tuple[bytes, bytes]] = [
    *(
        (b"g/registry", value)
        for value in (
            b"",
            b"{}",
            b'{"version":0,"generation":7,"state":"stable","level":1}',
            b'{"version":1,"generation":0,"state":"stable","level":1}',
            b'{"version":1,"generation":2147483648,"state":"stable","level":1}',
            b'{"version":1,"generation":7,"state":"failed","level":1}',
            b'{"version":1,"generation":7,"state":"stable"}',
            b'{"version":1,"generation":7,"state":"stable","level":1',
            b'{"version":1,"x":' + b"[" * 100_000,
            b"\xff",
        )
    ),
    (b"g/owners/t", b'{"version":1,"generation":7,"topic_id":"AbC","owners":{"c1-0":[-1]}}'),
    (b"coordinator/7", b'{"version":1,"claim":0,"broker_id":1,"boot_id":"boot"}'),
]

NO_KEYS = (
    *(b"", b"g", b"g/", b"g/ids", b"g/later/x", b"g/registry/", b"g/ids/a/b", b"a b/registry", b"a%2fb/registry"),
    *(b"%ff/registry", b"\xff/registry", b"coordinator/", b"coordinator/07", b"coordinator/-1"),
)

TWO_OWNERS = b'{"version":1,"generation":7,"topic_id":"AbC","owners":{"c1-0":[0,1],"c1-1":[1]}}'


def why_unreadable(key: bytes, value: bytes | None) -> str:
    """What is said of a record; empty if it can be read."""
    try:
        records.decode_record(key, value)
    except records.UnreadableRecord as error:
        return str(error) if error.key == key else f"key {error.key!r}"
    return ""


def test_records_are_these_bytes() -> None:
    for key, record, value in GOLDEN:
        assert (records.encode_key(record), records.encode_value(record)) == (key, value)
        found = records.decode_record(key, value)
        assert (type(found), found) == (type(record), record)
    later = b'{"later":{"x":[1]},"version":1,"level":2,"state":"stable","generation":1}'
    assert records.decode_record(b"g/registry", later) == records.GenerationRecord(
        "g", records.GenerationValue(1, "stable", 2)
    )


def test_what_is_no_record_is_named() -> None:
    for key, value in NO_VALUES:
        said = why_unreadable(key, value)
        assert "not as defined" in said, (key, value[:80])
        assert repr(key.decode()) in said, (key, value[:80])
    for key in NO_KEYS:
        assert "a key that no sidecar writes" in why_unreadable(key, None), key
    later = "record 'g/registry' of __brokerside_groups: version 2 is later than 1"
    assert later in why_unreadable(b"g/registry", b'{"version":2,"state":{}}')
    assert "two owners" in why_unreadable(b"g/owners/t", TWO_OWNERS)
    assert "a claim without a value" in why_unreadable(b"coordinator/7", None)
    cut = why_unreadable(b"\n" + b"k" * 10_000, None)
    assert 0 < len(cut) < 500
    assert "\n" not in cut


@pytest.mark.promise("coordinator.md", "Groups are spread over the partitions by `crc32(group id) mod 12`.")
def test_a_group_belongs_to_the_crc32_of_its_id() -> None:
    assert records.partition_of("123456789", 12) == 0xCBF43926 % 12
    assert records.partition_of("é", 12) == 0x0E048D3E % 12
    held = Counter(records.partition_of(f"group-{number}", 12) for number in range(300))
    assert len(held) == 12
    by_sidecar = Counter(partition % 3 for partition in held.elements())
    assert all(60 <= count <= 140 for count in by_sidecar.values()), "three sidecars hold four partitions each"
