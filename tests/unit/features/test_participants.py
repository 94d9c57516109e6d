"""Who has to agree on levels, from records of the registry."""

from __future__ import annotations

from proxy.features.catalog import AUDIT_EVENT_SCHEMA, QUOTA_IP, LevelRange
from proxy.features.participants import reader, sidecar
from proxy.features.records import ReaderRecord, SupportedRange, decode_reader


def test_a_sidecar() -> None:
    one = sidecar(3, "0.1.0", {QUOTA_IP: SupportedRange(1, 2)}, running=True, applied_epoch=7, last_seen_ms=5)
    assert (one.name, one.label, one.broker_id, one.release) == ("sidecar/3", "sidecar 3", 3, "0.1.0")
    assert one.supported == {QUOTA_IP: LevelRange(1, 2)}
    assert (one.running, one.applied_epoch, one.last_seen_ms) == (True, 7, 5)
    assert one.takes_part(QUOTA_IP)
    assert one.takes_part(AUDIT_EVENT_SCHEMA)


def test_a_range_that_cannot_be_is_no_support() -> None:
    features = {
        "a": SupportedRange(2, 1),
        "b": SupportedRange(0, 1),
        "c": SupportedRange(-1, -1),
        "d": SupportedRange(1, 1),
    }
    assert sidecar(1, "", features, running=True).supported == {"d": LevelRange(1, 1)}
    record = decode_reader(b'{"features":{"brokerside.audit.event.schema":{"min_version":0,"max_version":1}}}')
    assert record is not None
    one = reader("a", record, alive=True)
    assert one is not None
    assert one.supported == {}


def test_a_reader_takes_part_in_what_readers_read() -> None:
    one = reader("tables-1", ReaderRecord({AUDIT_EVENT_SCHEMA: SupportedRange(1, 2)}, software="0.1.0"), alive=True)
    assert one is not None
    assert (one.name, one.label, one.broker_id, one.running) == ("reader/tables-1", "reader tables-1", None, True)
    assert one.takes_part(AUDIT_EVENT_SCHEMA)
    assert not one.takes_part(QUOTA_IP)


def test_of_a_reader_only_the_features_that_readers_read_are_looked_at() -> None:
    many = {f"f{number}": SupportedRange(1, 1) for number in range(900)}
    one = reader("a", ReaderRecord({**many, AUDIT_EVENT_SCHEMA: SupportedRange(1, 2)}), alive=True)
    assert one is not None
    assert one.supported == {AUDIT_EVENT_SCHEMA: LevelRange(1, 2)}


def test_a_reader_that_does_not_run_takes_part_if_it_is_durable() -> None:
    durable, other = ReaderRecord({}), ReaderRecord({}, durable=False)
    assert reader("a", durable, alive=False) is not None
    assert reader("a", other, alive=False) is None
    assert reader("a", ReaderRecord({}, durable=False, state="stopped"), alive=True) is None
    stopped = reader("a", ReaderRecord({}, state="stopped"), alive=True)
    assert stopped is not None
    assert not stopped.running
    assert reader("a", other, alive=True) is not None
