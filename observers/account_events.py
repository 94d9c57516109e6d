"""Events in which a sidecar accounts for all others: what was lost and why, and what it did so far. See event.py."""

from __future__ import annotations

import msgspec

LOSS_REASONS = {
    "observer_queue": "The audit did not keep up: it was lost before it was looked at.",
    "interval_full": "A member of a group, a topic that it fetches, or the end of a partition, beyond the bounds of an "
    "interval of `audit.offsets.interval.ms` (groups.md). One for each such request, and each such partition: a member "
    "that has no event counts with each of its requests.",
    "failed": "No event could be built.",
    "not_encodable": "A text in it is no Unicode text.",
    "too_large": "It has too many partitions, or is larger than `message.max.bytes`, or the topic refused it as such.",
    "no_cluster": "The cluster was never reached, and there is neither a spool nor room in memory.",
    "queue_full": "The cluster was away, and there is neither a spool nor room in memory.",
    "spool_full": "The spool has reached `audit.spool.max.bytes`.",
    "spool_torn": "It was on disk and cannot be read back.",
    "producer_failed": "The producer that held it failed for good and was replaced, and there was no spool.",
    "schema_level": "The fleet has finalized no level of `brokerside.audit.event.schema` that this release can write.",
    "closed": "It was not delivered in the time to close, and there was no spool.",
    "killed": "The sidecar was killed before the events were on disk. A later run reports them, unnumbered ones too.",
}
"""Why events are lost; besides, librdkafka's names of errors that will not pass (``topic_authorization_failed``, …)."""


class GapEvent(msgspec.Struct, omit_defaults=True, gc=False, tag_field="kind", tag="gap"):
    """Events of consecutive numbers that were lost for the same reason."""

    seq: int
    """Number of this event, as for every kind."""
    reason: str
    """Why; see the list of reasons."""
    lost_boot_id: str
    """The run they are of: this one, or one that was killed and left a ledger behind."""
    lost_first_seq: int
    """The first number lost."""
    lost_last_seq: int
    """The last number lost."""


class StatusEvent(msgspec.Struct, omit_defaults=True, gc=False, tag_field="kind", tag="sidecar_status"):
    """The ledger of this run so far, each ten seconds and at its end: the sidecar lives, and this is what it did.

    ``seen`` = ``hidden`` + ``waiting`` + what numbers were given for: one each, but one for all requests of a
    rollup; parts of an inventory, gaps and statuses have numbers, too. ``emitted`` = ``delivered`` + sum of
    ``dropped`` + ``spooled`` + ``queued``.
    """

    seq: int
    """Number of the event, as for every kind."""
    ts: int
    """When."""
    started_at: int
    """When this run began."""
    seen: int
    """Requests, changes of connections and throttle reports that the sidecar has seen."""
    emitted: int
    """Numbers given before this one."""
    delivered: int
    """Events acknowledged by the audit topic."""
    waiting: int = 0
    """Seen, and not processed yet, or part of a rollup that is not emitted yet."""
    hidden: int = 0
    """Seen, and without an event: excluded topics and principals."""
    hidden_by: dict[str, int] = {}
    """Those of this run's process by ``principal NAME`` and ``topic NAME``, at most 100; the rest as ``other``."""
    partly_hidden: int = 0
    """Events of requests, and requests in rollups, of this run's process that lack at least one excluded topic: its
    partitions in ``topics`` or ``per_topic``, or its name in ``polled``, ``item_errors`` or ``resources``. They have
    their event, so they are not in ``hidden``."""
    partly_hidden_by: dict[str, int] = {}
    """Those by ``topic NAME``, at most 100; the rest as ``other``. If several topics are hidden, it counts for each."""
    queued: int = 0
    """Events that wait in memory alone."""
    spooled: int = 0
    """Events that wait on disk, those handed to the producer included."""
    dropped: dict[str, int] = {}
    """Events lost, by reason."""
    spool_bytes: int = 0
    """Bytes on disk."""
    clock_step_ms: int = 0
    """By how much the wall clock was set forward (or back, < 0) since the last status, where that is over a second."""
    last: bool = False
    """Whether the run ends with it."""
