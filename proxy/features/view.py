"""What one process knows of the levels of the fleet's features; its data path shows them to clients, its observers
follow them."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from proxy.features.catalog import LevelRange


class FeaturesView(Struct, frozen=True, array_like=True):
    """The levels that ApiVersions responses show. Replaced as a whole.

    ``supported``: by this sidecar; empty if feature levels are disabled. ``finalized``: by the fleet, as far as it is
    known: with ``epoch`` −1 nothing is known. ``forward``: an update is answered here, wherever the controller is.
    ``is_controller``: this sidecar is the controller. ``levels``: those in use by feature (0: none), for observers;
    nothing is known of others. ``group_partitions``: over how many partitions groups are spread, for ever; 0 while it
    is not known.
    """

    supported: Mapping[str, LevelRange] = {}
    finalized: Mapping[str, LevelRange] = {}
    epoch: int = -1
    forward: bool = True
    is_controller: bool = False
    levels: Mapping[str, int] = {}
    group_partitions: int = 0


class FeaturesDirectory:
    """The current view, shared by all listeners of a process."""

    def __init__(self) -> None:
        self.view = FeaturesView()
