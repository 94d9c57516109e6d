"""What must hold in ``features_world.World``.

F1  Epochs of committed records grow by 0 or 1, and by 1 exactly where the levels differ.
F2  A level is finalized after its intent only, and only if every participant that had registered before supports it.
F3  Nobody uses a level before it is finalized.
F4  A participant that runs as fit has the finalized levels within its range.
F5  An update changes all of its features or none.
F6  An update that was answered with 0 is in force in every sidecar that ran.
F7  A minimum never falls, and is not above the maximum.
F8  After a claim no record of an earlier claimant follows.
F9  A proposal gets one outcome.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from proxy.features.controller import FeatureController
from proxy.features.controller_states import ControllerState
from proxy.features.participants import levels_of
from proxy.features.records import (
    ControllerClaim,
    Finalized,
    FinalizedFeatures,
    SupportedRange,
    UpdateOutcome,
    decode,
    update_of_key,
)
from proxy.fleet.registered_features import participants_of

if TYPE_CHECKING:
    from tests.property.features_world import Process, Transaction, World


class Registered(msgspec.Struct):
    """What a record of the registry says, of a sidecar or of a reader."""

    features: dict[str, SupportedRange]


@dataclass
class History:
    """What was committed, and who ran."""

    finalized: FinalizedFeatures | None = None
    """The last committed record."""
    highest: dict[str, int] = field(default_factory=dict)
    """The highest level that was ever finalized, by feature."""
    raised: set[str] = field(default_factory=set)
    """Features whose level the last change has raised."""
    claimant: tuple[str, int] = "", 0
    claim: int = 0
    outcomes: dict[str, UpdateOutcome] = field(default_factory=dict)
    ran: dict[str, int] = field(default_factory=dict)
    """Boots of the participants that ran at the last barrier, by key."""
    bound: dict[int, dict[str, int]] = field(default_factory=lambda: {0: {}})
    """Those that ran at the barrier before a change, by its epoch."""
    intent_at: int = 0
    """How long the registry was when the last intent was committed."""


def committed(world: World, transaction: Transaction) -> None:
    """Check a transaction of a controller in the moment in which it is committed."""
    history = world.history
    features, outcomes = None, {}
    for key, value in transaction.records:
        record = None if value is None else decode(key, value)
        assert value is None or record is not None, "a controller writes what nobody can read"
        if isinstance(record, ControllerClaim):
            same = (transaction.writer, record.claim) == (history.claimant, history.claim)
            assert record.claim > history.claim or same, "F8: a claim is not the highest"
            history.claimant, history.claim = transaction.writer, record.claim
        assert transaction.writer == history.claimant, "F8: somebody writes whose claim is not the last"
        if isinstance(record, FinalizedFeatures):
            features = record
        elif isinstance(record, UpdateOutcome):
            outcomes[update_of_key(key) or ""] = record
    for update, outcome in outcomes.items():
        assert update in world.proposals, "F9: an outcome of nothing"
        assert history.outcomes.setdefault(update, outcome) == outcome, "F9: two outcomes"
    if features is not None:
        _finalized(world, features, outcomes)
    for update, outcome in outcomes.items():
        changed = features is not None and features.epoch == outcome.epoch and features.pending is None
        if outcome.code == 0 and not world.proposals[update].validate_only and not changed:
            _unchanged(world, update)


def _unchanged(world: World, update: str) -> None:
    now = world.history.finalized.features if world.history.finalized else {}
    for one in world.proposals[update].updates:
        assert now[one.feature].max_version_level == one.level, "F5: 0 for what is not so"


def _finalized(world: World, record: FinalizedFeatures, outcomes: dict[str, UpdateOutcome]) -> None:
    history = world.history
    before = history.finalized
    old: Finalized = before.features if before else {}
    epoch = before.epoch if before else 0
    history.finalized = record
    if record.pending is not None:
        history.intent_at = len(world.registry)
    assert record.epoch - epoch in (0, 1), "F1: an epoch is left out, or falls"
    assert (record.epoch > epoch) == (record.features != old), "F1: the epoch does not count the changes"
    for name, levels in record.features.items():
        assert levels.min_version_level <= levels.max_version_level, "F7: minimum above the maximum"
        assert name not in old or levels.min_version_level >= old[name].min_version_level, "F7: a minimum falls"
    if record.epoch == epoch:
        return
    assert before is not None
    assert before.pending is not None, "F2: no intent"
    assert before.pending.features == record.features, "F2: another intent"
    history.raised = {
        name
        for name, levels in record.features.items()
        if name not in old or levels.max_version_level > old[name].max_version_level
    }
    history.bound[record.epoch] = dict(history.ran)
    for name, levels in record.features.items():
        history.highest[name] = max(history.highest.get(name, 0), levels.max_version_level)
    _supported_before_intent(world, record)
    if before.pending.update:
        assert outcomes[before.pending.update].epoch == record.epoch, "F5: the change without its outcome"
        _all_or_none(world, before.pending.update, old, record.features)


def _all_or_none(world: World, update: str, old: Finalized, new: Finalized) -> None:
    asked = {one.feature: one.level for one in world.proposals[update].updates}
    for name, level in asked.items():
        found = new[name].max_version_level if name in new else 0
        assert found == max(level, 0), "F5: a part of an update"
    assert {name: one for name, one in new.items() if name not in asked} == {
        name: one for name, one in old.items() if name not in asked
    }, "F5: more than the update"


def _supported_before_intent(world: World, record: FinalizedFeatures) -> None:
    """F2, for what was raised: whoever had registered before the intent supports it, then or with a later record."""
    known = world.known(world.history.intent_at)
    for one in participants_of(known):
        if one.broker_id is None and not known.readers[one.name.removeprefix("reader/")].record.durable:
            continue
        for name in filter(one.takes_part, world.history.raised):
            level = record.features[name].max_version_level
            later = [value for key, value, _ in world.registry[world.history.intent_at :] if key.decode() == one.name]
            supported = [levels_of(msgspec.json.decode(value, type=Registered).features) for value in later if value]
            assert None in later or any(level in each.get(name, ()) for each in (one.supported, *supported)), (
                f"F2: {one.name} does not support {name} {level}"
            )


def always(world: World) -> None:
    """Check what holds at any time."""
    for one in world.runs():
        for name, level in one.levels().in_use.items():
            highest = max(world.history.highest.get(name, 1), 1)
            assert level <= highest, f"F3: {one.key} writes {name} {level} before it is finalized"
    for one in world.processes.values():
        if one.settled and one.registered and not one.problems():
            _fits(world, one)


def _fits(world: World, one: Process) -> None:
    """F4: what runs as fit has the finalized levels within its range.

    For a level that was lowered, only what ran at the barrier, or has come later.
    """
    record = world.history.finalized
    if record is None:
        return
    was_seen = world.history.bound[record.epoch].get(one.key) == one.boot or one.settled_at == record.epoch
    for name, levels in record.features.items():
        if not one.participant().takes_part(name):
            continue
        own = one.supported.get(name)
        level = levels.max_version_level
        text = f"F4: {one.key} runs with {name} {own}, finalized is {level}"
        if was_seen or (name in world.history.raised and one.durable):
            assert own is not None, text
            assert level in own, text


def in_force(world: World, outcome: UpdateOutcome) -> None:
    """F6: an update that was answered with 0 is in force in each sidecar that ran, unless it has started again.

    During a hot restart in both runs, if they serve clients or have done so.
    """
    bound = world.history.bound[outcome.epoch] if outcome.waits_for else {}
    for one in [*world.processes.values(), *world.draining.values()]:
        if one.controller and one.boot <= bound.get(one.key, 0):
            assert one.levels().epoch >= outcome.epoch, f"F6: {one.key} has not applied epoch {outcome.epoch}"


def is_calm(controllers: list[FeatureController]) -> None:
    """F9, and that somebody is the controller, once all that runs has had its time."""
    holding = [one for one in controllers if one.state is not ControllerState.AWAY]
    assert len(holding) == 1, f"F9: {len(holding)} controllers"
    assert not holding[0].topic.proposals, f"F9: no outcome of {list(holding[0].topic.proposals)}"
