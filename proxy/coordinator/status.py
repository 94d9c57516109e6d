"""What one sidecar knows of the groups that it coordinates, for ``GET /coordinator``, ``GET /groups`` and the metrics.

Times are seconds since 1970, where nothing else is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct


class HeldPartitionStatus(Struct, frozen=True):
    """One partition of the groups' topic that this sidecar holds. ``consumers``: registered ones."""

    partition: int
    state: str
    claim: int
    consumers: int
    groups: int


class CoordinatorFields(Struct, frozen=True):
    """How much each of the eight fields has of a coordinator, as seed 001 lists them in section 5.

    ``elector``: partitions held. ``group_registry``: members of groups; ``consumed_offsets``: partitions with an
    offset. ``topic_groups``: topics that groups name. ``wildcard_groups``: groups that subscribe by pattern.
    ``rebalance_handlers``: how many there are; ``rebalance_queued``: groups that wait for one; ``rebalance_working``:
    groups that are rebalanced. ``ping_scheduler``: consumers that are pinged. ``committer``: writes that are not
    committed yet. ``ping_purgatory`` and the others: requests without a response.
    """

    elector: int = 0
    group_registry: int = 0
    consumed_offsets: int = 0
    topic_groups: int = 0
    wildcard_groups: int = 0
    rebalance_handlers: int = 0
    rebalance_queued: int = 0
    rebalance_working: int = 0
    ping_scheduler: int = 0
    committer: int = 0
    ping_purgatory: int = 0
    stop_fetcher_purgatory: int = 0
    start_fetcher_purgatory: int = 0


class MetricTotal(Struct, frozen=True):
    """How often something was counted under these values of its labels, and the sum of the amounts."""

    labels: tuple[str, ...]
    times: int
    amount: float


class CoordinatorStatus(Struct, frozen=True):
    """All about the coordinator of this sidecar.

    ``reason``: why this sidecar coordinates nothing; then nothing else is filled in. ``level``: of
    ``brokerside.coordinator.protocol``, 0 while it is not finalized. ``partitions``: over which groups are spread; 0
    while that is not known. ``evacuated``: by ``POST /coordinator/evacuate``. ``groups``: numbers of groups, by state.
    ``highest_level``: at which any group may still work. ``totals``: what was counted since the start, by metric.
    """

    reason: str | None = None
    level: int = 0
    partitions: int = 0
    evacuated: bool = False
    held: Sequence[HeldPartitionStatus] = ()
    fields: CoordinatorFields = CoordinatorFields()
    groups: Mapping[str, int] = {}
    consumers: int = 0
    highest_level: int = 1
    quarantined_partitions: int = 0
    totals: Mapping[str, Sequence[MetricTotal]] = {}


class RebalanceStatus(Struct, frozen=True):
    """The last rebalance of a group that has succeeded. ``at``: when it ended. ``moved``: partitions that have another
    owner since."""

    reason: str
    at: float
    duration_ms: int
    moved: int


class ConsumerStatus(Struct, frozen=True):
    """A member of a group.

    ``threads``: partitions by topic, by thread id. ``last_heard``: when it last answered; None if it has not.
    ``offsets``: the next ones to consume, as last reported by the consumer, by topic and partition.
    """

    consumer_id: str
    state: str
    client_id: str
    principal: str
    client_ip: str
    listener: str
    session_timeout_ms: int
    auto_commit: bool
    topic_count: str
    threads: Mapping[str, Mapping[str, Sequence[int]]]
    last_heard: float | None = None
    offsets: Mapping[str, Mapping[int, int]] = {}


class GroupStatus(Struct, frozen=True):
    """A group. ``owned``: partitions that a thread owns; ``unowned``: partitions that nobody reads yet.

    ``frozen``: by ``rebalance.enabled: false``. ``failure``: why the last rebalance has failed for good; None if it has
    not. ``consumers``: only where one group was asked for.
    """

    group_id: str
    partition: int
    state: str
    generation: int
    level: int
    members: int
    owned: int
    unowned: int
    frozen: bool = False
    last_rebalance: RebalanceStatus | None = None
    failure: str | None = None
    consumers: Sequence[ConsumerStatus] = ()


class GroupsListing(Struct, frozen=True):
    """Groups. ``broker_id``: of the sidecar that coordinates them, -1 without a coordinator.

    ``reason``: why there are none, if that is known.
    """

    broker_id: int
    groups: Sequence[GroupStatus] = ()
    reason: str | None = None
