"""What a scrape says of the limits on connections."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxy.limits.model import QuotasState
from proxy.telemetry.limit_metrics import LIMIT_METRICS
from proxy.telemetry.metrics import render
from proxy.telemetry.snapshot import Snapshot
from tests.unit import quotas_states
from tests.unit.quotas_states import CONNECTIONS, RATE


def scrape(quotas: QuotasState | None) -> dict[tuple[str, ...], float]:
    """Samples of these metrics, by name without prefix and values of the labels in the order of their definition."""
    text = render(Snapshot({}, quotas=quotas))
    order = {definition.name: definition.labels for definition in LIMIT_METRICS}
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            name = sample.name.removeprefix("brokerside_")
            metric = name if name in order else name.removesuffix("_sum").removesuffix("_count")
            if metric in order:
                found[name, *(sample.labels[label] for label in order[metric])] = sample.value
    return found


@pytest.fixture(scope="module")
def found() -> dict[tuple[str, ...], float]:
    return scrape(quotas_states.busy())


def of(found: dict[tuple[str, ...], float], name: str) -> dict[tuple[str, ...], float]:
    return {key[1:]: value for key, value in found.items() if key[0] == name}


def test_limits_are_reported_where_there_are_any(found) -> None:
    assert of(found, "quota_limit") == {
        ("broker", "", RATE, "enforce"): 200,
        ("broker", "", CONNECTIONS, "enforce"): 5000,
        ("listener", "CLIENT", RATE, "observe"): 100,
        ("ip", "", RATE, "enforce"): 20,
        ("ip", "", CONNECTIONS, "observe"): 500,
        ("principal", "", RATE, "enforce"): 10,
        ("principal", "", CONNECTIONS, "enforce"): 100,
    }


@pytest.mark.promise(
    "limits-operation.md",
    "The rates of the broker and of listeners are metrics without a limit too; that of an address only with one.",
)
def test_rates_of_listeners_are_there_without_a_limit_those_of_addresses_are_not(found) -> None:
    assert of(found, "broker_connection_accept_rate") == {(): 187.25}
    assert of(found, "connection_accept_rate") == {("CLIENT",): 150.5, ("REPLICATION",): 1.5}
    assert of(found, "ip_connection_accept_rate") == {("10.1.2.3",): 22.9}
    idle = scrape(quotas_states.unlimited("CLIENT"))
    assert of(idle, "broker_connection_accept_rate") == {(): 0}
    assert of(idle, "connection_accept_rate") == {("CLIENT",): 0}
    for name in ("quota_limit", "ip_connection_accept_rate"):
        assert of(idle, name) == {}


def test_times_are_sums_and_counts_by_listener(found) -> None:
    name = "connection_accept_throttle_time_seconds"
    assert of(found, f"{name}_sum") == {("CLIENT",): 0.6, ("REPLICATION",): 0}
    assert of(found, f"{name}_count") == {("CLIENT",): 12, ("REPLICATION",): 0}
    assert of(found, f"ip_{name}_sum") == {("CLIENT",): 40.5, ("REPLICATION",): 0}
    assert of(found, f"ip_{name}_count") == {("CLIENT",): 90, ("REPLICATION",): 0}
    assert of(found, "principal_connection_throttle_time_seconds_sum") == {("CLIENT",): 1.5, ("REPLICATION",): 0}
    assert of(found, "principal_connection_throttle_time_seconds_count") == {("CLIENT",): 4, ("REPLICATION",): 0}
    assert of(found, "acceptor_blocked_seconds_total") == {("CLIENT",): 2.5, ("REPLICATION",): 0}


def test_connections_are_reported_by_listener(found) -> None:
    assert of(found, "connections_waiting") == {("CLIENT",): 1, ("REPLICATION",): 0}
    assert of(found, "connections_queued") == {("CLIENT",): 213, ("REPLICATION",): 0}
    assert of(found, "connections_held") == {("CLIENT",): 7, ("REPLICATION",): 0}
    assert of(found, "connections_admitted_total") == {("CLIENT",): 4321, ("REPLICATION",): 0}
    assert of(found, "quota_addresses") == {(RATE,): 41, (CONNECTIONS,): 57}
    assert of(found, "quota_principals") == {(RATE,): 1, (CONNECTIONS,): 2}


@pytest.mark.promise("metrics.md", "Every kind of throttled connections is a series from the start, with the value 0.")
def test_every_kind_of_throttling_is_there_from_the_start(found) -> None:
    name = "connections_throttled_total"
    series = of(scrape(quotas_states.unlimited("CLIENT", "REPLICATION")), name)
    assert len(series) == 2 * 18
    assert not any(series.values())
    assert of(found, name).keys() == series.keys()
    assert of(found, name)["CLIENT", "ip", RATE, "hold"] == 90
    assert sum(of(found, name).values()) == 12 + 800 + 90 + 60 + 4 + 2
