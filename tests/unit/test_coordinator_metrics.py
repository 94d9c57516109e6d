"""The metrics of the coordinator of groups."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.coordinator.status import CoordinatorFields, CoordinatorStatus, HeldPartitionStatus, MetricTotal
from proxy.telemetry.coordinator_metrics import COORDINATOR_METRICS
from proxy.telemetry.snapshot import Snapshot

STATUS = CoordinatorStatus(
    level=1,
    partitions=3,
    held=[HeldPartitionStatus(0, "open", 4, 2, 1), HeldPartitionStatus(1, "mute", 5, 1, 1)],
    fields=CoordinatorFields(ping_purgatory=7, start_fetcher_purgatory=2),
    groups={"stable": 1, "failed": 1},
    consumers=3,
    quarantined_partitions=4,
    totals={
        "rebalances_total": [MetricTotal(("joined", "done"), 2, 2)],
        "rebalance_seconds": [MetricTotal(("stop",), 2, 0.75)],
        "ping_lateness_seconds_max": [MetricTotal((), 9, 0.25)],
    },
)


def samples(status: CoordinatorStatus | None) -> dict[str, dict[tuple[str, ...], Any]]:
    snapshot = Snapshot({}, coordinator=status)
    return {
        one.name.removeprefix("coordinator_"): {labels: values for labels, *values in one.read(snapshot)}
        for one in COORDINATOR_METRICS
    }


@pytest.mark.promise("metrics.md", "The coordinator's states are there from the start, and its counts with the first.")
def test_states_are_there_from_the_start_and_counts_with_the_first() -> None:
    found = samples(STATUS)
    assert found["partitions"] == {("nominal",): [0], ("opening",): [0], ("open",): [1], ("mute",): [1]}
    assert sum(count for (count,) in found["groups"].values()) == 2
    assert found["groups"]["failed",] == [1]
    assert (found["consumers"], found["quarantined_partitions"]) == ({(): [3]}, {(): [4]})
    assert found["purgatory"] == {("ping",): [7], ("stop_fetcher",): [0], ("start_fetcher",): [2]}
    assert found["rebalances_total"] == {("joined", "done"): [2]}
    assert found["rebalance_seconds"] == {("stop",): [2, 0.75]}, "a summary: how often, and the sum"
    assert found["ping_lateness_seconds_max"] == {(): [0.25]}
    assert found["pings_total"] == {}


def test_without_a_coordinator_there_are_no_samples_and_no_label_names_a_group() -> None:
    assert samples(CoordinatorStatus())["ping_lateness_seconds_max"] == {(): [0]}
    for status in (None, CoordinatorStatus("coordinator.enabled is false")):
        assert not any(samples(status).values())
    for one in COORDINATOR_METRICS:
        for labels, *_ in one.read(Snapshot({}, coordinator=STATUS)):
            assert len(labels) == len(one.labels)
            assert not {"group", "consumer"} & set(one.labels)
