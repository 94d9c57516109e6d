"""How long a consumer waits for an answer. Pure; times in milliseconds."""

from __future__ import annotations

from proxy.config.values import Endpoint

CONNECT_TIMEOUT_MS = 5000
"""To connect and log in, and for ClusterMetadata; at most a quarter of the session timeout where there is a hurry."""

REGISTER_TIMEOUT_MS = 10_000
"""For RegisterConsumer, which is answered after a write; at most half a session timeout where there is a hurry."""

SILENT_MS = 15_000
"""After a coordinator was silent for a session timeout: so long there is a hurry at its address. A sidecar that stands
still takes connections, and others may need as long to see that it does."""


class Patience:
    """There is a hurry while a lease runs, and where a coordinator was silent until just now."""

    def __init__(self, session_timeout_ms: int) -> None:
        self._session_timeout_ms = session_timeout_ms
        self._silent: Endpoint | None = None
        self._silent_until = 0

    def coordinator_was_silent(self, address: Endpoint | None, now: int) -> None:
        """Nothing was heard of the coordinator at this address for a session timeout."""
        self._silent, self._silent_until = address, now + SILENT_MS

    def limit(self, most_ms: int, share: int, address: Endpoint | None, now: int, *, has_lease: bool) -> int:
        """Return ``most_ms``; where there is a hurry at most the session timeout divided by ``share``."""
        was_silent = address == self._silent and now < self._silent_until
        return min(most_ms, self._session_timeout_ms // share) if has_lease or was_silent else most_ms
