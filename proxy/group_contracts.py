"""What the runner of the coordinator needs: of the machine, of the consumers' connections, and of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from proxy.config import Config
from proxy.coordinator.coordinator_state import CoordinatorState
from proxy.coordinator.effects import Effect
from proxy.coordinator.events import Event
from proxy.coordinator.status import CoordinatorFields
from proxy.coordinator.view import GroupsView
from proxy.core.causes import Cause
from proxy.features.view import FeaturesView
from proxy.fleet.group_cluster import ClusterEffect
from proxy.interceptors.broker_metadata import FleetView


class CoordinatorMachine(Protocol):
    """What is needed of ``proxy.coordinator.machine.Coordinator``."""

    def handle(self, event: Event, now: int) -> list[Effect]:
        """Return what has to be done, in this order, because of an event; None: because time has passed."""

    def due(self) -> int | None:
        """Return when ``handle`` has to be called with None at the latest."""

    def may_send(self, connection: int, now: int) -> bool:
        """Return whether a request may be sent to a consumer: not while its partition is mute, or has to be."""

    def sizes(self) -> CoordinatorFields:
        """Return how much each of its fields has."""

    def highest_level(self) -> int:
        """Return the highest level of the protocol at which a group may still work."""

    @property
    def state(self) -> CoordinatorState:
        """What it knows, to be read."""


class ConsumerLinks(Protocol):
    """What is needed of ``proxy.net.consumers.ConsumerConnections``."""

    def send(self, number: int, frame: bytes) -> bool:
        """Send a frame. Return whether the kernel has taken all that was sent so far. If not, ``ConnectionBuffered``
        was reported, and ``ConnectionDrained`` follows."""

    def accept(self, number: int, user_timeout_ms: int) -> None:
        """The connection is a registered member's now."""

    def close(self, number: int, cause: Cause) -> None:
        """Close a connection after what was sent to it."""

    def close_all(self) -> None:
        """Close all connections, since the coordinator of their groups is not here any more."""

    async def set_topics(self, names: Collection[str]) -> None:
        """Set the names of all topics. Returns once the rights to new ones were asked for."""


class GroupsCluster(Protocol):
    """What is needed of ``proxy.fleet.group_cluster.GroupCluster``."""

    def start(self) -> None:
        """Start, on the running loop."""

    def perform(self, effect: ClusterEffect) -> None:
        """Carry out an effect; its event follows later."""

    def evacuate(self) -> None:
        """Let other sidecars hold all partitions."""

    def return_(self) -> None:
        """Hold partitions again."""

    def update_features(self, view: FeaturesView) -> None:
        """Take over the finalized levels."""

    def update_fleet_view(self, view: FleetView) -> None:
        """Take over the addresses of brokers."""

    def expect_coordinator(self) -> None:
        """Note that a client has just asked for a coordinator."""

    def refresh_topics(self) -> None:
        """Note that a topic may just have been altered."""

    def reconfigure(self, config: Config) -> None:
        """Take over a changed configuration."""

    def close_partitions(self) -> None:
        """Close all partitions that are open."""

    async def resign(self) -> None:
        """Let other sidecars hold all partitions, for good."""

    async def close(self) -> None:
        """Stop, after ``resign``."""


MakeCluster = Callable[[Callable[[Event], None], Callable[[GroupsView], None]], GroupsCluster]
"""Gets what is to be called with each event, and with each view of the coordinators."""
