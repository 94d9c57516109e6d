"""Who carries connections, as the accepting side sees it: this process (``DataPlane``) or others (``Workers``)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection
from typing import Protocol

from proxy.config import Config, Listener
from proxy.core.tally import Tally
from proxy.limits.throttles import ThrottleReport
from proxy.replies.broker_metadata import FleetView
from proxy.telemetry.snapshot import Snapshot


class ConnectionHandler(Protocol):
    """Takes over accepted connections. Belongs to the loop's thread."""

    tallies: dict[str, Tally]
    """By listener; what is accepted is counted here."""

    @property
    def is_available(self) -> bool:
        """Whether anybody carries connections at all."""

    @property
    def local_connections(self) -> int:
        """Connections that have descriptors of this process, or need them: two each."""

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be given to it just now."""

    def on_capacity(self, callback: Callable[[], None]) -> None:
        """Call it each time ``full`` ends."""

    def on_connection_closed(self, callback: Callable[[int], None]) -> None:
        """Call it with the number of each connection that has ended; never while ``carry`` runs."""

    def handle_connection(self, listener: Listener, sock: socket.socket, address: tuple[str, int], number: int) -> None:
        """Take over ``sock``, a client accepted from ``address``. ``number``: unique in one run of the sidecar."""

    def count_responses(self, api_key: int) -> int:
        """Responses of this api that have passed, as far as known; with workers a second late."""

    def close_idlest(self, listeners: Collection[str]) -> None:
        """Close the connection of these listeners that has been longest without a byte; none where there is none."""

    def report_throttles(self, reports: list[ThrottleReport]) -> None:
        """Tell the observers of throttled connections."""

    def update_config(self, config: Config) -> None:
        """Take from a new configuration what the carrying side can take, in whatever other processes there are."""

    def update_fleet_view(self, view: FleetView) -> None:
        """Take what is known of all brokers now."""

    async def snapshot(self) -> Snapshot:
        """Present counts."""

    async def stop(self, abort: asyncio.Event) -> None:
        """Let open requests be answered and observers deliver, in the times configured, or end at once with ``abort``."""
