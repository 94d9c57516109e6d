"""Elects the holder of a partition: the one sidecar that writes to it. Pure; for any log and partition.

Every sidecar decides by itself, from what the cluster and the registry say. Sidecars may disagree for a while: this
costs a takeover, but never safety, since whoever takes the partition fences the one before (``init_transactions``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from zlib import crc32

RETURN_AFTER_MS = 30_000
"""Milliseconds that the leader's sidecar has to be fit, since it has started or lost the partition, before it takes it
from another one, and that another one has to be the right holder before this one lets go."""

AWAY_AFTER_LOSS_MS = 5_000
"""Milliseconds that a sidecar takes nothing after it has lost the partition."""


class Decision(Enum):
    """What a sidecar is to do with a partition."""

    STAY = "stay"
    TAKE = "take"
    LET_GO = "let_go"


def holder(log: str, partition: int, leader: int | None, candidates: Collection[int]) -> int | None:
    """Return the broker id of the sidecar that should hold a partition; None without candidates.

    It is the sidecar of the broker that leads the partition (Kafka has elected it), else one that all sidecars find
    alike. ``candidates``: broker ids of the sidecars that run and are fit.
    """
    if leader in candidates:
        return leader
    return min(candidates, key=lambda one: (crc32(f"{log}/{partition}/{one}".encode()), one), default=None)


class Election:
    """Whether the sidecar ``own`` (its broker id) takes a partition, or lets it go. ``held``: whether it holds it."""

    def __init__(self, log: str, partition: int, own: int) -> None:
        self._log, self._partition, self._own = log, partition, own
        self.held = False
        self._away_until = 0
        self._fit_since: int | None = None
        self._other_since: int | None = None

    def decide(self, leader: int | None, claims: Mapping[int, int], now: int) -> Decision:
        """Return what to do; ``held`` is then so already. Called with each change and at least once a second.

        ``leader``: broker id of the partition's leader, None if unknown. ``claims``: by broker id of each sidecar that
        runs and is fit, the claim with which it holds the partition as the registry has it (``holds``), 0 for none. The
        own id is missing until the own record was read back from the registry. ``now``: milliseconds, monotonic.
        """
        if self._own not in claims:
            self._fit_since = None
            return self._let_go()
        if self._fit_since is None:
            self._fit_since = now
        if holder(self._log, self._partition, leader, claims) != self._own:
            if self._other_since is None:
                self._other_since = now
            return self._let_go() if now - self._other_since >= RETURN_AFTER_MS else Decision.STAY
        self._other_since = None
        if self.held or now < self._away_until:
            return Decision.STAY
        is_free = not any(claim for one, claim in claims.items() if one != self._own)
        if is_free or (leader == self._own and now - self._fit_since >= RETURN_AFTER_MS):
            self.held = True
            return Decision.TAKE
        return Decision.STAY

    def lost(self, now: int) -> None:
        """Report that the partition was lost: another sidecar has fenced this one, or it could not be opened."""
        self.held = False
        self._away_until = now + AWAY_AFTER_LOSS_MS
        self._fit_since = now if self._fit_since is not None else None

    def _let_go(self) -> Decision:
        decision = Decision.LET_GO if self.held else Decision.STAY
        self.held = False
        return decision
