"""What a successor of this process needs, beside the measured rates, to apply the same limits without a break.

The predecessor stays until its last connection has ended. Until then its connections count in the successor's limits.
Connections that are not admitted yet move to the successor. Times are those of the monotonic clock, which all processes
of a machine share.
"""

from __future__ import annotations

from msgspec import Struct

from proxy.limits.rate_sensors import RateViolation


class CountedConnection(Struct, array_like=True):
    """An admitted connection that is open. ``number``: unique in both processes. ``address``: the key of its limits."""

    number: int
    listener: str
    address: str
    principal: str | None = None
    """Who has logged in, if that counts in a limit."""


class PendingState(Struct, array_like=True):
    """How long an accepted connection has to wait for its limits. The defaults are those of one that was not checked.

    The fields are those of ``PendingConnection``, and ``held_until``: when its hold ends; None if it is not held.
    """

    ready_at: int = -1
    wants_slot: bool = False
    held_for: RateViolation | None = None
    held_until: int | None = None
