"""The registry's records: what a sidecar writes, what is read of what others write, and who runs."""

import json

import pytest
from msgspec import structs

from proxy.config.values import INT32_MAX
from proxy.features.records import ReaderRecord, SupportedRange, reader_key
from proxy.features.records import encode as encode_reader
from proxy.fleet.membership import MEMBER_DEAD_AFTER_MS, Membership
from proxy.fleet.sidecar_record import (
    MAX_ENDPOINTS,
    MAX_RECORD,
    SidecarRecord,
    decode,
    encode,
    node_id_of_key,
    record_key,
)
from proxy.fleet.topic_spec import TopicRecord

RECORD = SidecarRecord(
    listener_security_protocol_map={"CLIENT": "PLAINTEXT"},
    endpoints=("CLIENT://kafka-2.example:9092", "V6://[fd00::7]:9093", "broken"),
    host="kafka-2.example",
    port=9092,
    timestamp="1579041366882",
    protocol_version_min=40,
    protocol_version_max=77,
    tags={"rack": "r8a9"},
)

REGISTRATION = {
    "listener_security_protocol_map": {"INTERNAL": "PLAINTEXT", "REPLICATION": "PLAINTEXT", "EXTERNAL": "SASL_SSL"},
    "endpoints": ["INTERNAL://kafka0:9071", "REPLICATION://kafka0:9072", "EXTERNAL://kafka0:9092"],
    "rack": "0",
    "jmx_port": 7203,
    "host": "kafka0",
    "timestamp": "1579041366882",
    "port": 9071,
    "version": 5,
    "features": {
        "group_coordinator": {"min_version": 1, "max_version": 3},
        "transaction_coordinator": {"min_version": 1, "max_version": 4},
    },
}
"""A broker's registration in ZooKeeper, as KIP-584 shows it."""


def test_a_broker_s_registration_is_one():
    found = decode(json.dumps(REGISTRATION).encode())
    assert found.features == {
        "group_coordinator": SupportedRange(1, 3),
        "transaction_coordinator": SupportedRange(1, 4),
    }
    assert found.addresses["external"] == ("kafka0", 9092)
    assert (found.protocol_version_min, found.tags) == (-1, {})
    written = json.loads(encode(RECORD))
    assert written.keys() >= REGISTRATION.keys()
    assert (written["version"], written["jmx_port"], written["timestamp"]) == (5, -1, "1579041366882")
    assert decode(encode(RECORD)) == RECORD
    assert RECORD.addresses == {"client": ("kafka-2.example", 9092), "v6": ("fd00::7", 9093)}


def test_what_no_sidecar_wrote_or_does_not_fit_into_a_response_is_no_record():
    for value in [b"", b"{}", b"[]", b"\xff", b"x" * 1_000_001, b'{"x":' + b"[" * 200_000]:
        assert decode(value) is None, value
    for change in [
        {"port": "x"},
        {"protocol_version_min": 2**70},
        {"protocol_version_max": INT32_MAX + 1},
        {"protocol_version_max": -2},
        {"port": 65_536},
        {"metrics_port": -2},
        {"host": "kafka 2"},
        {"host": "kafka\n"},
        {"host": "x" * 256},
        {"timestamp": "1" * 5000},
        {"features": {"one": {"min_version": 1, "max_version": 2**40}}},
        {"endpoints": ["A://a:1"] * (MAX_ENDPOINTS + 1)},
        {"tags": {"rack": "x" * 5000}},
        {"tags": {"rack": "\ud800"}},
    ]:
        assert decode(json.dumps({**REGISTRATION, **change}).encode()) is None, change
    wrong = ["A://a:0", "A://a:99999", "A://a b:1", "A://a\x07:1", f"A://{'x' * 256}:1", "A://[f\n]:1", "A B://a:1"]
    record = decode(json.dumps({**REGISTRATION, "endpoints": [*wrong, "B://b:65535"]}).encode())
    assert record.addresses == {"b": ("b", 65_535)}, "what is no address is left out"
    assert node_id_of_key(record_key(7)) == 7
    for key in ("sidecar/", "sidecar/x", "sidecar/-1", "sidecar/01", "reader/1", "\xff", "sidecar/2147483648"):
        assert node_id_of_key(key.encode("latin-1")) is None, key


def test_the_longest_record_that_is_written_is_read():
    tags = {f"{number:0>249}": "\x01" * 1024 for number in range(100)}
    listeners = {f"{number:0>100}": "SASL_PLAINTEXT" for number in range(MAX_ENDPOINTS)}
    ends = tuple(f"{name}://{'x' * 253}:65535" for name in listeners)
    record = SidecarRecord(listeners, ends, "x" * 253, 65_535, "1", tags=tags | {"endpoints": "x" * 4096})
    assert len(encode(record)) < MAX_RECORD
    assert decode(encode(record)) == record


def alive(membership: Membership) -> dict[int, bool]:
    return {node: one.alive for node, one in membership.content().sidecars.items()}


def written(node: int, at: int | None, value: bytes | None = b"") -> TopicRecord:
    return TopicRecord(record_key(node), encode(RECORD) if value == b"" else value, at)


