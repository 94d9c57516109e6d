"""Keys of ``coordinator``: the groups of consumers that this sidecar coordinates."""

from __future__ import annotations

from collections.abc import Mapping

from proxy.config.key_definition import ConfigSection, key, number, switch
from proxy.config.types import GROUP_ID_RULE, GroupId
from proxy.coordinator.lease import MIN_SESSION_TIMEOUT_MS

MAX_TIMEOUT_MS = 600_000
"""Longest session timeout, and longest interval."""


class GroupConfig(ConfigSection):
    """Settings of one group."""

    rebalance_enabled: bool = switch(
        "rebalance.enabled",
        "Whether the group is rebalanced. With `false` nobody is stopped or started: who joins waits, what a member "
        "that is gone has owned is not read. With `true` again there is one rebalance for all that has changed.",
        default=True,
        example="false",
    )


class CoordinatorConfig(ConfigSection):
    """The coordinator of consumer groups."""

    enabled: bool = switch(
        "enabled",
        "Whether this sidecar coordinates groups of consumers (docs/coordinator.md). It needs "
        "`internal.bootstrap.servers`, `features.enabled`, and the feature `brokerside.coordinator.protocol` to be "
        "finalized.",
        default=False,
    )
    partitions: int = number(
        "partitions",
        "Partitions of the topic `__brokerside_groups`, over which groups are spread. Only for making the topic; "
        "afterwards its number of partitions stays for ever.",
        12,
        1,
        128,
        "partitions",
    )
    min_session_timeout_ms: int = number(
        "min.session.timeout.ms",
        "A consumer's session timeout has to be above it. It is checked when the consumer registers.",
        3000,
        MIN_SESSION_TIMEOUT_MS,
        MAX_TIMEOUT_MS,
        "ms",
        reload=True,
    )
    max_ping_retries: int = number(
        "max.ping.retries",
        "Pings in a row that a consumer may leave without an answer. With one more it has failed.",
        2,
        1,
        10,
        "pings",
        reload=True,
    )
    max_rebalance_retries: int = number(
        "max.rebalance.retries",
        "How often a rebalance of a group is tried again that has failed. After that the group has failed: all its "
        "consumers are disconnected, and those that did not answer are refused for a minute.",
        4,
        0,
        100,
        "retries",
        reload=True,
    )
    rebalance_backoff_ms: int = number(
        "rebalance.backoff.ms",
        "How long to wait before a failed rebalance is tried again.",
        2000,
        0,
        60_000,
        "ms",
        reload=True,
    )
    rebalance_delay_ms: int = number(
        "rebalance.delay.ms",
        "How long a rebalance waits for further reasons, so that consumers which start together cause one.",
        200,
        0,
        10_000,
        "ms",
        reload=True,
    )
    rebalance_threadpool_size: int = number(
        "rebalance.threadpool.size",
        "Most groups that are rebalanced at a time. Whatever its name says, there are no threads for it.",
        16,
        1,
        64,
        "groups",
    )
    offset_commit_interval_ms: int = number(
        "offset.commit.interval.ms",
        "How often the offsets are committed that consumers with `auto_commit` have reported.",
        10_000,
        1000,
        MAX_TIMEOUT_MS,
        "ms",
        reload=True,
    )
    state_write_timeout_ms: int = number(
        "state.write.timeout.ms",
        "How long the sidecar may coordinate groups without having written to Kafka that it still does. Then it sends "
        "nothing to consumers until it has.",
        5000,
        2000,
        60_000,
        "ms",
    )
    max_consumers: int = number(
        "max.consumers",
        "Most consumers registered with this sidecar; more are refused. At most a third of the process's descriptors.",
        10_000,
        1,
        100_000,
        "consumers",
        reload=True,
    )
    groups: Mapping[GroupId, GroupConfig] = key(
        "groups",
        "Settings of groups, by their id.",
        kind="mapping of mappings",
        allowed=f"ids of groups ({GROUP_ID_RULE}), each with rebalance.enabled",
        default_factory=dict,
        reload=True,
        example="\n  orders: {rebalance.enabled: false}",
    )
