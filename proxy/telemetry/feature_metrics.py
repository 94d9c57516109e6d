"""The metrics of the feature versions of the fleet. Where they are disabled there are no samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from proxy.features.status import FeaturesStatus
from proxy.telemetry.metric_definition import MetricDefinition, Samples
from proxy.telemetry.snapshot import Snapshot


def _features(read: Callable[[FeaturesStatus], Samples]) -> Callable[[Snapshot], Samples]:
    return lambda s: read(s.features) if s.features is not None and s.features.reason is None else ()


def _levels(status: FeaturesStatus) -> Iterator[tuple[tuple[str, ...], int]]:
    finalized = status.record.features if status.loaded and status.record is not None else {}
    for name, own in status.supported.items():
        yield (name, "supported_min"), own.min_version
        yield (name, "supported_max"), own.max_version
        if name in finalized:
            yield (name, "finalized_min"), finalized[name].min_version_level
            yield (name, "finalized_max"), finalized[name].max_version_level
        yield (name, "effective"), status.in_use.get(name, 0)


FEATURE_METRICS = (
    MetricDefinition(
        "features_loaded",
        "gauge",
        (),
        "",
        "1 when this sidecar has registered its features and has then read the finalized levels; 0 before.",
        _features(lambda status: [((), int(status.loaded))]),
    ),
    MetricDefinition(
        "features_epoch",
        "gauge",
        (),
        "",
        "Number of changes of the finalized levels so far, as this sidecar knows it; -1 before it has read them.",
        _features(lambda status: [((), status.epoch)]),
    ),
    MetricDefinition(
        "feature_level",
        "gauge",
        ("feature", "bound"),
        "",
        "Levels of each feature of this release: `supported_min`, `supported_max`, `finalized_min`, `finalized_max`, "
        "and `effective`, the level in use (0: none).",
        _features(_levels),
    ),
    MetricDefinition(
        "features_incompatible",
        "gauge",
        ("feature",),
        "",
        "1 if this sidecar does not support the finalized levels of the feature. Clients are served all the same.",
        _features(lambda status: [((name,), int(name in status.problems)) for name in status.supported]),
    ),
    MetricDefinition(
        "features_controller",
        "gauge",
        (),
        "",
        "1 if this sidecar is the feature controller. The sum over a cluster is 1, but for seconds after a takeover.",
        _features(lambda status: [((), int(status.state not in ("away", "opening")))]),
    ),
    MetricDefinition(
        "feature_updates_total",
        "counter",
        ("result",),
        "requests",
        "Updates of the fleet's features that clients asked this sidecar for: `ok`, `refused` (95), `failed` (96).",
        _features(lambda status: [((result,), count) for result, count in status.updates.items()]),
    ),
)
