"""What the registry says about features (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from proxy.features import participants
from proxy.features.participants import Participant
from proxy.fleet.membership import RegistryContent

LOG = "features"
"""The name of the log in ``holds`` and in the election."""

HOLD = f"{LOG}/0"
"""The one partition of the topic, in ``holds``."""


def participants_of(content: RegistryContent) -> list[Participant]:
    """Return the participants: all sidecars, and the readers that count."""
    found: Iterator[Participant | None] = (
        participants.reader(name, one.record, alive=one.alive, last_seen_ms=content.seen[f"reader/{name}"])
        for name, one in sorted(content.readers.items())
    )
    return [
        participants.sidecar(
            node_id,
            one.record.sidecar_version,
            one.record.features,
            running=one.alive,
            applied_epoch=one.record.applied_epoch,
            last_seen_ms=content.seen[f"sidecar/{node_id}"],
        )
        for node_id, one in sorted(content.sidecars.items())
    ] + [one for one in found if one is not None]


def claims_of(content: RegistryContent, own: int, boot_id: str) -> dict[int, int]:
    """Return the claim on the topic's partition of each sidecar that runs with feature levels; 0 for none.

    ``own``, ``boot_id``: of this sidecar, which is left out while the registry has a record of an earlier run of it.
    """
    return {
        node_id: one.record.holds.get(HOLD, 0)
        for node_id, one in content.sidecars.items()
        if one.alive and one.record.features and (node_id != own or one.record.boot_id == boot_id)
    }


def unapplied(content: RegistryContent, waits_for: Iterable[int], epoch: int, last: int) -> list[str]:
    """Return the sidecars of ``waits_for`` (broker ids) that do not follow ``epoch`` yet, each with what is known.

    ``last``: the epoch that the topic has now. A sidecar with a later one has read it before the topic was deleted, and
    ignores what the topic has until its epoch is above that. −1: the topic has none, or one that this sidecar ignores.
    """
    found = []
    for node_id in waits_for:
        one = content.sidecars.get(node_id)
        if one is not None and epoch <= one.record.applied_epoch <= last:
            continue
        if one is None or not one.alive:
            found.append(f"sidecar {node_id} (does not run)")
        elif one.record.undelivered_above:
            found.append(f"sidecar {node_id} ({one.record.undelivered_above} events of a higher level to deliver)")
        elif one.record.groups_above:
            found.append(f"sidecar {node_id} ({one.record.groups_above} groups of consumers still at a higher level)")
        else:
            found.append(f"sidecar {node_id}")
    return found
