"""Who has to agree on finalized levels: the sidecars and the readers of the registry, from plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from proxy.features.catalog import READER_FEATURES, LevelRange
from proxy.features.records import MAX_COUNT, ReaderRecord, SupportedRange

SIDECAR = "sidecar/"
READER = "reader/"

MAX_APPLIED_EPOCH = MAX_COUNT // 2
"""The highest applied epoch of a sidecar that is believed: who may write the registry can register any. The epoch can
jump to it, and still grow after."""


class Participant(NamedTuple):
    """A sidecar or a reader of the registry.

    ``name``: its key in the registry: ``sidecar/3``, ``reader/tables-1a2b``. ``release``: its version, for people.
    ``supported``: empty for an older sidecar, and for one with ``features.enabled: false``. ``last_seen_ms``: time of
    its last record, by the registry's clock, in milliseconds since 1970. ``applied_epoch``: as it has registered it.
    """

    name: str
    release: str
    supported: Mapping[str, LevelRange]
    running: bool
    applied_epoch: int = -1
    last_seen_ms: int = 0

    @property
    def broker_id(self) -> int | None:
        """The broker id of a sidecar; None for a reader."""
        return int(self.name.removeprefix(SIDECAR)) if self.name.startswith(SIDECAR) else None

    @property
    def label(self) -> str:
        """The name as messages have it: ``sidecar 3``, ``reader tables-1a2b``."""
        return self.name.replace("/", " ", 1)

    def takes_part(self, feature: str) -> bool:
        """Return whether it has to agree on levels of ``feature``: a reader only of what readers read."""
        return self.broker_id is not None or feature in READER_FEATURES


def sidecar(
    broker_id: int,
    release: str,
    features: Mapping[str, SupportedRange],
    *,
    running: bool,
    applied_epoch: int = -1,
    last_seen_ms: int = 0,
) -> Participant:
    """Return the participant that a sidecar's record describes.

    ``running``: it is alive and its state is ``running``. A sidecar that does not run takes part as long as the
    registry has its record.
    """
    return Participant(f"{SIDECAR}{broker_id}", release, levels_of(features), running, applied_epoch, last_seen_ms)


def reader(name: str, record: ReaderRecord, *, alive: bool, last_seen_ms: int = 0) -> Participant | None:
    """Return the participant that a reader's record describes; None for one that is not durable and does not run.

    Only what readers read counts: a record may have any number of other features, and may be one of a thousand.
    """
    running = alive and record.state == "running"
    if not running and not record.durable:
        return None
    relevant = {feature: record.features[feature] for feature in READER_FEATURES if feature in record.features}
    return Participant(f"{READER}{name}", record.software, levels_of(relevant), running, last_seen_ms=last_seen_ms)


def levels_of(features: Mapping[str, SupportedRange]) -> Mapping[str, LevelRange]:
    """Return the levels of a record; a range that cannot be is left out: it is no support."""
    found = {name: LevelRange(each.min_version, each.max_version) for name, each in features.items()}
    return {name: levels for name, levels in found.items() if 1 <= levels.min <= levels.max}


def last_applied_epoch(participants: Iterable[Participant]) -> int:
    """Return the last epoch that any of them has applied, 0 if none has; see ``MAX_APPLIED_EPOCH``."""
    believed = (one.applied_epoch for one in participants if one.applied_epoch <= MAX_APPLIED_EPOCH)
    return max((0, *believed))
