"""Which partitions of the topic of groups each sidecar holds, or is to hold (pure).

The election of each is that of any log (``election.py``). Candidates are the sidecars that run, and that register that
they may hold partitions (``SidecarRecord.coordinates``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from proxy.fleet.election import Decision, Election, holder
from proxy.fleet.membership import RegistryContent

LOG = "groups"
"""The name of the log in ``holds`` and in the election."""

Holds = Mapping[int, Mapping[str, int]]
"""What each candidate holds, by broker id; see ``SidecarRecord.holds``."""


def hold_of(partition: int) -> str:
    """Return the name of a partition in ``holds``."""
    return f"{LOG}/{partition}"


def candidates_of(content: RegistryContent, own: int, boot_id: str) -> Holds:
    """Return what the candidates hold.

    ``own``, ``boot_id``: of this sidecar, which is left out while the registry has a record of an earlier run of it.
    """
    return {
        node_id: one.record.holds
        for node_id, one in content.sidecars.items()
        if one.alive and one.record.coordinates and (node_id != own or one.record.boot_id == boot_id)
    }


def leader_of(partition: int, leaders: Sequence[int | None]) -> int | None:
    """Return the leader of a partition; None while it is not known."""
    return leaders[partition] if partition < len(leaders) else None


def holders_of(candidates: Holds, leaders: Sequence[int | None], partitions: int) -> dict[int, int]:
    """Return who holds each partition: of several, the one with the highest claim; without any, who is to take it."""
    found: dict[int, int] = {}
    for partition in range(partitions):
        elected = holder(LOG, partition, leader_of(partition, leaders), candidates)
        if elected is None:
            continue
        name = hold_of(partition)
        holding = [(holds[name], one == elected, -one) for one, holds in candidates.items() if name in holds]
        found[partition] = -max(holding)[2] if holding else elected
    return found


class GroupElections:
    """The elections of all partitions, for the sidecar ``own`` (its broker id)."""

    def __init__(self, own: int) -> None:
        self._own = own
        self._elections: dict[int, Election] = {}

    def decide(
        self, candidates: Holds, leaders: Sequence[int | None], partitions: int, now: int
    ) -> tuple[list[int], list[int]]:
        """Return the partitions to take and those to let go; see ``Election.decide``."""
        taken, let_go = [], []
        for partition in range(partitions):
            election = self._elections.setdefault(partition, Election(LOG, partition, self._own))
            name = hold_of(partition)
            claims = {one: holds.get(name, 0) for one, holds in candidates.items()}
            match election.decide(leader_of(partition, leaders), claims, now):
                case Decision.TAKE:
                    taken.append(partition)
                case Decision.LET_GO:
                    let_go.append(partition)
                case Decision.STAY:
                    pass
        return taken, let_go

    def lost(self, partition: int, now: int) -> None:
        """Report that a partition was lost."""
        self._elections[partition].lost(now)


def held_by_others(held: Collection[int], candidates: Holds, own: int) -> set[int]:
    """Return those of ``held`` that another candidate registers as held."""
    others = {name for one, holds in candidates.items() if one != own for name in holds}
    return {partition for partition in held if hold_of(partition) in others}
