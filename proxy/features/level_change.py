"""A change of finalized levels, from its intent until all sidecars apply it."""

from __future__ import annotations

from dataclasses import dataclass

from proxy.features.records import Finalized, UpdateProposal


@dataclass
class LevelChange:
    """A change of levels that is under way.

    ``update``: id of the proposal; empty for a change of the controller's own. ``proposal``: likewise, or None.
    ``features``: the levels afterwards. ``barrier``: number of the barrier that is waited for, 0 before it.
    ``waits_for`` and ``epoch``: of the final record. ``others``: ids of later proposals whose barrier is waited for.
    """

    update: str
    proposal: UpdateProposal | None
    features: Finalized
    deadline: int
    barrier: int = 0
    is_withdrawn: bool = False
    waits_for: tuple[int, ...] = ()
    epoch: int = 0
    others: tuple[str, ...] = ()
