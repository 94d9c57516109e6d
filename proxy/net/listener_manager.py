"""The running sidecar: listens, passes each client it accepts through the limits, and gives it to who carries it."""

from __future__ import annotations

import socket
from functools import partial

import structlog

from proxy.config import Config, Listener
from proxy.config.limits import limits_of
from proxy.limits.model import ClusterQuotas, GateState, canonical
from proxy.net.acceptor import DESCRIPTORS_PER_CONNECTION, Acceptor, usable_descriptors
from proxy.net.admission import Entrance
from proxy.net.connection_handler import Carrying
from proxy.net.proxy_header import Preambles
from proxy.net.ticker import Beat
from proxy.protocol.private import moved
from proxy.telemetry import Repeated
from proxy.telemetry.snapshot import Snapshot, process_counts

log = structlog.get_logger(__name__)


class Sidecar:
    """The listening half: everything between ``config.listeners`` and ``carrying``."""

    def __init__(self, config: Config, carrying: Carrying, beat: Beat) -> None:
        self.draining = False
        self.unready: str | None = None
        """Why it should get no connections, for a reason that others know of."""
        self._config = config
        self._stored = ClusterQuotas()
        self._carrying = carrying
        self._acceptors: dict[str, Acceptor] = {}
        self._other_descriptors = 0  # at the start; what comes later is for the reserve
        self._entrance = Entrance(limits_of(config), carrying, self._accept)
        self._repeated = Repeated(log)
        self._preambles = Preambles(carrying.tallies)
        beat.calls += [self._entrance.beat, self._preambles.flush, self._repeated.flush]
        carrying.on_room(self._accept)

    def start(self) -> None:
        """Listen on every listener, or on none: raises LocalError naming the address that cannot be had."""
        try:
            for listener in self._config.listeners:
                self._acceptors[listener.name] = self._listen(listener)
        except BaseException:
            self.close()
            raise
        self._other_descriptors = process_counts().open_fds
        self._accept()
        for listener in self._config.listeners:
            log.info("listening", listener=listener.name, bind=str(listener.bind), upstream=str(listener.upstream))

    def close(self) -> None:
        """Accept no more, and close whoever waits at the limits."""
        self.draining = True
        for acceptor in self._acceptors.values():
            acceptor.close()
        self._acceptors.clear()
        self._preambles.close()
        self._entrance.close()

    @property
    def problem(self) -> str | None:
        """What keeps it from accepting connections now."""
        if self.draining:
            return "draining"
        if not self._acceptors:
            return "starting"
        return self.unready if self._carrying.able else "no worker runs"

    def change(self, config: Config) -> None:
        """Take the limits of a new configuration; nothing else of it."""
        self._config = config
        self._entrance.change(limits_of(config, self._stored))

    def cluster_quotas(self, stored: ClusterQuotas) -> None:
        """Take the limits that the cluster has stored."""
        self._stored = stored
        self._entrance.change(limits_of(self._config, stored))

    def gate_state(self) -> GateState:
        """What the limits do now."""
        state = self._entrance.state()
        state.queued = {name: acceptor.queued for name, acceptor in self._acceptors.items()}
        return state

    async def snapshot(self) -> Snapshot:
        """Present counts of all there is."""
        snapshot = await self._carrying.snapshot()
        snapshot.draining = self.draining
        snapshot.quotas = self.gate_state()
        private = moved(self._config.private_api_key_base)
        snapshot.private_apis = {key: api.name for key, api in private.items()}
        return snapshot

    def _accept(self) -> None:
        """Have every listener accept that may."""
        if self._carrying.full:
            return
        for name, acceptor in self._acceptors.items():
            if not self._entrance.busy(name):
                acceptor.start()

    def _listen(self, listener: Listener) -> Acceptor:
        def admit(sock: socket.socket, address: tuple[str, int]) -> bool:
            if listener.proxy_protocol == "required":
                self._preambles.admit(listener, sock, address, partial(self._arrive, listener))
            else:
                self._arrive(listener, sock, address)
            return not (self._entrance.busy(listener.name) or self._carrying.full)

        def out_of_capacity(error: str) -> None:
            self._repeated.warning("accept_out_of_capacity", listener=listener.name, error=error)

        backlog = self._config.socket_listen_backlog_size
        tally = self._carrying.tallies[listener.name]
        return Acceptor(
            listener.bind.host,
            listener.bind.port,
            backlog,
            tally,
            admit,
            out_of_capacity,
            room=self._room,
        )

    def _room(self) -> int:
        """How many more connections there are descriptors for, two for each of them."""
        accepted = self._preambles.pending + self._entrance.pending + self._carrying.holding
        return (usable_descriptors() - self._other_descriptors) // DESCRIPTORS_PER_CONNECTION - accepted

    def _arrive(self, listener: Listener, sock: socket.socket, address: tuple[str, int]) -> None:
        host, port = address
        self._entrance.arrive(listener, sock, canonical(host) if ":" in host else host, port)
