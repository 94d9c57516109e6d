"""What ``brokerside features`` asks for, and what it prints (pure).

The lines about features are those of KIP-584's FeatureCommand, as Kafka 2.7 has it. They have tabs between their parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from proxy.features.catalog import MEANINGS, PREFIX, SUPPORTED, LevelRange
from proxy.features.records import SAFE_DOWNGRADE, UPGRADE, FeatureUpdate, SupportedRange
from proxy.features.updates import CLUSTER_AUTHORIZATION_FAILED, UpdateResult
from proxy.interceptors.broker_metadata import BrokerEntry
from proxy.rpc.feature_messages import DescribedFeatures
from proxy.text_table import printable

FEATURES_TAG, EPOCH_TAG, VERSION_TAG, SIDECAR_TAG = (
    "sidecar.features",
    "brokerside.features.epoch",
    "sidecar.version",
    "sidecar",
)
"""Tags of a broker, see ``proxy.interceptors.tags``."""

NONE = "-"

NOT_AUTHORIZED = "not authorized: the user needs Alter on the cluster (error 31)"

_RANGE = re.compile(r"([a-z.]+)=([0-9]{1,5})-([0-9]{1,5})")


class FeatureEntry(Struct, frozen=True):
    """Levels of one feature; None where the feature is not supported, or not finalized.

    ``epoch``: of the finalized levels of the fleet, or of the brokers; None while it is unknown. ``meaning``: of the
    finalized maximum, if it is a level that this release knows.
    """

    feature: str
    supported_min_version: int | None
    supported_max_version: int | None
    finalized_min_version_level: int | None
    finalized_max_version_level: int | None
    epoch: int | None
    meaning: str | None


class SidecarEntry(Struct, frozen=True):
    """A broker, and the sidecar in front of it.

    ``release``: of the sidecar, None for a broker that never had one. ``epoch``: the last one that the sidecar follows.
    ``features``: the levels that it supports.
    """

    broker: int
    release: str | None
    running: bool
    epoch: int | None
    features: dict[str, SupportedRange]


class FeaturesReport(Struct, frozen=True):
    """What ``describe`` prints. ``sidecars``: None where BrokerMetadata is not answered."""

    features: list[FeatureEntry]
    sidecars: list[SidecarEntry] | None


def report_of(
    found: DescribedFeatures, own: BrokerEntry | None, brokers: Iterable[BrokerEntry] | None
) -> FeaturesReport:
    """Return what is known. ``own``: the broker that was asked; it and ``brokers`` are None without BrokerMetadata."""
    fleet_epoch = _number(own.tags.get(EPOCH_TAG)) if own is not None else None
    broker_epoch = found.epoch if found.epoch >= 0 else None
    features = []
    for name in sorted(found.supported.keys() | found.finalized.keys()):
        supported, finalized = found.supported.get(name), found.finalized.get(name)
        epoch = fleet_epoch if name.startswith(PREFIX) else broker_epoch
        meaning = MEANINGS.get(name, {}).get(finalized.max) if finalized is not None else None
        features.append(FeatureEntry(name, *_bounds(supported), *_bounds(finalized), epoch, meaning))
    return FeaturesReport(features, None if brokers is None else [_sidecar(one) for one in brokers])


def _bounds(levels: LevelRange | None) -> tuple[int | None, int | None]:
    return levels if levels is not None else (None, None)


def _sidecar(broker: BrokerEntry) -> SidecarEntry:
    tags = broker.tags
    ranges = (_RANGE.fullmatch(part) for part in tags.get(FEATURES_TAG, "").split(","))
    features = {one[1]: SupportedRange(int(one[2]), int(one[3])) for one in ranges if one is not None}
    epoch = _number(tags.get(EPOCH_TAG))
    return SidecarEntry(broker.node_id, tags.get(VERSION_TAG), SIDECAR_TAG not in tags, epoch, features)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None


def report_lines(report: FeaturesReport) -> list[str]:
    """Return the lines of ``describe``."""
    lines = []
    for one in report.features:
        lines.append(_feature_line(one))
        if one.meaning is not None:
            lines.append(f"  level {one.finalized_max_version_level}: {one.meaning}")
    return lines + [_sidecar_line(one) for one in report.sidecars or ()]


def _feature_line(one: FeatureEntry) -> str:
    parts = {
        "Feature": printable(one.feature),
        "SupportedMinVersion": one.supported_min_version,
        "SupportedMaxVersion": one.supported_max_version,
        "FinalizedMinVersionLevel": one.finalized_min_version_level,
        "FinalizedMaxVersionLevel": one.finalized_max_version_level,
        "Epoch": one.epoch,
    }
    return "\t".join(f"{name}: {NONE if value is None else value}" for name, value in parts.items())


def _sidecar_line(one: SidecarEntry) -> str:
    if one.release is None:
        return f"broker {one.broker}  no sidecar"
    levels = ", ".join(
        f"{name.removeprefix(PREFIX)} {each.min_version}-{each.max_version}" for name, each in one.features.items()
    )
    state = "running" if one.running else "not running"
    epoch = NONE if one.epoch is None else one.epoch
    return f"sidecar {one.broker}  {printable(one.release)}  {state}  epoch {epoch}  {levels or 'no features'}"


def raise_all(finalized: Mapping[str, LevelRange]) -> list[FeatureUpdate]:
    """Return the updates of ``upgrade-all``: what is not finalized, or lower, goes to this release's maximum."""
    return [
        FeatureUpdate(name, own.max, UPGRADE)
        for name, own in SUPPORTED.items()
        if name not in finalized or finalized[name].max < own.max
    ]


def lower_all(finalized: Mapping[str, LevelRange]) -> list[FeatureUpdate]:
    """Return the updates of ``downgrade-all``: what is higher goes to this release's maximum, what it does not know is
    deleted."""
    return [
        FeatureUpdate(name, SUPPORTED[name].max if name in SUPPORTED else 0, SAFE_DOWNGRADE)
        for name, levels in sorted(finalized.items())
        if name.startswith(PREFIX) and (name not in SUPPORTED or levels.max > SUPPORTED[name].max)
    ]


def update_lines(
    updates: Sequence[FeatureUpdate], finalized: Mapping[str, LevelRange], results: Mapping[str, UpdateResult]
) -> list[str]:
    """Return a line for each update. ``finalized``: before it."""
    lines = []
    for one in updates:
        before, result = finalized.get(one.feature), results[one.feature]
        parts = {
            "Feature": printable(one.feature),
            "ExistingFinalizedMaxVersion": NONE if before is None else before.max,
            "NewFinalizedMaxVersion": one.level if one.level >= 1 else NONE,
            "Result": _result(result),
        }
        lines.append(
            "\t".join([f"      [{_kind(one, before)}]", *(f"{name}: {value}" for name, value in parts.items())])
        )
    return lines


def _kind(update: FeatureUpdate, before: LevelRange | None) -> str:
    if update.level < 1:
        return "Delete"
    if update.upgrade_type != UPGRADE:
        return "Downgrade"
    return "Add" if before is None else "Upgrade"


def _result(result: UpdateResult) -> str:
    if not result.error_code:
        return "OK"
    if result.error_code == CLUSTER_AUTHORIZATION_FAILED:  # a broker's message is the request as Java prints it
        return f"FAILED: {NOT_AUTHORIZED}"
    return f"FAILED: {printable(result.message or f'error {result.error_code}')}"
