# cython: language_level=3, annotation_typing=False
"""All connections of one process. It connects each admitted client to the broker and relays between the two.

This module knows neither where clients come from nor who observes them.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from time import monotonic

import cython
import structlog

from proxy.config import Config, Listener
from proxy.core.budget import Budget
from proxy.core.causes import Cause
from proxy.core.counters import ListenerCounters
from proxy.core.exchange import Connection, ConnectionTransition
from proxy.core.observation_interest import ObservationSink
from proxy.core.principal_tracker import PrincipalTracker
from proxy.core.session import Session
from proxy.errors import PeerError, describe_os_error
from proxy.interceptors.consumer_groups import Registration
from proxy.limits.principal_quotas import Logins
from proxy.net.client_identity import identified
from proxy.net.connection_lifetime import ConnectionLifetime
from proxy.net.connection_setup import SetupDeadlines, has_unread_bytes
from proxy.net.consumer_handover import HandedConnection, TakeConsumer, refuse_consumer
from proxy.net.dead_peers import DeadPeerDetector
from proxy.net.deferred_requests import create_slots
from proxy.net.relay import Relay, rate_limited
from proxy.net.serving_listeners import ServingListener, ServingListeners
from proxy.net.sockets import AcceptedSocket
from proxy.net.tls_contexts import TlsContexts
from proxy.net.tls_handshake import TlsHandshake
from proxy.net.tls_stream import TlsStream
from proxy.telemetry import RateLimitedLogger

if not cython.compiled:
    from proxy.core.observation import subscribers_of

log = structlog.get_logger(__name__)

DRAIN_POLL_INTERVAL = 0.02
"""Seconds between two checks for connections that can be closed during a drain."""

SPREAD_SHARE = 0.5
"""Part of the drain's time in which connections end one after the other, if a successor runs."""


