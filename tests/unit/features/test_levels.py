"""Which level one program uses of what is finalized, and whether it fits."""

import pytest

from proxy.features.catalog import AUDIT_EVENT_SCHEMA, QUOTA_IP, LevelRange
from proxy.features.levels import effective, fleet_levels
from proxy.features.participants import Participant, reader, sidecar
from proxy.features.records import FinalizedFeatures, FinalizedRange, PendingUpdate, ReaderRecord, SupportedRange
from proxy.features.status import status_of

NAME, OTHER = "brokerside.audit.event.schema", "brokerside.quota.ip"
OWN = {NAME: LevelRange(1, 2), OTHER: LevelRange(1, 1)}


def test_the_level_in_use() -> None:
    for own, finalized, level, fits in [
        ((1, 2), None, 1, True),
        ((2, 3), None, 0, True),
        (None, None, 0, True),
        ((1, 2), (1, 1), 1, True),
        ((1, 2), (1, 2), 2, True),
        ((1, 1), (1, 2), 1, False),
        ((1, 1), (2, 2), 0, False),
        ((2, 3), (1, 1), 0, False),
        ((2, 3), (1, 2), 2, True),
        ((1, 3), (2, 2), 2, True),
        ((1, 2), (2, 3), 2, False),
        (None, (1, 1), 0, False),
    ]:
        found = effective(LevelRange(*own) if own else None, LevelRange(*finalized) if finalized else None)
        assert found.level == level, (own, finalized, level, fits)
        assert (found.problem is None) == fits, (own, finalized, level, fits)


def record(level: int, **fields: object) -> FinalizedFeatures:
    return FinalizedFeatures(4, {NAME: FinalizedRange(1, level)}, **fields)


@pytest.mark.promise(
    "features.md", "A sidecar uses no level above the finalized maximum, and level 1 where nothing is finalized."
)
def test_finalized_levels_are_in_use_and_what_does_not_fit_is_named_with_both_ranges() -> None:
    for nothing in (None, FinalizedFeatures(0, {}), record(2, status=0)):
        found = fleet_levels(OWN, nothing)
        assert found.epoch == (-1 if nothing is None else nothing.epoch), nothing
        assert (found.finalized, found.in_use, found.problems) == ({}, {NAME: 1, OTHER: 1}, {}), nothing
    found = fleet_levels(OWN, record(2))
    assert (found.epoch, found.finalized, found.problems) == (4, {NAME: LevelRange(1, 2)}, {})
    assert found.in_use == {NAME: 2, OTHER: 1}
    lower = fleet_levels({NAME: LevelRange(1, 1)}, record(2))
    assert lower.problems == {NAME: "1 to 1 are supported, finalized are 1 to 2"}
    assert fleet_levels({}, record(2)).problems == {NAME: "is not supported, finalized are 1 to 2"}
    pending = PendingUpdate("", {NAME: FinalizedRange(1, 3)})  # which has to fit, and is not used
    found = fleet_levels(OWN, record(1, pending=pending))
    assert (found.in_use[NAME], found.finalized) == (1, {NAME: LevelRange(1, 1)})
    assert found.problems == {NAME: "1 to 2 are supported, finalized are 1 to 3"}
    assert fleet_levels({NAME: LevelRange(1, 3)}, record(1, pending=pending)).problems == {}


KNOWN = {AUDIT_EVENT_SCHEMA: LevelRange(1, 2), QUOTA_IP: LevelRange(1, 1)}
OLDER = {AUDIT_EVENT_SCHEMA: LevelRange(1, 1)}


@pytest.mark.promise(
    "features.md", "`GET /features` says of each participant which features it keeps from being raised, and why."
)
def test_which_features_a_participant_keeps_from_being_raised() -> None:
    lacks = "supports 1 to 1, not 2"
    assert {
        (name, running): dict(status_of(Participant(name, "0.1.0", supported, running), KNOWN).blocks)
        for name, supported, running in (
            ("sidecar/1", KNOWN, True),
            ("sidecar/2", KNOWN, False),
            ("sidecar/3", OLDER, True),
            ("sidecar/4", OLDER, False),
            ("reader/a", KNOWN, False),
            ("reader/b", OLDER, True),
        )
    } == {
        ("sidecar/1", True): {},
        ("sidecar/2", False): {AUDIT_EVENT_SCHEMA: "does not run", QUOTA_IP: "does not run"},
        ("sidecar/3", True): {AUDIT_EVENT_SCHEMA: lacks, QUOTA_IP: "does not support it"},
        ("sidecar/4", False): {AUDIT_EVENT_SCHEMA: lacks, QUOTA_IP: "does not support it"},
        ("reader/a", False): {},
        ("reader/b", True): {AUDIT_EVENT_SCHEMA: lacks},
    }


def test_a_range_that_cannot_be_is_no_support() -> None:
    impossible = {"a": SupportedRange(2, 1), "b": SupportedRange(0, 1), "c": SupportedRange(-1, -1)}
    features = {**impossible, "d": SupportedRange(1, 1)}
    assert sidecar(1, "", features, running=True).supported == {"d": LevelRange(1, 1)}
    one = reader("a", ReaderRecord({AUDIT_EVENT_SCHEMA: SupportedRange(0, 1)}), alive=True)
    assert one.supported == {}


@pytest.mark.promise("features.md", "A job that continues where it stopped takes part while it does not run, too.")
def test_a_reader_that_does_not_run_takes_part_if_it_is_durable() -> None:
    durable, other = ReaderRecord({}), ReaderRecord({}, durable=False)
    assert reader("a", durable, alive=False) is not None
    assert reader("a", other, alive=False) is None
    assert reader("a", ReaderRecord({}, durable=False, state="stopped"), alive=True) is None
    stopped = reader("a", ReaderRecord({}, state="stopped"), alive=True)
    assert not stopped.running
    assert reader("a", other, alive=True) is not None
