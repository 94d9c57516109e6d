"""The metrics of the coordinator of groups. Where it is not enabled the page does not have them.

No label holds the id of a group or of a consumer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from proxy.coordinator.states import GroupState, PartitionState
from proxy.coordinator.status import CoordinatorStatus, MetricTotal
from proxy.telemetry.metric_definition import MetricDefinition, MetricKind, Samples
from proxy.telemetry.snapshot import Snapshot

_PREFIX = "coordinator_"


def _status(read: Callable[[CoordinatorStatus], Samples]) -> Callable[[Snapshot], Samples]:
    return lambda s: read(s.coordinator) if s.coordinator is not None and s.coordinator.reason is None else ()


def _gauge(name: str, unit: str, meaning: str, read: Callable[[CoordinatorStatus], float]) -> MetricDefinition:
    return MetricDefinition(_PREFIX + name, "gauge", (), unit, meaning, _status(lambda status: [((), read(status))]))


def _totals(status: CoordinatorStatus, name: str) -> Sequence[MetricTotal]:
    return status.totals.get(name, ())


def _counted(
    name: str, labels: tuple[str, ...], unit: str, meaning: str, kind: MetricKind = "counter"
) -> MetricDefinition:
    """Return a metric that the machine counts itself, by this name without the prefix."""

    def read(status: CoordinatorStatus) -> Samples:
        found = _totals(status, name)
        if kind == "summary":
            return [(one.labels, one.times, one.amount) for one in found]
        return [(one.labels, one.amount) for one in found]

    return MetricDefinition(_PREFIX + name, kind, labels, unit, meaning, _status(read))


def _held(status: CoordinatorStatus) -> Samples:
    states = [one.state for one in status.held]
    return [((state.value,), states.count(state.value)) for state in PartitionState if state is not PartitionState.AWAY]


def _groups(status: CoordinatorStatus) -> Samples:
    return [((state.value,), status.groups.get(state.value, 0)) for state in GroupState]


def _purgatories(status: CoordinatorStatus) -> Samples:
    fields = status.fields
    return [
        (("ping",), fields.ping_purgatory),
        (("stop_fetcher",), fields.stop_fetcher_purgatory),
        (("start_fetcher",), fields.start_fetcher_purgatory),
    ]


COORDINATOR_METRICS = (
    MetricDefinition(
        "coordinator_partitions",
        "gauge",
        ("state",),
        "partitions",
        "Partitions of the groups' topic that this sidecar holds: `nominal` (nobody has asked yet), `opening`, `open`, "
        "`mute` (nothing is sent to consumers, since Kafka does not confirm that this sidecar still holds it).",
        _status(_held),
    ),
    MetricDefinition(
        "coordinator_groups",
        "gauge",
        ("state",),
        "groups",
        "Groups that this sidecar coordinates, by state (docs/coordinator.md).",
        _status(_groups),
    ),
    _gauge("consumers", "consumers", "Consumers registered with this sidecar.", lambda status: status.consumers),
    _counted(
        "rebalances_total",
        ("reason", "result"),
        "rebalances",
        "Attempts to rebalance a group that have ended, by what caused them (`joined`, `left`, `failed`, `topics`, "
        "`returned`, `enabled`, `retry`, …) and how they ended: `done`, `resumed` (nobody was stopped), `cancelled` (a "
        "consumer went meanwhile), `failed` (it is tried again), `given_up` (all consumers are disconnected).",
    ),
    _counted(
        "rebalance_seconds",
        ("phase",),
        "s",
        "Duration of each phase of rebalances: `stop`, `commit`, `start`.",
        "summary",
    ),
    _counted("pings_total", ("result",), "pings", "Pings: `answered`, `expired`, `withheld`, `late`."),
    MetricDefinition(
        "coordinator_ping_lateness_seconds_max",
        "gauge",
        (),
        "s",
        "By how much the latest ping since the last scrape was late.",
        _status(
            lambda status: [((), max((one.amount for one in _totals(status, "ping_lateness_seconds_max")), default=0))]
        ),
    ),
    MetricDefinition(
        "coordinator_purgatory",
        "gauge",
        ("kind",),
        "requests",
        "Requests to consumers without a response so far.",
        _status(_purgatories),
    ),
    _counted("rebalances_delayed_total", (), "rebalances", "Rebalances delayed, since the group had many lately."),
    _counted(
        "registrations_total", ("code",), "requests", "RegisterConsumer requests, by the error code of the response."
    ),
    _counted("offsets_total", ("result",), "offsets", "Offsets that consumers have reported, by what became of them."),
    _counted("writes_total", ("result",), "writes", "Transactions of records and offsets: `committed`, `aborted`."),
    _counted(
        "takeovers_total",
        ("reason",),
        "takeovers",
        "Partitions of the groups' topic opened: `loaded` with groups, `empty`.",
    ),
    _counted(
        "frames_withheld_total",
        (),
        "frames",
        "Requests to consumers that were not sent, because the right to send had ended since they were decided.",
    ),
    _gauge(
        "quarantined_partitions",
        "partitions",
        "Partitions of topics that nobody may read yet, since a consumer that was lost may still do.",
        lambda status: status.quarantined_partitions,
    ),
)