class TestWhoRuns:
    @pytest.mark.promise(
        "features.md",
        "A sidecar counts as one that runs while its last record is at most nine seconds older than the newest.",
    )
    def test_whoever_wrote_within_nine_seconds_of_the_newest_record(self):
        membership = Membership()
        membership.apply([written(1, 1000), written(2, 1000)])
        assert alive(membership) == {1: True, 2: True}
        membership.apply([written(1, 1000 + MEMBER_DEAD_AFTER_MS)])
        assert alive(membership) == {1: True, 2: True}
        membership.apply([written(1, 1001 + MEMBER_DEAD_AFTER_MS)])
        assert alive(membership) == {1: True, 2: False}
        membership.apply([written(2, 1002 + MEMBER_DEAD_AFTER_MS)])
        assert alive(membership) == {1: True, 2: True}

    def test_nonsense_changes_nothing_and_has_the_time_but_no_other_key_or_clock_has(self):
        membership = Membership()
        membership.apply([written(1, 1000), written(1, 1001, b"junk"), TopicRecord(b"hint/metadata", b"", 1002)])
        assert alive(membership) == {1: True}
        late = 2000 + MEMBER_DEAD_AFTER_MS
        for key, value, at in (
            (b"other", b"", late),
            (b"sidecar/2147483648", None, late),
            (record_key(2), b"junk", None),
        ):
            membership.apply([TopicRecord(key, value, at)])
            assert alive(membership) == {1: True}, key
        membership.apply([written(2, late, b"junk")])
        assert alive(membership) == {1: False}

    def test_those_that_the_cluster_does_not_have_or_that_are_too_many_are_dropped(self, monkeypatch):
        membership = Membership()
        membership.apply([written(1, 1000), written(2, 1000)])
        membership.brokers = {1, 3}
        membership.apply([written(2, 1001), written(3, 1001), written(4, 1001, None)])
        assert alive(membership) == {1: True, 3: True}
        assert membership.dropped == {"unknown_broker": 2}
        monkeypatch.setattr("proxy.fleet.membership.MAX_MEMBERS", 2)
        membership = Membership()
        membership.apply([written(1, 1000), written(2, 1001), written(1, 1002), written(3, 1003)])
        assert (alive(membership), membership.dropped) == ({1: True, 2: True}, {"too_much": 1})
        membership.apply([written(2, 1004, None), written(3, 1005)])
        assert alive(membership) == {1: True, 3: True}, "a deleted record is gone"
        large = encode(SidecarRecord({}, (), None, -1, "1", tags={"a": "x" * 1000}))
        monkeypatch.setattr("proxy.fleet.membership.MAX_MEMBER_BYTES", 2 * len(large))
        membership = Membership()
        membership.apply([written(1, 1000, large), written(2, 1000, large), written(3, 1000, large)])
        assert (alive(membership), membership.dropped) == ({1: True, 2: True}, {"too_much": 1})
        membership.apply([written(1, 1001, large.replace(b"x", b"y")), written(2, 1001, None), written(3, 1002, large)])
        assert (alive(membership), membership.dropped) == ({1: True, 3: True}, {"too_much": 1})

    @pytest.mark.promise(
        "features.md", "A sidecar that says that it stops does not run at once, and is remembered as a participant."
    )
    def test_one_that_says_that_it_stops_does_not_run_at_once_and_is_remembered(self):
        membership = Membership()
        stopped = encode(structs.replace(RECORD, state="stopped"))
        membership.apply([written(1, 1000), written(2, 1000), written(2, 1001, stopped)])
        assert alive(membership) == {1: True, 2: False}
        membership.apply([written(2, 1002)])
        assert alive(membership) == {1: True, 2: True}


READER = ReaderRecord({"brokerside.audit.event.schema": SupportedRange(1, 1)}, started=5)


def read(name: str, at: int, record: ReaderRecord | None = READER) -> TopicRecord:
    return TopicRecord(reader_key(name), None if record is None else encode_reader(record), at)


def readers(membership: Membership) -> dict[str, bool]:
    return {name: one.alive for name, one in membership.content().readers.items()}


class TestReaders:
    def test_they_are_beside_sidecars_with_the_same_clock_and_bounds_of_their_own(self, monkeypatch):
        monkeypatch.setattr("proxy.fleet.membership.MAX_READERS", 2)
        membership = Membership()
        membership.brokers = {1}
        membership.apply([read("a", 1), read("7", 1), read("c", 1), read("a", 2), written(1, 2), written(7, 2)])
        assert (readers(membership), alive(membership)) == ({"a": True, "7": True}, {1: True})
        assert membership.content().seen == {"sidecar/1": 2, "reader/a": 2, "reader/7": 1}
        assert membership.dropped == {"too_much": 1, "unknown_broker": 1}
        membership.apply([read("7", 3, structs.replace(READER, state="stopped")), read("a", 3, None)])
        assert readers(membership) == {"7": False}
        membership.apply([read("a", 4), written(1, 5 + MEMBER_DEAD_AFTER_MS)])
        assert readers(membership) == {"7": False, "a": False}
        monkeypatch.setattr("proxy.fleet.membership.MAX_READER_BYTES", len(encode_reader(READER)))
        membership = Membership()
        membership.apply([read("a", 1), read("b", 1)])
        assert membership.dropped == {"too_much": 1}

    def test_what_is_no_reader_is_dropped(self):
        membership = Membership()
        wrong = (b"reader/", b"reader/a b", b"reader/" + b"x" * 129)
        membership.apply([TopicRecord(key, encode_reader(READER), 1) for key in wrong])
        membership.apply([TopicRecord(reader_key("a"), b"junk", 1)])
        assert membership.dropped == {"key": 3, "malformed": 1}

    @pytest.mark.promise("security.md", "With keys, an earlier record of a job that is written again is ignored.")
    def test_an_earlier_run_of_one_that_runs_is_a_replay_where_records_are_signed(self):
        membership = Membership(signed=True)
        membership.apply([read("a", 1), read("a", 2, structs.replace(READER, started=4, state="stopped"))])
        assert (readers(membership), membership.dropped) == ({"a": True}, {"repeated": 1})
