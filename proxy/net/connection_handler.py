"""The interface of what serves admitted connections: this process (``DataPlane``) or workers (``WorkerPool``)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Protocol

from proxy.config import Config, Listener
from proxy.coordinator.view import GroupsView
from proxy.core.causes import Cause
from proxy.core.counters import ListenerCounters
from proxy.core.exchange import ConnectionTransition
from proxy.features.updates import UpdateFeatures
from proxy.features.view import FeaturesView
from proxy.interceptors.broker_metadata import FleetView
from proxy.limits.model import QuotasState
from proxy.limits.principal_quotas import Logins
from proxy.limits.throttle_reports import AggregatedThrottle
from proxy.net.consumer_handover import TakeConsumer
from proxy.net.open_connections import ConnectionList, KafkaConnection
from proxy.net.sockets import AcceptedSocket
from proxy.telemetry.snapshot import Snapshot


class ConnectionHandler(Protocol):
    """Serves admitted connections. Belongs to the event loop's thread."""

    listener_counters: dict[str, ListenerCounters]
    """Counters by listener name. The accepting side counts accepted connections here."""

    @property
    def process_ended_at(self) -> float:
        """When a process that serves connections was last found to have ended, in monotonic seconds; 0: none was. What
        it left on disk is another one's then."""

    @property
    def is_available(self) -> bool:
        """Whether anything serves connections at all."""

    @property
    def degradation(self) -> str:
        """What works in part only although connections are served, in one sentence; empty for nothing. Never waits."""

    @property
    def missing_descriptors(self) -> int:
        """Descriptors of this process that its connections do not have yet, and will need."""

    @property
    def is_full(self) -> bool:
        """Whether no more connections should be passed to it now."""

    def on_capacity(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` each time ``is_full`` becomes False."""

    def on_connection_closed(self, callback: Callable[[int], None]) -> None:
        """Call ``callback`` with the number of each connection that has ended; never during ``handle_connection``."""

    def handle_connection(
        self, listener: Listener, sock: AcceptedSocket, address: tuple[str, int], number: int
    ) -> None:
        """Take ownership of ``sock``, a client accepted from ``address``. ``number`` is unique during one run of the
        sidecar."""

    def report_logins(self, callback: Callable[[Logins, bool], None] | None) -> None:
        """Call ``callback(logins, earlier)`` for clients that log in with SASL from now on, each once; None for nobody.

        ``earlier``: whether they had logged in before; ``callback`` also gets those that are still open. A connection
        may have ended meanwhile. Between the login and the call the client is served.
        """

    def hold_connection(self, number: int, hold_ms: int) -> None:
        """Do not read the client of the connection with this number for ``hold_ms``; 0: read it again."""

    def close_connection(self, number: int, cause: Cause) -> bool:
        """Close the connection with this number for ``cause``, and return whether it was open."""

    def count_responses(self, api_key: int) -> int:
        """Return how many requests of this api were answered. With workers the number may be a second old."""

    def close_idlest(self, listeners: Collection[str]) -> None:
        """Close the connection of ``listeners`` that has been idle for longest, if any is open."""

    async def find_connection(self, number: int) -> KafkaConnection | None:
        """Return the open connection with this number; None if there is none. Raises TimeoutError if its worker does
        not answer."""

    async def list_connections(self) -> ConnectionList:
        """Return all open connections."""

    def report_throttles(self, reports: list[AggregatedThrottle]) -> None:
        """Report throttled connections to the observers."""

    async def prepare_config(self, config: Config) -> None:
        """Do all of a reload that can fail, in all processes that serve connections. Raises LocalError.

        ``update_config`` or ``discard_config`` has to follow.
        """

    def discard_config(self) -> None:
        """Give up what ``prepare_config`` has done."""

    def update_config(self, config: Config) -> None:
        """Apply the reloadable keys of a new configuration, in all processes that serve connections."""

    def update_fleet_view(self, view: FleetView) -> None:
        """Set what is known about all brokers."""

    def update_features_view(self, view: FeaturesView) -> None:
        """Set what is known about the features of the fleet."""

    def on_feature_update(self, callback: UpdateFeatures) -> None:
        """Call ``callback`` for each update of features that a client asks for. Before this, updates fail."""

    def update_groups_view(self, view: GroupsView) -> None:
        """Set what is known about the coordinators of consumer groups."""

    def on_consumer(self, callback: TakeConsumer) -> None:
        """Call ``callback`` with each connection whose client registers as a consumer. It is not counted as active any
        more then, nor as closed, and its end is not reported to ``on_connection_closed``."""

    def report_transition(self, change: ConnectionTransition, worker: int) -> None:
        """Report to the observers what happened to a connection of a consumer, which ``worker`` had served before."""

    async def snapshot(self, quotas_state: Callable[[], QuotasState | None] = lambda: None) -> Snapshot:
        """Return the current counters. ``quotas_state``: is called for their moment, since taking them may wait."""

    async def stop(self, abort: asyncio.Event, *, spread: bool = False) -> None:
        """Drain connections and close observers within the configured times, or at once when ``abort`` is set.

        ``spread``: do not end all connections at the beginning, but one after the other: a successor runs, and clients
        connect to it again.
        """
