"""Which level one program uses of what is finalized, and whether it fits."""

from __future__ import annotations

import pytest

from proxy.features.catalog import LevelRange
from proxy.features.levels import effective, fleet_levels
from proxy.features.records import FinalizedFeatures, FinalizedRange, PendingUpdate

NAME, OTHER = "brokerside.audit.event.schema", "brokerside.quota.ip"
OWN = {NAME: LevelRange(1, 2), OTHER: LevelRange(1, 1)}


@pytest.mark.parametrize(
    ("own", "finalized", "level", "fits"),
    [
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
    ],
)
def test_the_level_in_use(
    own: tuple[int, int] | None, finalized: tuple[int, int] | None, level: int, fits: bool
) -> None:
    found = effective(LevelRange(*own) if own else None, LevelRange(*finalized) if finalized else None)
    assert found.level == level
    assert (found.problem is None) == fits


def record(level: int, **fields: object) -> FinalizedFeatures:
    return FinalizedFeatures(4, {NAME: FinalizedRange(1, level)}, **fields)  # type: ignore[arg-type]


def test_nothing_is_finalized() -> None:
    for nothing in (None, FinalizedFeatures(0, {})):
        found = fleet_levels(OWN, nothing)
        assert found.epoch == (-1 if nothing is None else 0)
        assert (found.finalized, found.in_use, found.problems) == ({}, {NAME: 1, OTHER: 1}, {})


def test_finalized_levels_are_in_use() -> None:
    found = fleet_levels(OWN, record(2))
    assert (found.epoch, found.finalized, found.problems) == (4, {NAME: LevelRange(1, 2)}, {})
    assert found.in_use == {NAME: 2, OTHER: 1}


def test_with_another_status_nothing_is_finalized() -> None:
    found = fleet_levels(OWN, record(2, status=0))
    assert (found.epoch, found.finalized, found.in_use) == (4, {}, {NAME: 1, OTHER: 1})


def test_what_does_not_fit_is_named_with_both_ranges() -> None:
    assert fleet_levels({NAME: LevelRange(1, 1)}, record(2)).problems == {
        NAME: "1 to 1 are supported, finalized are 1 to 2"
    }
    assert fleet_levels({}, record(2)).problems == {NAME: "is not supported, finalized are 1 to 2"}


def test_levels_that_are_about_to_be_finalized_have_to_fit_but_are_not_used() -> None:
    pending = PendingUpdate("", {NAME: FinalizedRange(1, 3)})
    found = fleet_levels(OWN, record(1, pending=pending))
    assert found.in_use[NAME] == 1
    assert found.finalized == {NAME: LevelRange(1, 1)}
    assert found.problems == {NAME: "1 to 2 are supported, finalized are 1 to 3"}
    assert fleet_levels({NAME: LevelRange(1, 3)}, record(1, pending=pending)).problems == {}
