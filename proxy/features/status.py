"""What one sidecar knows of features, for ``GET /features`` and the metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from proxy.features.catalog import LevelRange
from proxy.features.participants import Participant
from proxy.features.records import FinalizedFeatures, SupportedRange

UPDATE_RESULTS = ("ok", "refused", "failed")
"""Results of updates that clients asked this sidecar for, as labels of the metric."""


class ParticipantStatus(Struct, frozen=True):
    """A participant. ``blocks``: features that it keeps this sidecar from raising to its own maximum, each with why.

    ``name``: as ``sidecar/3`` or ``reader/tables``. ``last_seen``: milliseconds since 1970, by the brokers' clock.
    """

    name: str
    release: str
    running: bool
    supported: Mapping[str, SupportedRange]
    applied_epoch: int
    last_seen: int
    blocks: Mapping[str, str]


class ProposalStatus(Struct, frozen=True):
    """An update that waits for its outcome. ``at``: when it was asked for, in milliseconds since 1970."""

    id: str
    asked_by: int
    features: Mapping[str, int]
    at: int


class FeaturesStatus(Struct, frozen=True):
    """All about features.

    ``reason``: why feature levels are disabled here; then nothing else is filled in. ``loaded``: whether this sidecar
    has registered, and has then read what is finalized. ``record``: the last one read. ``in_use``: levels that this
    sidecar uses, 0: none. ``problems``: by feature, why its finalized levels are not supported here. ``groups_above``:
    groups that this sidecar coordinates, and that still work above the finalized level. ``controller``: broker id of
    the last claim, -1 without one; ``state``: of the controller of this sidecar. ``updates``: numbers of those asked
    for here, by ``UPDATE_RESULTS``.
    """

    reason: str | None = None
    loaded: bool = False
    epoch: int = -1
    applied_epoch: int = -1
    supported: Mapping[str, SupportedRange] = {}
    record: FinalizedFeatures | None = None
    in_use: Mapping[str, int] = {}
    problems: Mapping[str, str] = {}
    undelivered_above: int = 0
    groups_above: int = 0
    controller: int = -1
    state: str = "away"
    participants: Sequence[ParticipantStatus] = ()
    proposals: Sequence[ProposalStatus] = ()
    updates: Mapping[str, int] = {}


def status_of(one: Participant, supported: Mapping[str, LevelRange]) -> ParticipantStatus:
    """Return what there is to say about a participant. ``supported``: by this sidecar."""
    blocks = {}
    for name, own in supported.items():
        if not one.takes_part(name):
            continue
        if own.max not in one.supported.get(name, ()):
            levels = one.supported.get(name)
            blocks[name] = f"supports {levels}, not {own.max}" if levels is not None else "does not support it"
        elif not one.running and one.broker_id is not None:
            blocks[name] = "does not run"
    return ParticipantStatus(
        one.name,
        one.release,
        one.running,
        {name: SupportedRange(*levels) for name, levels in one.supported.items()},
        one.applied_epoch,
        one.last_seen_ms,
        blocks,
    )
