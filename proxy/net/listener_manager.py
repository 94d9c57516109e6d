"""All listeners of the sidecar. Each accepted client passes the admission control and then goes to the connection
handler."""

from __future__ import annotations

import socket
from functools import partial

import structlog

from proxy.config import Config, Listener
from proxy.config.limits import limits_of
from proxy.limits.model import ClusterQuotas, QuotasState, canonical
from proxy.net.acceptor import DESCRIPTORS_PER_CONNECTION, Acceptor, usable_descriptors
from proxy.net.admission import AdmissionControl
from proxy.net.certificate_expiry import CertificateExpiry
from proxy.net.connection_handler import ConnectionHandler
from proxy.net.open_connections import ConnectionList
from proxy.net.proxy_header import ProxyHeaderReader
from proxy.net.ticker import Ticker
from proxy.protocol.private import moved
from proxy.telemetry import RateLimitedLogger
from proxy.telemetry.snapshot import Snapshot, process_counts

log = structlog.get_logger(__name__)


class ListenerManager:
    """Listens on ``config.listeners`` and passes admitted connections to ``handler``."""

    def __init__(self, config: Config, handler: ConnectionHandler, ticker: Ticker) -> None:
        self.draining = False
        self.not_ready_reason: str | None = None
        """Why the sidecar should get no connections, as set from outside; None if it should."""
        self._config = config
        self._cluster_quotas = ClusterQuotas()
        self._handler = handler
        self._acceptors: dict[str, Acceptor] = {}
        self._other_descriptors = 0  # at the start; later ones are taken from the reserve
        self._admission = AdmissionControl(limits_of(config), handler, self._resume_accepting)
        self._rate_limited = RateLimitedLogger(log)
        self._proxy_headers = ProxyHeaderReader(handler.listener_counters)
        self._expiry = CertificateExpiry(config)
        ticker.callbacks += [self._admission.on_tick, self._proxy_headers.flush_warnings, self._rate_limited.flush]
        ticker.callbacks.append(self._expiry.on_tick)
        handler.on_capacity(self._resume_accepting)

    def start(self) -> None:
        """Listen on every listener, or on none. Raises LocalError if a socket cannot be bound to its address."""
        try:
            for listener in self._config.listeners:
                self._acceptors[listener.name] = self._listen(listener)
        except BaseException:
            self.close()
            raise
        self._other_descriptors = process_counts().open_fds
        self._resume_accepting()
        for listener in self._config.listeners:
            log.info("listening", listener=listener.name, bind=str(listener.bind), upstream=str(listener.upstream))

    def close(self) -> None:
        """Stop accepting, and close connections that are not admitted yet."""
        self.draining = True
        for acceptor in self._acceptors.values():
            acceptor.close()
        self._acceptors.clear()
        self._proxy_headers.close()
        self._admission.close()

    @property
    def readiness_problem(self) -> str | None:
        """Why the sidecar does not accept connections now; None if it does."""
        if self.draining:
            return "draining"
        if not self._acceptors:
            return "starting"
        return self.not_ready_reason if self._handler.is_available else "no worker runs"

    def update_config(self, config: Config) -> None:
        """Apply the limits of a new configuration, and watch its certificates. Nothing else of it is used here."""
        self._config = config
        self._expiry.update_config(config)
        self._admission.update_limits(limits_of(config, self._cluster_quotas))

    def update_cluster_quotas(self, stored: ClusterQuotas) -> None:
        """Apply the quotas that are stored in the cluster."""
        self._cluster_quotas = stored
        self._admission.update_limits(limits_of(self._config, stored))

    def quotas_state(self) -> QuotasState:
        """Return the current state of the limits."""
        state = self._admission.quotas_state()
        state.queued = {name: acceptor.backlog_length for name, acceptor in self._acceptors.items()}
        return state

    async def list_connections(self) -> ConnectionList:
        """Return all connections that are open to the broker; not those that wait or are held."""
        return await self._handler.list_connections()

    def close_connection(self, number: int) -> bool:
        """Close the connection with this number for an operator, and return whether it was open."""
        return self._handler.close_connection(number, "closed_by_operator")

    async def snapshot(self) -> Snapshot:
        """Return the current counters of all processes."""
        snapshot = await self._handler.snapshot()
        snapshot.draining = self.draining
        snapshot.quotas = self.quotas_state()
        snapshot.certificate_expiry = self._expiry.timestamps
        private = moved(self._config.private_api_key_base)
        snapshot.private_apis = {key: api.name for key, api in private.items()}
        return snapshot

    def _resume_accepting(self) -> None:
        """Resume every listener that may accept now."""
        if self._handler.is_full:
            return
        for name, acceptor in self._acceptors.items():
            if not self._admission.is_blocked(name):
                acceptor.start_accepting()

    def _listen(self, listener: Listener) -> Acceptor:
        def on_accept(sock: socket.socket, address: tuple[str, int]) -> bool:
            if listener.proxy_protocol == "required":
                self._proxy_headers.read_header(listener, sock, address, partial(self._submit, listener))
            else:
                self._submit(listener, sock, address)
            return not (self._admission.is_blocked(listener.name) or self._handler.is_full)

        def on_out_of_capacity(error: str) -> None:
            self._rate_limited.warning("accept_out_of_capacity", listener=listener.name, error=error)

        backlog = self._config.socket_listen_backlog_size
        counters = self._handler.listener_counters[listener.name]
        return Acceptor(
            listener.bind.host,
            listener.bind.port,
            backlog,
            counters,
            on_accept,
            on_out_of_capacity,
            free_connections=self._free_connections,
        )

    def _free_connections(self) -> int:
        """Return for how many more connections there are descriptors, two for each."""
        accepted = self._proxy_headers.pending + self._admission.waiting_connections + self._handler.local_connections
        return (usable_descriptors() - self._other_descriptors) // DESCRIPTORS_PER_CONNECTION - accepted

    def _submit(self, listener: Listener, sock: socket.socket, address: tuple[str, int]) -> None:
        host, port = address
        self._admission.submit(listener, sock, canonical(host) if ":" in host else host, port)
