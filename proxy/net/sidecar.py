"""The running sidecar: listens, and gives each client it accepts to whoever carries connections."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Protocol

import structlog

from proxy.config import Config, Listener
from proxy.core.tally import Tally
from proxy.net.acceptor import Acceptor
from proxy.net.beat import Beat
from proxy.telemetry import Repeated
from proxy.telemetry.snapshot import Snapshot

log = structlog.get_logger(__name__)


class Carrying(Protocol):
    """Who carries connections: this process (``Station``) or others (``Workers``)."""

    tallies: dict[str, Tally]
    """By listener; what is accepted is counted here."""

    @property
    def able(self) -> bool:
        """Whether anybody carries connections at all."""

    @property
    def full(self) -> bool:
        """Whether nothing more should be given to it just now."""

    def on_room(self, call: Callable[[], None]) -> None:
        """Call it each time ``full`` ends."""

    def carry(self, listener: Listener, sock: socket.socket, address: tuple[str, int], number: int) -> None:
        """Take over ``sock``, a client accepted from ``address``. ``number``: unique in one run of the sidecar."""

    async def snapshot(self) -> Snapshot:
        """Present counts."""

    async def stop(self, now: asyncio.Event) -> None:
        """Let open requests be answered and observers deliver, in the times configured, or end at once with ``now``."""


class Sidecar:
    """The listening half: everything between ``config.listeners`` and ``carrying``."""

    def __init__(self, config: Config, carrying: Carrying, beat: Beat) -> None:
        self.draining = False
        self._config = config
        self._carrying = carrying
        self._acceptors: list[Acceptor] = []
        self._accepted = 0
        self._repeated = Repeated(log)
        beat.calls.append(self._repeated.flush)
        carrying.on_room(self._accept)

    def start(self) -> None:
        """Listen on every listener, or on none: raises LocalError naming the address that cannot be had."""
        try:
            for listener in self._config.listeners:
                self._acceptors.append(self._listen(listener))
        except BaseException:
            self.close()
            raise
        self._accept()
        for listener in self._config.listeners:
            log.info("listening", listener=listener.name, bind=str(listener.bind), upstream=str(listener.upstream))

    def close(self) -> None:
        """Accept no more."""
        self.draining = True
        for acceptor in self._acceptors:
            acceptor.close()
        self._acceptors.clear()

    @property
    def problem(self) -> str | None:
        """What keeps it from accepting connections now."""
        return "draining" if self.draining else None if self._carrying.able else "no worker runs"

    async def snapshot(self) -> Snapshot:
        """Present counts of all there is."""
        snapshot = await self._carrying.snapshot()
        snapshot.draining = self.draining
        return snapshot

    def _accept(self) -> None:
        for acceptor in self._acceptors:
            acceptor.start()

    def _listen(self, listener: Listener) -> Acceptor:
        def admit(sock: socket.socket, address: tuple[str, int]) -> bool:
            self._accepted += 1
            self._carrying.carry(listener, sock, address, self._accepted)
            return not self._carrying.full

        def out_of_capacity(error: str) -> None:
            self._repeated.warning("accept_out_of_capacity", listener=listener.name, error=error)

        backlog = self._config.socket_listen_backlog_size
        tally = self._carrying.tallies[listener.name]
        return Acceptor(listener.bind.host, listener.bind.port, backlog, tally, admit, out_of_capacity)
