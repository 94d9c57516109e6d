"""The running sidecar: listens, carries what it accepts, and every 50 ms hands over what was observed.

Nothing here waits for an observer: finished exchanges are appended to a list, and a timer hands the list over.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from time import monotonic

import structlog

from proxy.config import Config, Listener
from proxy.core.exchange import Exchange
from proxy.core.tally import Tally
from proxy.net.acceptor import Acceptor
from proxy.net.carrier import Carrier
from proxy.net.relay import Relay
from proxy.telemetry import Repeated

log = structlog.get_logger(__name__)

FLUSH_INTERVAL = 0.05
"""Seconds between two hand-overs of finished exchanges to the observers; also the beat of the loop-lag probe."""


class Sidecar:
    """Everything between ``listeners`` and their upstreams. ``record``: takes a finished exchange, or None.

    ``flush``: called every ``FLUSH_INTERVAL`` seconds, and once more after the drain.
    """

    def __init__(
        self,
        config: Config,
        record: Callable[[Exchange], None] | None,
        flush: Callable[[], None],
    ) -> None:
        self.config = config
        self.carrier = Carrier(config, record)
        self.draining = False
        self.loop_lag = 0.0
        self._flush = flush
        self._acceptors: list[Acceptor] = []
        self._accepted = 0
        self._repeated = Repeated(log)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def tallies(self) -> dict[str, Tally]:
        """Counts by listener."""
        return self.carrier.tallies

    @property
    def relays(self) -> set[Relay]:
        """Connections that are open."""
        return self.carrier.relays

    def start(self) -> None:
        """Listen on every listener, or on none: raises LocalError naming the address that cannot be had."""
        try:
            for listener in self.config.listeners:
                self._acceptors.append(self._listen(listener))
        except BaseException:
            for acceptor in self._acceptors:
                acceptor.close()
            raise
        for acceptor, listener in zip(self._acceptors, self.config.listeners, strict=True):
            acceptor.start()
            log.info("listening", listener=listener.name, bind=str(listener.bind), upstream=str(listener.upstream))
        self._beat(monotonic())

    def _listen(self, listener: Listener) -> Acceptor:
        def admit(sock: socket.socket, address: tuple[str, int]) -> None:
            self._accepted += 1
            self.carrier.carry(listener, sock, address, self._accepted)

        def out_of_capacity(error: str) -> None:
            self._repeated.warning("accept_out_of_capacity", listener=listener.name, error=error)

        backlog = self.config.socket_listen_backlog_size
        bind = listener.bind
        return Acceptor(bind.host, bind.port, backlog, self.tallies[listener.name], admit, out_of_capacity)

    def _beat(self, due: float) -> None:
        now = monotonic()
        self.loop_lag = max(0.0, now - due)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(FLUSH_INTERVAL, self._beat, now + FLUSH_INTERVAL)
        self._flush()
        self._repeated.flush()
        self.carrier.report()

    async def drain(self, patience: float) -> None:
        """Stop accepting, let open requests be answered, close; whatever is open after ``patience`` seconds is cut."""
        self.draining = True
        for acceptor in self._acceptors:
            acceptor.close()
        await self.carrier.drain(patience)
        self._end()

    def cut(self) -> None:
        """End whatever is still open, at once, and hand over the last exchanges. Nothing is recorded afterwards."""
        self.carrier.cut()
        self._end()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._flush()
        self._repeated.flush()
