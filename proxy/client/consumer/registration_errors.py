"""The error codes of RegisterConsumer and ClusterMetadata, as a consumer takes them."""

from __future__ import annotations

from collections.abc import Mapping

from proxy.coordinator.codes import RegistrationCode as Code

NOT_COORDINATOR = frozenset((Code.NOT_AVAILABLE, Code.NOT_COORDINATOR))
"""The group's partition is held by nobody, or by another sidecar."""

TRY_AGAIN = frozenset((Code.LOADING, Code.DUPLICATE_CONSUMER))
"""The coordinator is about to open, or still has a connection of this consumer: the same can be asked again."""

FATAL = frozenset(
    (
        *(Code.INVALID_TOPIC, Code.INVALID_GROUP_ID, Code.INVALID_SESSION_TIMEOUT, Code.INVALID_REQUEST),
        *(Code.TOPIC_DENIED, Code.GROUP_DENIED, Code.ORDINARY_MEMBERS),
    )
)
"""It would be the same the next time: the consumer ends with an error."""

NOT_SUPPORTED = "it coordinates no groups: coordinator.enabled is false, or private.api.key.base is not this api_key"
"""The sidecar, or whatever it is, does not know the request."""

_TEXTS: Mapping[int, str] = {
    Code.LOADING: "the coordinator is not ready yet",
    Code.NOT_AVAILABLE: "no coordinator is available",
    Code.NOT_COORDINATOR: "another sidecar is the coordinator",
    Code.INVALID_TOPIC: "a topic has a name that no topic can have",
    Code.INVALID_GROUP_ID: "the group id is not valid",
    Code.INVALID_SESSION_TIMEOUT: "session_timeout_ms is not above coordinator.min.session.timeout.ms of the sidecar",
    Code.REBALANCE_FAILED: "this consumer has not taken part in a rebalance, and is refused for a minute",
    Code.TOPIC_DENIED: "not authorized to read a topic",
    Code.GROUP_DENIED: "not authorized to read the group",
    Code.INVALID_REQUEST: "the coordinator refuses the topics (a pattern that RE2 does not take?) or another argument",
    Code.MAX_SIZE_REACHED: "the coordinator has as many consumers as it takes",
    Code.DUPLICATE_CONSUMER: "another consumer with this id is registered",
}


def describe_error(code: int, group_id: str) -> str:
    """Return a sentence."""
    if code == Code.ORDINARY_MEMBERS:
        return other_members(group_id)
    return f"group {group_id}: {_TEXTS.get(code, 'refused')} (error {code})"


def other_members(group_id: str) -> str:
    """Return what is said where consumers of Kafka's own group protocols are in the group."""
    return (
        f"group {group_id} has members of Kafka's own group protocols, which call subscribe(): "
        f"use another group id, or end them first (error {Code.ORDINARY_MEMBERS:d})"
    )
