"""One partition of the groups' topic that this sidecar holds: its claim, and whether it may speak to consumers."""

from __future__ import annotations

from proxy.coordinator.lease import confirm_interval
from proxy.coordinator.states import PARTITIONS, PartitionEvent, PartitionState, next_state


class HeldPartition:
    """``number``: of the partition; ``claim``: 0 until it is open.

    A claim is confirmed by every write that is committed: this sidecar was not fenced when the write began. While
    consumers are registered, or about to be, the claim is confirmed again and again. Once the last confirmation is
    older than ``state.write.timeout.ms`` (C), a successor expects nothing more from here: the partition is MUTE.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = PartitionState.NOMINAL
        self.claim = 0
        self.claimed_at = 0
        self.consumers = 0
        """Registered consumers."""
        self.registering = 0
        self.group_ids: set[str] = set()
        self._confirmed_at = 0
        self._asked_at = 0
        self._is_asking = False

    def asked(self) -> None:
        """A consumer registers, or the log is not empty: the partition is being opened."""
        self._move(PartitionEvent.ASKED)

    def opened(self, claim: int, claimed_at: int) -> None:
        """The predecessor was fenced; the claim began to be written at ``claimed_at``."""
        self._move(PartitionEvent.OPENED)
        self.claim, self.claimed_at = claim, claimed_at
        self._confirmed_at = self._asked_at = claimed_at

    def lost(self) -> None:
        """Another sidecar has it, or is to have it."""
        self._move(PartitionEvent.LOST)

    def registration_began(self) -> None:
        """A consumer is about to register."""
        self.registering += 1

    def registration_ended(self, *, accepted: bool) -> None:
        """It has registered, or it has not."""
        self.registering -= 1
        self.consumers += accepted

    def consumer_gone(self) -> None:
        """A registered consumer is gone."""
        self.consumers -= 1

    # The claim

    def is_open(self) -> bool:
        """Whether its groups are served, mute or not."""
        return self.state in (PartitionState.OPEN, PartitionState.MUTE)

    def may_speak(self, now: int, write_timeout_ms: int) -> bool:
        """Whether consumers may be sent anything now."""
        return self.state is PartitionState.OPEN and now - self._confirmed_at < write_timeout_ms

    def confirmation_began(self, now: int) -> None:
        """The claim is being written again."""
        self._is_asking = True
        self._asked_at = now

    def confirmation_ended(self) -> None:
        """The claim was written, or surely not."""
        self._is_asking = False

    def confirmed(self, began_at: int) -> None:
        """A write that began at ``began_at`` is committed."""
        self._confirmed_at = max(self._confirmed_at, began_at)

    def update(self, now: int, write_timeout_ms: int) -> PartitionEvent | None:
        """Become MUTE or OPEN again as the claim says. Return what has happened."""
        is_fresh = now - self._confirmed_at < write_timeout_ms
        event: PartitionEvent | None = None
        if self.state is PartitionState.OPEN and self.consumers and not is_fresh:
            event = PartitionEvent.UNCONFIRMED
        elif self.state is PartitionState.MUTE and is_fresh:
            event = PartitionEvent.CONFIRMED
        if event is not None:
            self._move(event)
        return event

    def confirmation_due(self, write_timeout_ms: int) -> int | None:
        """When the claim is to be confirmed again; None while it is being confirmed, or nobody is registered."""
        is_needed = self.consumers or self.registering or self.state is PartitionState.MUTE
        if self._is_asking or not self.is_open() or not is_needed:
            return None
        return max(self._confirmed_at, self._asked_at) + confirm_interval(write_timeout_ms)

    def due(self, write_timeout_ms: int) -> int | None:
        """When ``update`` or a confirmation is due."""
        times = [self.confirmation_due(write_timeout_ms)]
        if self.state is PartitionState.OPEN and self.consumers:
            times.append(self._confirmed_at + write_timeout_ms)
        return min((at for at in times if at is not None), default=None)

    def _move(self, event: PartitionEvent) -> None:
        self.state = next_state(PARTITIONS, self.state, event)
