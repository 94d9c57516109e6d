"""Until when a consumer may hand out messages, and its coordinator may be silent. Pure; times in milliseconds."""

from __future__ import annotations

from proxy.coordinator.lease import consumer_lease_ends


class ConsumerLease:
    """Ends 0.95 of a session timeout after the consumer last heard a request of a coordinator."""

    def __init__(self, session_timeout_ms: int) -> None:
        self._session_timeout_ms = session_timeout_ms
        self._heard_at = self._joined_at = 0
        self.has_heard = False
        """Whether a request has come since it joined."""

    def joined(self, at: int) -> None:
        """It is registered. That is no request: the lease does not begin with it."""
        self._joined_at, self.has_heard = at, False

    def heard(self, at: int) -> None:
        """A request has come. ``at``: as in ``FrameReceived``."""
        self._heard_at, self.has_heard = max(self._heard_at, at), True

    @property
    def end(self) -> int:
        """From then on nothing may be handed out."""
        return consumer_lease_ends(self._heard_at, self._session_timeout_ms)

    @property
    def silence_end(self) -> int:
        """From then on the coordinator counts as dead."""
        return consumer_lease_ends(max(self._heard_at, self._joined_at), self._session_timeout_ms)

    def end_from(self, now: int) -> int:
        """Return when it would end if a request were heard now."""
        return consumer_lease_ends(now, self._session_timeout_ms)
