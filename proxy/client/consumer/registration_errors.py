"""The error codes of RegisterConsumer and ClusterMetadata, as a consumer takes them."""

from __future__ import annotations

NOT_COORDINATOR = frozenset((15, 16))
"""The group's partition is held by nobody, or by another sidecar."""

TRY_AGAIN = frozenset((14, 92))
"""The coordinator is about to open, or still has a connection of this consumer: the same can be asked again."""

GROUP_HAS_MEMBERS = 68
"""Kafka's NON_EMPTY_GROUP: the broker's own coordinator has members of the group."""

FATAL = frozenset((17, 24, 26, 29, 30, 42, GROUP_HAS_MEMBERS))
"""It would be the same the next time: the consumer ends with an error."""

NOT_SUPPORTED = "it coordinates no groups: coordinator.enabled is false, or private.api.key.base is not this api_key"
"""The sidecar, or whatever it is, does not know the request."""

_TEXTS = {
    14: "the coordinator is not ready yet",
    15: "no coordinator is available",
    16: "another sidecar is the coordinator",
    17: "a topic has a name that no topic can have",
    24: "the group id is not valid",
    26: "session_timeout_ms is not above coordinator.min.session.timeout.ms of the sidecar",
    27: "this consumer has not taken part in a rebalance, and is refused for a minute",
    29: "not authorized to read a topic",
    30: "not authorized to read the group",
    42: "the coordinator refuses the topics (a pattern that RE2 does not take?) or another argument",
    81: "the coordinator has as many consumers as it takes",
    92: "another consumer with this id is registered",
}


def describe_error(code: int, group_id: str) -> str:
    """Return a sentence."""
    if code == GROUP_HAS_MEMBERS:
        return other_members(group_id)
    return f"group {group_id}: {_TEXTS.get(code, 'refused')} (error {code})"


def other_members(group_id: str) -> str:
    """Return what is said where consumers of Kafka's own group protocols are in the group."""
    return (
        f"group {group_id} has members of Kafka's own group protocols, which call subscribe(): "
        f"use another group id, or end them first (error {GROUP_HAS_MEMBERS})"
    )
