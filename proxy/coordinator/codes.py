"""Error codes of Kafka that answer RegisterConsumer, and what each means here."""

from __future__ import annotations

from enum import IntEnum


class RegistrationCode(IntEnum):
    """``error_code`` of RegisterConsumerResponse. The order of the checks stands in ``GroupMembership``."""

    REGISTERED = 0
    LOADING = 14
    """COORDINATOR_LOAD_IN_PROGRESS: the partition is opening, or its claim is not confirmed. Ask again."""
    NOT_AVAILABLE = 15
    """COORDINATOR_NOT_AVAILABLE: no level of the protocol is finalized."""
    NOT_COORDINATOR = 16
    """NOT_COORDINATOR: this sidecar does not hold the group's partition."""
    INVALID_TOPIC = 17
    """INVALID_TOPIC_EXCEPTION: no topic can have that name."""
    INVALID_GROUP_ID = 24
    """INVALID_GROUP_ID: empty, too long, or not printable ASCII."""
    INVALID_SESSION_TIMEOUT = 26
    """INVALID_SESSION_TIMEOUT: not above ``min.session.timeout.ms``, or above the maximum."""
    REBALANCE_FAILED = 27
    """REBALANCE_IN_PROGRESS: a rebalance has failed for good since this consumer did not answer. Ask again later."""
    TOPIC_DENIED = 29
    """TOPIC_AUTHORIZATION_FAILED: a topic that it names may not be read."""
    GROUP_DENIED = 30
    """GROUP_AUTHORIZATION_FAILED."""
    INVALID_REQUEST = 42
    """INVALID_REQUEST."""
    ORDINARY_MEMBERS = 68
    """NON_EMPTY_GROUP: the group has members of Kafka's own protocols."""
    MAX_SIZE_REACHED = 81
    """GROUP_MAX_SIZE_REACHED: a bound of the sidecar, the partition or the group is reached."""
    DUPLICATE_CONSUMER = 92
    """DUPLICATE_RESOURCE: the consumer id is registered on a connection that is alive."""
