"""Which level of each feature one program uses, and whether it supports the finalized ones.

Source: KIP-584, "incompatible broker lifetime", but an incompatible sidecar continues to serve its clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from proxy.features.catalog import LevelRange
from proxy.features.records import ENABLED, Finalized, FinalizedFeatures


class LevelInUse(NamedTuple):
    """``level``: 0 if none can be used. ``problem``: why the program does not support the finalized levels, or None."""

    level: int
    problem: str | None


class FleetLevels(NamedTuple):
    """What the record ``features`` means for one program.

    ``epoch``: of the finalized levels, −1 if there are none. ``finalized``: by feature. ``in_use``: the level of each
    own feature, 0 if none can be used. ``problems``: by feature, why this program does not support it.
    """

    epoch: int
    finalized: Mapping[str, LevelRange]
    in_use: Mapping[str, int]
    problems: Mapping[str, str]


def effective(own: LevelRange | None, finalized: LevelRange | None) -> LevelInUse:
    """Return the level in use of one feature.

    It is the highest own level that is finalized; without finalized levels it is level 1. ``own``: None for a feature
    that this program does not have.
    """
    if own is None:
        return LevelInUse(0, None if finalized is None else f"is not supported, finalized are {finalized}")
    if finalized is None:
        return LevelInUse(1 if 1 in own else 0, None)
    level = min(own.max, finalized.max)
    problem = None if finalized.max in own else f"{own} are supported, finalized are {finalized}"
    return LevelInUse(level if level >= max(own.min, finalized.min) else 0, problem)


def fleet_levels(supported: Mapping[str, LevelRange], record: FinalizedFeatures | None) -> FleetLevels:
    """Return what the last readable record ``features`` means for a program that supports ``supported``.

    ``record``: None if there is none, and before the program has loaded it: before it has registered, and has then read
    the topic to its end. Levels that are about to be finalized (``pending``) are not used, but the program has to
    support them too: the controller may not have seen it.
    """
    if record is None or record.status != ENABLED:
        return FleetLevels(record.epoch if record else -1, {}, _in_use(supported, {}), {})
    finalized = ranges(record.features)
    problems = _problems(supported, finalized)
    if record.pending is not None:
        problems = {**_problems(supported, ranges(record.pending.features)), **problems}
    return FleetLevels(record.epoch, finalized, _in_use(supported, finalized), problems)


def ranges(finalized: Finalized) -> dict[str, LevelRange]:
    """Return the levels of a record."""
    return {name: LevelRange(one.min_version_level, one.max_version_level) for name, one in finalized.items()}


def _in_use(supported: Mapping[str, LevelRange], finalized: Mapping[str, LevelRange]) -> dict[str, int]:
    return {name: effective(own, finalized.get(name)).level for name, own in supported.items()}


def _problems(supported: Mapping[str, LevelRange], finalized: Mapping[str, LevelRange]) -> dict[str, str]:
    found = {name: effective(supported.get(name), levels).problem for name, levels in finalized.items()}
    return {name: problem for name, problem in found.items() if problem is not None}
