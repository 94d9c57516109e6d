"""What the registry says about features: who takes part, who claims the topic, who has not applied an epoch."""

from typing import Any

import pytest

from proxy.features.catalog import AUDIT_EVENT_SCHEMA, LevelRange
from proxy.features.records import ReaderRecord, SupportedRange
from proxy.fleet.membership import Member, ReaderMember, RegistryContent
from proxy.fleet.registered_features import HOLD, claims_of, participants_of, unapplied
from proxy.fleet.sidecar_record import SidecarRecord

LEVELS = {AUDIT_EVENT_SCHEMA: SupportedRange(1, 2)}


def sidecar(*, alive: bool = True, **values: Any) -> Member:
    return Member(SidecarRecord({}, (), None, -1, "1", **{"features": LEVELS, "boot_id": "b", **values}), alive)


def reader(*, alive: bool = True, durable: bool = True) -> ReaderMember:
    return ReaderMember(ReaderRecord({AUDIT_EVENT_SCHEMA: SupportedRange(1, 1)}, durable=durable), alive)


def content(sidecars: dict[int, Member], readers: dict[str, ReaderMember] | None = None) -> RegistryContent:
    names = [*(f"sidecar/{one}" for one in sidecars), *(f"reader/{one}" for one in readers or {})]
    return RegistryContent(sidecars, readers or {}, {name: 1000 + n for n, name in enumerate(names)})


def test_all_sidecars_and_the_readers_that_count_take_part():
    sidecars = {1: sidecar(applied_epoch=7, sidecar_version="0.3.0"), 2: sidecar(alive=False, features={})}
    readers = {
        "gone": reader(alive=False, durable=False),
        "tables": reader(alive=False),
        "one-off": reader(durable=False),
    }
    found = participants_of(content(sidecars, readers))
    assert [(one.name, one.running, one.applied_epoch) for one in found] == [
        ("sidecar/1", True, 7),
        ("sidecar/2", False, -1),
        ("reader/one-off", True, -1),
        ("reader/tables", False, -1),
    ]
    levels = {AUDIT_EVENT_SCHEMA: LevelRange(1, 2)}
    assert (found[0].release, found[0].supported, found[0].last_seen_ms) == ("0.3.0", levels, 1000)
    assert found[1].supported == {}


def test_claims_are_of_sidecars_that_run_and_keep_features():
    sidecars = {1: sidecar(), 2: sidecar(holds={HOLD: 4}), 3: sidecar(alive=False), 4: sidecar(features={})}
    assert claims_of(content(sidecars), 1, "b") == {1: 0, 2: 4}
    assert claims_of(content({1: sidecar(holds={HOLD: 9})}), 1, "another") == {}


@pytest.mark.promise(
    "features.md",
    "Of a sidecar that has not applied an update, the message says how many events or groups are at a higher level.",
)
def test_sidecars_that_have_not_applied_an_epoch_are_named_with_what_is_known():
    sidecars = {
        1: sidecar(applied_epoch=8),
        2: sidecar(applied_epoch=7),
        3: sidecar(applied_epoch=7, undelivered_above=12),
        4: sidecar(applied_epoch=7, alive=False),
        5: sidecar(applied_epoch=9, alive=False),
        7: sidecar(applied_epoch=10),
        8: sidecar(applied_epoch=7, groups_above=2),
    }
    assert unapplied(content(sidecars), (1, 2, 3, 4, 5, 6, 7, 8), 8, 9) == [
        "sidecar 2",
        "sidecar 3 (12 events of a higher level to deliver)",
        "sidecar 4 (does not run)",
        "sidecar 6 (does not run)",
        "sidecar 7",
        "sidecar 8 (2 groups of consumers still at a higher level)",
    ]
