"""Until when a consumer may hand out messages, and its coordinator may be silent. Pure; times in milliseconds."""

from __future__ import annotations

from proxy.coordinator.lease import consumer_lease_ends


class ConsumerLease:
    """Ends 0.95 of a session timeout after the consumer last heard a request of a coordinator."""

    def __init__(self, session_timeout_ms: int) -> None:
        self._session_timeout_ms = session_timeout_ms
        self._heard_at = self._joined_at = 0
        self._held_until: int | None = None
        self.has_heard = False
        """Whether a request has come since it joined."""

    def joined(self, at: int) -> None:
        """It is registered. That is no request: the lease does not begin with it."""
        self._joined_at, self.has_heard = at, False

    def heard(self, at: int) -> None:
        """A request has come. ``at``: as in ``FrameReceived``."""
        self._heard_at, self.has_heard = max(self._heard_at, at), True

    def hold(self) -> None:
        """A connection is lost, and a coordinator may have seen it go. Nobody else gets the partitions before the
        lease of now ends, but perhaps then: what is heard over another connection does not make it longer."""
        self._held_until = self.end

    def go_on(self) -> None:
        """Nobody else has had the partitions, or they are started anew."""
        self._held_until = None

    @property
    def end(self) -> int:
        """From then on nothing may be handed out, and what was fetched may be another consumer's."""
        end = consumer_lease_ends(self._heard_at, self._session_timeout_ms)
        return end if self._held_until is None else self._held_until

    @property
    def silence_end(self) -> int:
        """From then on the coordinator counts as dead."""
        return consumer_lease_ends(max(self._heard_at, self._joined_at), self._session_timeout_ms)

    def end_from(self, now: int) -> int:
        """Return when it would end if a request were heard now."""
        return consumer_lease_ends(now, self._session_timeout_ms)
