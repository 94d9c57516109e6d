"""All listeners of the sidecar. Each accepted client passes the admission control and then goes to the connection
handler."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from functools import partial
from typing import NamedTuple

import structlog

from proxy.config import Config, Listener
from proxy.config.limits import limits_of
from proxy.limits.inheritance import PendingState
from proxy.limits.model import ClusterQuotas, QuotasState, canonical
from proxy.net.acceptor import Acceptor
from proxy.net.admission import AdmissionControl
from proxy.net.certificate_expiry import CertificateExpiry
from proxy.net.connection_handler import ConnectionHandler
from proxy.net.descriptors import DESCRIPTORS_PER_CONNECTION, OpenDescriptors, usable_descriptors
from proxy.net.listening_sockets import ListeningSockets, PassedSocket, close_all
from proxy.net.open_connections import ConnectionList, KafkaConnection
from proxy.net.proxy_header import PartialHeader, ProxyHeaderReader
from proxy.net.sockets import AcceptedSocket
from proxy.net.ticker import Ticker
from proxy.protocol.private import moved
from proxy.telemetry import RateLimitedLogger
from proxy.telemetry.snapshot import Snapshot

log = structlog.get_logger(__name__)


class PassedConnection(NamedTuple):
    """An accepted connection that is not admitted yet, and moves to another process.

    ``address``: of the client. ``header``: the part of its PROXY header that was read; None if it needs none any more.
    """

    listener: str
    sock: AcceptedSocket
    address: tuple[str, int]
    header: bytes | None
    state: PendingState = PendingState()


class ListenerManager:
    """Listens on ``config.listeners`` and passes admitted connections to ``handler``.

    ``sockets``: finds the listening sockets; without it all of them are new ones.
    """

    def __init__(
        self, config: Config, handler: ConnectionHandler, ticker: Ticker, sockets: ListeningSockets | None = None
    ) -> None:
        self.draining = False
        self.not_ready_reason: str | None = None
        """Why the sidecar should get no connections, as set from outside; None if it should."""
        self._config = config
        self._listeners = {listener.name: listener for listener in config.listeners}
        self._cluster_quotas = ClusterQuotas()
        self._handler = handler
        self._acceptors: dict[str, Acceptor] = {}
        self._sockets = sockets or ListeningSockets([])
        self._descriptors = OpenDescriptors()
        self._accepting = False
        self._inherited_headers: list[PartialHeader] = []
        self.admission = AdmissionControl(limits_of(config), handler, self._resume_accepting)
        self._rate_limited = RateLimitedLogger(log)
        self._proxy_headers = ProxyHeaderReader(handler.listener_counters)
        self._expiry = CertificateExpiry(config)
        ticker.callbacks += [self.admission.on_tick, self._proxy_headers.flush_warnings, self._rate_limited.flush]
        ticker.callbacks.append(self._expiry.on_tick)
        handler.on_capacity(self._resume_accepting)

    def start(self) -> None:
        """Listen on every listener, or on none, and accept. Raises LocalError if a socket cannot be bound."""
        self.open()
        self.start_accepting()

    def open(self) -> None:
        """Listen on every listener, or on none. Connections wait in the kernel's backlog until ``start_accepting``.

        Raises LocalError if a socket cannot be bound to its address.
        """
        try:
            for listener in self._config.listeners:
                if listener.name in self._acceptors:  # a reload has opened it while the sidecar started
                    continue
                sock = self._sockets.open(listener.name, listener.bind, self._config.socket_listen_backlog_size)
                self._acceptors[listener.name] = self._create_acceptor(listener.name, sock)
        except BaseException:
            self.close()
            raise

    def start_accepting(self) -> None:
        """Accept connections on all listeners that are open."""
        self._accepting = True
        self.admission.resume()  # there may be connections that a predecessor has accepted
        for one in self._inherited_headers:
            on_header = partial(self._submit, one.listener)
            self._proxy_headers.read_header(one.listener, one.sock, one.address, on_header, one.data)
        self._inherited_headers.clear()
        self._resume_accepting()
        self._log_listening(self._listeners)

    @property
    def listening_sockets(self) -> list[PassedSocket]:
        """The listening sockets with the names of their listeners, for a successor."""
        return [PassedSocket(name, acceptor.socket) for name, acceptor in self._acceptors.items()]

    def pause(self) -> None:
        """Accept, admit and refuse nothing until ``resume``."""
        self._accepting = False
        for acceptor in self._acceptors.values():
            acceptor.stop_accepting()
        self._proxy_headers.pause()
        self.admission.pause()

    def resume(self) -> None:
        """Continue after ``pause``."""
        self._accepting = True
        self._proxy_headers.resume()
        self.admission.resume()
        self._resume_accepting()

    def pending(self) -> list[PassedConnection]:
        """Return all accepted connections that are not admitted yet. Needs ``pause``. Their sockets stay open here."""
        headers = [
            PassedConnection(one.listener.name, one.sock, one.address, one.data)
            for one in self._proxy_headers.pending()
        ]
        return headers + [
            PassedConnection(one.listener.name, one.sock, (one.host, one.port), None, state)
            for state, one in self.admission.pending()
        ]

    def release(self) -> None:
        """Close the listening sockets and those of ``pending``, which a successor has, too, and drain from now on."""
        self.draining = True
        self._close_acceptors()
        self._proxy_headers.forget_pending()
        self.admission.forget_pending()

    def inherit_pending(self, passed: PassedConnection) -> None:
        """Take ownership of a connection of ``pending`` of the predecessor. It continues with ``start_accepting``."""
        listener = self._listeners.get(passed.listener)
        if listener is None:
            passed.sock.close()
            return
        self._handler.listener_counters[listener.name].accepted += 1
        if passed.header is None:
            self.admission.inherit_pending(listener, passed.sock, *passed.address, passed.state)
        else:
            self._inherited_headers.append(PartialHeader(listener, passed.sock, passed.address, passed.header))

    def close(self) -> None:
        """Stop accepting, and close connections that are not admitted yet."""
        self.draining = True
        self._close_acceptors()
        self._proxy_headers.close()
        self.admission.close()

    @property
    def readiness_problem(self) -> str | None:
        """Why the sidecar does not accept connections now; None if it does."""
        if self.draining:
            return "draining"
        if not self._accepting:
            return "starting"
        return self.not_ready_reason if self._handler.is_available else "no worker runs"

    @property
    def degradation(self) -> str:
        """What works in part only although connections are served, in one sentence; empty for nothing."""
        return self._handler.degradation

    def open_new(self, config: Config) -> dict[str, socket.socket]:
        """Return listening sockets for the listeners of ``config`` that are new or have another address.

        An address that another listener has now is taken from it. Not for the event loop's thread, since a host name
        may have to be resolved. Raises LocalError if one cannot be bound.
        """
        binds = {listener.name: listener.bind for listener in self._config.listeners}
        wanted = [listener for listener in config.listeners if binds.get(listener.name) != listener.bind]
        acceptors = list(self._acceptors.items()) if wanted else []
        sockets = ListeningSockets([PassedSocket(name, acceptor.socket.dup()) for name, acceptor in acceptors])
        opened: dict[str, socket.socket] = {}
        try:
            for listener in wanted:
                opened[listener.name] = sockets.open(listener.name, listener.bind, config.socket_listen_backlog_size)
        except BaseException:
            close_all(opened.values())
            raise
        finally:
            sockets.close_unused()
        return opened

    def update_config(self, config: Config, opened: Mapping[str, socket.socket]) -> None:
        """Apply a new configuration, whose new listeners have the sockets of ``open_new``."""
        before = {listener.name for listener in self._config.listeners}
        self._config = config
        self._listeners = {listener.name: listener for listener in config.listeners}
        for name in before - self._listeners.keys() | opened.keys() & before:
            if (acceptor := self._acceptors.pop(name, None)) is not None:
                acceptor.close()
                log.info("listener_closed", listener=name)
        self._expiry.update_config(config)
        self.admission.update_limits(limits_of(config, self._cluster_quotas))
        for name, sock in opened.items():
            self._acceptors[name] = self._create_acceptor(name, sock)
        for acceptor in self._acceptors.values():
            acceptor.socket.listen(config.socket_listen_backlog_size)
        self._log_listening(opened)
        self._resume_accepting()

    def update_cluster_quotas(self, stored: ClusterQuotas) -> None:
        """Apply the quotas that are stored in the cluster."""
        self._cluster_quotas = stored
        self.admission.update_limits(limits_of(self._config, stored))

    def quotas_state(self) -> QuotasState:
        """Return the current state of the limits."""
        state = self.admission.quotas_state()
        state.queued = {name: acceptor.backlog_length for name, acceptor in self._acceptors.items()}
        return state

    async def list_connections(self) -> ConnectionList:
        """Return all connections that are open to the broker; not those that wait or are held."""
        return await self._handler.list_connections()

    async def find_connection(self, number: int) -> KafkaConnection | None:
        """Return the connection with this number; None if it is not open. Raises TimeoutError if its worker does not
        answer."""
        return await self._handler.find_connection(number)

    def close_connection(self, number: int) -> bool:
        """Close the connection with this number for an operator, and return whether it was open."""
        return self._handler.close_connection(number, "closed_by_operator")

    async def snapshot(self) -> Snapshot:
        """Return the current counters of all processes."""
        snapshot = await self._handler.snapshot(self.quotas_state)
        snapshot.draining = self.draining
        snapshot.predecessor_connections = self.admission.inherited_connections
        snapshot.certificate_expiry = self._expiry.timestamps
        private = moved(self._config.private_api_key_base, coordinator=self._config.coordinator.enabled)
        snapshot.private_apis = {key: api.name for key, api in private.items()}
        return snapshot

    def _close_acceptors(self) -> None:
        self._accepting = False
        for acceptor in self._acceptors.values():
            acceptor.close()
        self._acceptors.clear()

    def _resume_accepting(self) -> None:
        """Resume every listener that may accept now."""
        if self._handler.is_full or not self._accepting:
            return
        for name, acceptor in self._acceptors.items():
            if not acceptor.accepting and not self.admission.is_blocked(name):
                acceptor.start_accepting()

    def _log_listening(self, names: Iterable[str]) -> None:
        for listener in map(self._listeners.__getitem__, names):
            log.info("listening", listener=listener.name, bind=str(listener.bind), upstream=str(listener.upstream))

    def _create_acceptor(self, name: str, sock: socket.socket) -> Acceptor:
        def on_accept(sock: AcceptedSocket, address: tuple[str, int]) -> bool:
            self._descriptors.connection_accepted()
            listener = self._listeners[name]
            if listener.proxy_protocol == "required":
                self._proxy_headers.read_header(listener, sock, address, partial(self._submit, listener))
            else:
                self._submit(listener, sock, address)
            return not (self.admission.is_blocked(name) or self._handler.is_full)

        def on_out_of_capacity(error: str) -> None:
            self._rate_limited.warning("accept_out_of_capacity", listener=name, error=error)

        counters = self._handler.listener_counters[name]
        return Acceptor(sock, counters, on_accept, on_out_of_capacity, free_connections=self._free_connections)

    def _free_connections(self) -> int:
        """Return for how many more connections there are descriptors, two for each.

        The sidecar's own clients of the cluster open more all the time: each has one or two for every broker.
        """
        waiting = self._proxy_headers.pending_count + self.admission.waiting_connections
        usable = usable_descriptors(self._config) - waiting - self._handler.missing_descriptors
        return (usable - self._descriptors.count(usable - 1)) // DESCRIPTORS_PER_CONNECTION

    def _submit(self, listener: Listener, sock: AcceptedSocket, address: tuple[str, int]) -> None:
        if listener.name not in self._listeners:  # it was removed while the PROXY header was read
            self._handler.listener_counters[listener.name].closed["drain_completed"] += 1
            sock.close()
            return
        host, port = address
        self.admission.submit(listener, sock, canonical(host) if ":" in host else host, port)
