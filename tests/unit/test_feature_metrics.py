"""The metrics of feature versions."""

from __future__ import annotations

from proxy.features.catalog import AUDIT_EVENT_SCHEMA, QUOTA_IP
from proxy.features.records import FinalizedFeatures, FinalizedRange, SupportedRange
from proxy.features.status import UPDATE_RESULTS, FeaturesStatus
from proxy.telemetry.feature_metrics import FEATURE_METRICS
from proxy.telemetry.snapshot import Snapshot

SUPPORTED = {AUDIT_EVENT_SCHEMA: SupportedRange(1, 1), QUOTA_IP: SupportedRange(1, 1)}
STATUS = FeaturesStatus(
    loaded=True,
    epoch=7,
    supported=SUPPORTED,
    record=FinalizedFeatures(7, {AUDIT_EVENT_SCHEMA: FinalizedRange(1, 2)}),
    in_use={AUDIT_EVENT_SCHEMA: 1, QUOTA_IP: 1},
    problems={AUDIT_EVENT_SCHEMA: "too high"},
    state="serving",
    updates=dict.fromkeys(UPDATE_RESULTS, 0) | {"ok": 2},
)


def samples(status: FeaturesStatus | None) -> dict[str, dict[tuple[str, ...], float]]:
    snapshot = Snapshot({}, features=status)
    return {one.name: dict(one.read(snapshot)) for one in FEATURE_METRICS}


def test_every_series_is_there_from_the_start():
    assert samples(STATUS) == {
        "features_loaded": {(): 1},
        "features_epoch": {(): 7},
        "feature_level": {
            (AUDIT_EVENT_SCHEMA, "supported_min"): 1,
            (AUDIT_EVENT_SCHEMA, "supported_max"): 1,
            (AUDIT_EVENT_SCHEMA, "finalized_min"): 1,
            (AUDIT_EVENT_SCHEMA, "finalized_max"): 2,
            (AUDIT_EVENT_SCHEMA, "effective"): 1,
            (QUOTA_IP, "supported_min"): 1,
            (QUOTA_IP, "supported_max"): 1,
            (QUOTA_IP, "effective"): 1,
        },
        "features_incompatible": {(AUDIT_EVENT_SCHEMA,): 1, (QUOTA_IP,): 0},
        "features_controller": {(): 1},
        "feature_updates_total": {("ok",): 2, ("refused",): 0, ("failed",): 0},
    }


def test_a_sidecar_that_has_not_loaded_the_levels_shows_nothing_finalized():
    found = samples(FeaturesStatus(supported=SUPPORTED, record=STATUS.record))

    assert {bound for _, bound in found["feature_level"]} == {"supported_min", "supported_max", "effective"}
    assert (found["features_loaded"], found["features_epoch"], found["features_controller"]) == (
        {(): 0},
        {(): -1},
        {(): 0},
    )


def test_a_sidecar_without_features_has_no_samples():
    for status in (None, FeaturesStatus("features.enabled is false")):
        assert not any(samples(status).values())