@cython.cclass
class ConnectionManager:
    """All connections of one process. ``sink``: what observers want, None without observers. Belongs to the loop's
    thread."""

    def __init__(self, config: Config, sink: ObservationSink | None) -> None:
        self.listener_counters: dict[str, ListenerCounters] = {}
        """Counters by listener name; also of listeners that a reload has removed."""
        self.relays: dict[Relay, int] = {}
        """Open relays, with the numbers of their connections."""
        self._flushing: set[Relay] = set()  # closed relays with unsent bytes
        self._config = config
        self._max_frame = config.socket_request_max_bytes
        self.sink = sink
        self.budget = Budget()
        self._of_relays = self._on_relay_closed, self._flushing.discard, self._on_given_up, create_slots()
        self._tls = TlsContexts(config)
        self._rate_limited = RateLimitedLogger(log)
        self.listeners = ServingListeners(config, self._tls, self._rate_limited)
        self._count_listeners()
        self._connecting: dict[Relay, asyncio.Task[None]] = {}
        self._handshakes: dict[Relay, TlsHandshake] = {}  # with clients
        self._ending: set[asyncio.Task[None]] = set()  # connections of removed listeners
        self.by_number: dict[int, Relay] = {}
        """The same by their numbers, which grow."""
        self._on_connection_closed: Callable[[int], None] = lambda number: None
        self._take_consumer: TakeConsumer = refuse_consumer
        self._on_logins: Callable[[Logins, bool], None] | None = None
        self._logins: Logins = []  # not reported yet
        self._dead_peers = DeadPeerDetector(self.relays)
        self._setup_deadlines = SetupDeadlines(
            config.connection_setup_timeout_ms, has_unread_bytes=self._has_unread_bytes
        )
        self._lifetime = ConnectionLifetime(self.relays, config.connections_max_idle_ms, config.connections_max_age_ms)

    @property
    def missing_descriptors(self) -> int:
        """Descriptors of connections to the broker that there are not yet; or that have not succeeded yet."""
        return len(self._handshakes) + len(self._connecting)

    def on_connection_closed(self, callback: Callable[[int], None]) -> None:
        """Call ``callback`` once with the number of each connection that has ended."""
        self._on_connection_closed = callback

    def report_logins(self, callback: Callable[[Logins, bool], None] | None) -> None:
        """Call ``callback(logins, earlier)`` for clients that log in from now on, each once; None for nobody.

        ``earlier``: whether they had logged in before this call. ``callback`` gets those, too, at once. It may close
        connections.
        """
        known, self._on_logins = self._on_logins, callback
        if known is None and callback is not None:
            named = [(n, relay.connection) for relay, n in self.relays.items() if relay.descriptor("client") >= 0]
            earlier = [(number, one.principal) for number, one in named if one.principal_source in ("sasl", "mtls")]
            if earlier:
                callback(earlier, True)

    async def prepare_config(self, config: Config) -> None:
        """Build what ``update_config`` needs and what may fail. Raises LocalError."""
        await self._tls.prepare_config(config)

    def discard_config(self) -> None:
        """Forget what ``prepare_config`` has built."""
        self._tls.discard()

    def update_config(self, config: Config, sink: ObservationSink | None) -> None:
        """Apply the reloadable keys. Open connections continue with the upstream and the interceptors that they have.

        Those of a listener that is no more there end between two requests. ``sink``: for new connections.
        Raises LocalError, and applies nothing, where ``prepare_config`` was not called and cannot succeed.
        """
        self._tls.update_config(config)
        self._config, self.sink = config, sink
        self._max_frame = config.socket_request_max_bytes
        self._setup_deadlines.timeout_ms = config.connection_setup_timeout_ms
        self._lifetime.max_idle_ms = config.connections_max_idle_ms
        self._lifetime.max_age_ms = config.connections_max_age_ms
        self._count_listeners()
        self.listeners.update_config(config)
        if gone := [relay for relay in self.relays if relay.connection.listener not in self.listeners.by_name]:
            task = asyncio.get_running_loop().create_task(self._end_removed(gone, config.drain_timeout_ms / 1000))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _count_listeners(self) -> None:
        for listener in self._config.listeners:
            self.listener_counters.setdefault(listener.name, ListenerCounters())

    def handle_connection(
        self, listener: Listener, sock: AcceptedSocket, address: tuple[str, int], number: int
    ) -> None:
        """Take ownership of ``sock``, a client accepted from ``address``. ``number`` is unique during one run of the
        sidecar."""
        name = listener.name
        serving = self.listeners.by_name[name]  # it may have changed since the connection was accepted
        counters = self.listener_counters[name]
        host, port = address
        principal, source = serving.initial_principal
        connection = Connection(
            f"{serving.bind}-{host}:{port}-{number}", name, host, port, monotonic(), principal, None, None, source
        )
        session = None if serving.tls.server is not None else self._create_session(serving, connection, number)
        relay = Relay(connection, session, counters, *self._of_relays)
        self.relays[relay] = number
        self.by_number[number] = relay
        counters.active += 1
        if self.sink is not None:
            self.notify_observers(ConnectionTransition(connection, "opened", connection.opened_at))
        if serving.tls.server is None:
            self._connect(relay, sock, serving, number)
        else:
            self._shake_hands(relay, sock, serving, serving.tls.server, number)

    def _create_session(self, serving: ServingListener, connection: Connection, number: int) -> Session | None:
        """Return the session of a client that may send requests now; None where frames cannot be read."""
        if (interceptors := serving.interceptors) is None:
            return None
        interceptors.versions_probe.start_if_stale(connection.opened_at)
        principal_tracker = None
        if self.sink or connection.principal_source == "unauthenticated":  # interceptors need the principal
            principal_tracker = PrincipalTracker(
                connection, serving.settings.sasl_oauthbearer_sub_claim_name, partial(self._on_login, number)
            )
        counters = self.listener_counters[connection.listener]
        return Session(
            connection, counters, self.sink, self._max_frame, principal_tracker, interceptors.chain, self.budget
        )

    def _connect(
        self, relay: Relay, sock: AcceptedSocket, serving: ServingListener, number: int, tls: TlsStream | None = None
    ) -> None:
        """Connect a client to the broker and start its relay. ``tls``: of the client, which has shaken hands."""
        near = serving.upstream.near
        broker = -1 if near is None else near.connect_at_once()
        if broker >= 0:
            try:
                self._start_relay(relay, sock, broker, number, tls, None)
            except OSError as error:  # the connection must not end before ``handle_connection`` does
                asyncio.get_running_loop().call_soon(self._on_upstream_failure, relay, serving, error)
            return
        task = asyncio.get_running_loop().create_task(self._set_up(relay, sock, serving, number, tls))
        self._connecting[relay] = task
        task.add_done_callback(partial(self._on_set_up, relay, sock))

    def _on_set_up(self, relay: Relay, sock: AcceptedSocket, _: asyncio.Task[None]) -> None:
        """Also called for a task that was cancelled before it ran."""
        del self._connecting[relay]
        sock.close()  # nothing happens where the relay has it

    async def _set_up(
        self, relay: Relay, sock: AcceptedSocket, serving: ServingListener, number: int, tls: TlsStream | None
    ) -> None:
        try:
            broker, broker_tls = await serving.upstream.open()
            if relay.closed:
                broker.close()
            else:
                self._start_relay(relay, sock, broker.detach(), number, tls, broker_tls)
        except PeerError as error:  # the broker's handshake failed
            relay.counters.upstream_failures += 1
            relay.close("broker_tls_failed", f"{serving.upstream}: {error.detail}")
        except Exception as error:  # mostly OSError; an invalid host name raises ValueError
            self._on_upstream_failure(relay, serving, error)

    def _start_relay(
        self,
        relay: Relay,
        sock: AcceptedSocket,
        broker: int,
        number: int,
        tls: TlsStream | None,
        broker_tls: TlsStream | None,
    ) -> None:
        """Raises OSError after closing both sockets."""
        relay.attach(sock, broker, tls, broker_tls)
        if not relay.closed:
            self._setup_deadlines.start(relay)
            if relay.connection.principal_source == "mtls":
                self._on_login(number, relay.connection.principal)

    def _on_upstream_failure(self, relay: Relay, serving: ServingListener, error: Exception) -> None:
        relay.counters.upstream_failures += 1
        reason = describe_os_error(error) or f"no answer within {self._config.upstream_connect_timeout_ms} ms"
        self._rate_limited.warning("upstream_unreachable", upstream=str(serving.upstream), error=reason)
        relay.close("upstream_unreachable")
        self._restart_probe(relay)

    def _shake_hands(
        self, relay: Relay, sock: AcceptedSocket, serving: ServingListener, context: ssl.SSLContext, number: int
    ) -> None:
        stream = TlsStream(context)
        on_end = partial(self._on_handshake_end, relay, sock, serving, number, stream)
        handshake = self._handshakes[relay] = TlsHandshake(stream, sock, on_end)
        self._setup_deadlines.start(relay)
        try:
            handshake.start()
        except OSError as error:  # the connection must not end before ``handle_connection`` does
            asyncio.get_running_loop().call_soon(on_end, error)

    def _on_handshake_end(
        self,
        relay: Relay,
        sock: AcceptedSocket,
        serving: ServingListener,
        number: int,
        stream: TlsStream,
        error: Exception | None,
    ) -> None:
        """Learn who a client is, and connect it to the broker, or close ``relay`` because of ``error``."""
        try:
            if error is not None:
                raise error
            relay.counters.tls_handshakes[stream.version, "resumed" if stream.is_resumed else "full"] += 1
            connection, problem = identified(relay.connection, serving.settings, stream, serving.tls.mapper)
            if problem is not None:
                relay.identify(connection, None)
                raise problem
            relay.identify(connection, self._create_session(serving, connection, number))
            if connection.principal_source == "mtls":
                self.notify_observers(ConnectionTransition(connection, "authenticated", monotonic()))
            self._setup_deadlines.cancel(relay)
            self._connect(relay, sock, serving, number, stream)
            self._handshakes.pop(relay, None)  # before, closing the relay closes the socket
        except PeerError as failure:
            relay.close("client_tls_failed", failure.detail)
        except EOFError:
            relay.close("client_closed")
        except OSError as failure:
            relay.close("client_reset", failure.strerror or "")
        except Exception as failure:
            log.error("relay_failed", connection_id=relay.id, error=type(failure).__name__, exc_info=failure)
            relay.close("client_reset", str(failure))

    def _has_unread_bytes(self, relay: Relay) -> bool:
        """Return whether this process is late, and not the client."""
        handshake = self._handshakes.get(relay)
        return has_unread_bytes(relay) if handshake is None else handshake.is_late

    def _on_login(self, number: int, principal: str) -> None:
        """Report the login in the next turn of the loop: the chunk that ends it is still being processed."""
        if self._on_logins is not None:
            if not self._logins:
                asyncio.get_running_loop().call_soon(self._flush_logins)
            self._logins.append((number, principal))

    def _flush_logins(self) -> None:
        logins, self._logins = self._logins, []
        if self._on_logins is not None:
            self._on_logins(logins, False)

    def _on_relay_closed(self, relay: Relay, cause: Cause, detail: str) -> None:
        number = self.relays.pop(relay)
        del self.by_number[number]
        self._setup_deadlines.cancel(relay)
        if (handshake := self._handshakes.pop(relay, None)) is not None:
            handshake.abort()
            handshake.sock.close()
        if not relay.is_finished:
            self._flushing.add(relay)
        relay.counters.active -= 1
        relay.counters.closed[cause] += 1
        if self.sink is not None:
            counts = (relay.requests, relay.received_bytes, relay.sent_bytes)
            at, client_id = monotonic(), relay.client_id
            self.notify_observers(ConnectionTransition(relay.connection, "closed", at, cause, 0, 0, *counts, client_id))
        if detail and cause.startswith(("client_invalid", "client_tls", "broker_")):
            self._rate_limited.warning(
                "connection_refused" if cause.startswith("client") else "connection_broken",
                connection_id=relay.id,
                cause=cause,
                detail=detail,
            )
        if cause.startswith("broker_"):
            self._restart_probe(relay)
        self._on_connection_closed(number)

    def _on_given_up(
        self,
        relay: Relay,
        registration: Registration,
        correlation_id: int,
        client: socket.socket,
        broker: socket.socket,
        rest: bytes,
    ) -> None:
        """Pass a connection on whose client registers as a consumer. It counts where it is taken from now on."""
        number = self.relays.pop(relay)
        del self.by_number[number]
        self._setup_deadlines.cancel(relay)
        relay.counters.active -= 1
        connection, session = relay.connection, relay.session
        handed = HandedConnection(
            number,
            connection,
            registration._replace(correlation_id=correlation_id),
            rest,
            relay.requests,
            relay.received_bytes,
            relay.sent_bytes,
            *((0.0, 0.0) if session is None else session.login),
        )
        if connection.principal_source == "anonymous":
            broker.close()
            self._take_consumer(handed, client, None)
        else:
            self._take_consumer(handed, client, broker)

    def _restart_probe(self, relay: Relay) -> None:
        """Ask the broker for its versions again. It closed or refused a connection, so it may have another version
        soon."""
        serving = self.listeners.by_name.get(relay.connection.listener)
        if serving is not None and serving.interceptors is not None:
            serving.interceptors.versions_probe.start()

    def on_consumer(self, callback: TakeConsumer) -> None:
        """Call ``callback`` with each connection whose client registers as a consumer."""
        self._take_consumer = callback

    def notify_observers(self, change: ConnectionTransition) -> None:
        """Report to the observers what has happened to a connection."""
        if self.sink is not None:
            subscribers_of(self.sink).add_change(change)

    def find_idlest(self, listeners: Collection[str]) -> tuple[int, float] | None:
        """Return the number of the connection of ``listeners`` that has been idle for longest, and when its last byte
        arrived.

        The time is in seconds of the monotonic clock, which all processes of a machine share. Returns None if nothing
        is open.
        """
        listener_counters = [self.listener_counters[name] for name in listeners]
        relays = [relay for relay in self.relays if any(relay.counters is counters for counters in listener_counters)]
        if not relays:
            return None
        idlest = min(relays, key=lambda relay: relay.last_byte_at)
        return self.relays[idlest], idlest.last_byte_at

    def close_connection(self, number: int, cause: Cause) -> bool:
        """Close the connection with this number for ``cause``, and return whether it was open."""
        relay = self.by_number.get(number)
        if relay is not None:
            relay.close(cause)
            if relay in self._connecting:
                self._connecting[relay].cancel()
        return relay is not None

    def hold_connection(self, number: int, hold_ms: int) -> None:
        """Do not read the client of the connection with this number for ``hold_ms``; 0: read it again."""
        if (relay := self.by_number.get(number)) is not None:
            relay.hold_client(hold_ms / 1000)

    def close_idlest(self, listeners: Collection[str]) -> None:
        """Schedule closing the connection of ``listeners`` that has been idle for longest, if any is open."""
        asyncio.get_running_loop().call_soon(self._close_idlest_now, listeners)

    def _close_idlest_now(self, listeners: Collection[str]) -> None:
        if (found := self.find_idlest(listeners)) is not None:
            self.close_connection(found[0], "evicted")

    async def drain(self, timeout_s: float, *, spread: bool = False) -> None:
        """Close each connection once its open requests are answered. After ``timeout_s`` seconds the rest is aborted.

        ``spread``: connections are served as before until it is their turn, evenly in the first part of the time
        (``SPREAD_SHARE``), which begins when none is being set up. So their clients do not connect again all at once.
        """
        deadline = monotonic() + timeout_s
        if spread:
            until = deadline - timeout_s * (1 - SPREAD_SHARE)
            while (self._connecting or self._handshakes) and monotonic() < until:  # noqa: ASYNC110  # rare
                await asyncio.sleep(DRAIN_POLL_INTERVAL)
        self.listeners.stop_probes()
        await self._end_setups(list(self.relays))
        log.info("draining", connections=len(self.relays), timeout_s=timeout_s, spread=spread)
        left = deadline - monotonic()
        await self._end_connections(list(self.relays), left, left * SPREAD_SHARE if spread else 0.0)
        self.abort_all()
        await asyncio.sleep(0)  # transports finish closing in the next iteration of the event loop

    async def _end_setups(self, relays: Sequence[Relay]) -> None:
        """Close those of ``relays`` that have no connection to the broker yet."""
        cancelled = []
        for relay in relays:
            if relay in self._handshakes:
                relay.close("drain_completed")
            elif (task := self._connecting.get(relay)) is not None and not task.done():
                relay.close("drain_completed")
                task.cancel()
                cancelled.append(task)
        if cancelled:
            await asyncio.wait(cancelled)

    async def _end_connections(self, relays: Sequence[Relay], timeout_s: float, spread_s: float = 0.0) -> None:
        """Close each of ``relays`` once its open requests are answered, for up to ``timeout_s`` seconds.

        The turn of each comes within ``spread_s`` seconds, in their order. Waits for all bytes to be sent.
        """
        began, waiting = monotonic(), deque(relays)
        ending: list[Relay] = []
        while ((waiting and self.relays) or ending or self._flushing) and (now := monotonic()) < began + timeout_s:
            turns = len(relays) if not spread_s else (now - began) / spread_s * len(relays)
            while waiting and len(relays) - len(waiting) < turns:
                relay = waiting.popleft()
                if not relay.closed:
                    relay.stop_reading_requests()
                    ending.append(relay)
            for relay in ending:
                if relay.is_drained and not relay.closed:
                    relay.close("drain_completed")
            ending = [relay for relay in ending if not relay.closed]
            await asyncio.sleep(DRAIN_POLL_INTERVAL)

    async def _end_removed(self, relays: Sequence[Relay], timeout_s: float) -> None:
        """Close all connections of listeners that are no more there."""
        await self._end_setups(relays)
        await self._end_connections(relays, timeout_s)
        for relay in relays:
            if not relay.closed:
                relay.close("drain_timeout", abort=True)

    def abort_all(self) -> None:
        """Close all open connections at once."""
        cut = len(self.relays) + len(self._flushing)
        for relay in list(self.relays):
            relay.close("drain_timeout", abort=True)
        for relay in list(self._flushing):
            relay.abort()
        log.info("drained", cut=cut)

    def on_tick(self) -> None:
        """Do the periodic work, after the observers got what was recorded. Called by the ticker.

        Resumes connections that wait for memory, closes those whose peer is gone or whose first request is late, and
        logs how often a rate-limited warning was suppressed.
        """
        self.budget.clear_recorded()
        self.budget.resume_waiters()
        self._dead_peers.on_tick()
        self._setup_deadlines.on_tick()
        self._lifetime.on_tick()
        self._rate_limited.flush()
        rate_limited.flush()
