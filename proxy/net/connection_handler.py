"""Who carries connections, as the accepting side sees it: this process (``Station``) or others (``Workers``)."""

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


class Carrying(Protocol):
    """Takes over accepted connections. Belongs to the loop's thread."""

    tallies: dict[str, Tally]
    """By listener; what is accepted is counted here."""

    @property
    def able(self) -> bool:
        """Whether anybody carries connections at all."""

    @property
    def holding(self) -> int:
        """Connections that have descriptors of this process, or need them: two each."""

    @property
    def full(self) -> bool:
        """Whether nothing more should be given to it just now."""

    def on_room(self, call: Callable[[], None]) -> None:
        """Call it each time ``full`` ends."""

    def on_end(self, call: Callable[[int], None]) -> None:
        """Call it with the number of each connection that has ended; never while ``carry`` runs."""

    def carry(self, listener: Listener, sock: socket.socket, address: tuple[str, int], number: int) -> None:
        """Take over ``sock``, a client accepted from ``address``. ``number``: unique in one run of the sidecar."""

    def answered(self, api_key: int) -> int:
        """Responses of this api that have passed, as far as known; with workers a second late."""

    def close_idlest(self, listeners: Collection[str]) -> None:
        """Close the connection of these listeners that has been longest without a byte; none where there is none."""

    def report(self, reports: list[ThrottleReport]) -> None:
        """Tell the observers of throttled connections."""

    def change(self, config: Config) -> None:
        """Take from a new configuration what the carrying side can take, in whatever other processes there are."""

    def tell(self, view: FleetView) -> None:
        """Take what is known of all brokers now."""

    async def snapshot(self) -> Snapshot:
        """Present counts."""

    async def stop(self, now: asyncio.Event) -> None:
        """Let open requests be answered and observers deliver, in the times configured, or end at once with ``now``."""
