"""Carries connections: an accepted client in, a connection to the broker beside it, a relay between the two.

It knows neither where clients come from nor who observes them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection
from time import monotonic

import structlog

from proxy.config import Config, Listener
from proxy.config.types import SecurityProtocol
from proxy.core.budget import Budget
from proxy.core.causes import Cause
from proxy.core.exchange import Connection, ConnectionChange, PrincipalSource
from proxy.core.identity import Identity
from proxy.core.session import Session
from proxy.core.tally import Tally
from proxy.core.watch import Watch
from proxy.net.connection_setup import ConnectionSetups
from proxy.net.dead_peers import LostPeers
from proxy.net.listener_interceptors import Replying
from proxy.net.relay import Relay, repeated
from proxy.net.upstream import Upstream
from proxy.replies.broker_metadata import Fleet, FleetView
from proxy.telemetry import Repeated

log = structlog.get_logger(__name__)

DRAIN_POLL = 0.02
"""Seconds between two looks at which connections have nothing open any more."""

PRINCIPALS: dict[SecurityProtocol, tuple[str, PrincipalSource]] = {
    "PLAINTEXT": ("User:ANONYMOUS", "anonymous"),
    "SASL_PLAINTEXT": ("User:ANONYMOUS", "unauthenticated"),
    "SSL": ("User:<unknown:SSL>", "unknown"),
    "SASL_SSL": ("User:<unknown:SASL_SSL>", "unknown"),
}
"""Who a client is as long as it has not said more, and how that is known."""

DECODED = {"PLAINTEXT", "SASL_PLAINTEXT"}
"""Security protocols whose frames can be read; the others pass through as bytes."""


class Carrier:
    """All connections of one process. ``watch``: those who observe them, or None. Belongs to the loop's thread."""

    def __init__(self, config: Config, watch: Watch | None) -> None:
        self.tallies = {listener.name: Tally() for listener in config.listeners}
        self.relays: dict[Relay, int] = {}
        """What is open, and the number it was carried under."""
        self._flushing: set[Relay] = set()  # closed, and not all that was written has been taken yet
        self._config = config
        self._watch = watch
        self.budget = Budget()
        patience = config.upstream_connect_timeout_ms / 1000
        self._upstreams = {
            listener.name: Upstream(listener.upstream, patience, listener.upstream_source)
            for listener in config.listeners
        }
        self._repeated = Repeated(log)
        self._fleet = Fleet(FleetView(config.broker_id, ()))
        self._replying = {
            listener.name: Replying(config, listener, self._upstreams[listener.name], self._fleet, self._repeated)
            for listener in config.listeners
            if listener.security_protocol in DECODED
        }
        for replying in self._replying.values():
            replying.inquiry.ask()
        self._connecting: dict[Relay, asyncio.Task[None]] = {}
        self._ended: Callable[[int], None] = lambda number: None
        self._lost_peers = LostPeers(self.relays)
        self._setups = ConnectionSetups(config.connection_setup_timeout_ms)

    @property
    def holding(self) -> int:
        """Connections that have descriptors, or need them."""
        return len(self.relays) + len(self._flushing)

    def on_end(self, call: Callable[[int], None]) -> None:
        """Call it once with the number of each connection that was carried, when that has ended."""
        self._ended = call

    def change(self, config: Config) -> None:
        """Take what can be changed: the listeners' answers, and the time of first requests."""
        self._setups.timeout_ms = config.connection_setup_timeout_ms
        for listener in config.listeners:
            if listener.name in self._replying:
                self._replying[listener.name].change(config, listener)

    def tell(self, view: FleetView) -> None:
        """Take what is known of all brokers now."""
        self._fleet.view = view
        for replying in self._replying.values():
            replying.look()

    def carry(self, listener: Listener, sock: socket.socket, address: tuple[str, int], number: int) -> None:
        """Take over ``sock``, a client accepted from ``address``. ``number``: unique in one run of the sidecar."""
        tally = self.tallies[listener.name]
        bind = listener.bind
        connection_id = f"{bind.host}:{bind.port}-{address[0]}:{address[1]}-{number}"
        protocol = listener.security_protocol
        principal, source = PRINCIPALS[protocol]
        connection = Connection(
            connection_id, listener.name, address[0], address[1], monotonic(), principal, principal_source=source
        )
        session = None
        if (replying := self._replying.get(listener.name)) is not None:
            replying.inquiry.refresh()
            identity = None
            if self._watch or source == "unauthenticated":  # what is answered here depends on who asks
                identity = Identity(connection, listener.sasl_oauthbearer_sub_claim_name)
            max_frame = self._config.socket_request_max_bytes
            session = Session(connection, tally, self._watch, max_frame, identity, replying.rules, self.budget)
        relay = Relay(connection, session, tally, self._closed, self._flushing.discard)
        self.relays[relay] = number
        tally.active += 1
        self._note(ConnectionChange(connection, "opened", connection.opened_at))
        task = asyncio.get_running_loop().create_task(self._connect(relay, sock, self._upstreams[listener.name]))
        self._connecting[relay] = task
        task.add_done_callback(lambda _: self._connecting.pop(relay))

    async def _connect(self, relay: Relay, sock: socket.socket, upstream: Upstream) -> None:
        """Connect an accepted client to the broker; from then on the relay runs by itself."""
        attached = False
        try:
            broker = await upstream.connect()
            if relay.closed:
                broker.close()
            else:
                attached = True
                await relay.attach(sock, broker)
                if not relay.closed:
                    self._setups.begin(relay)
        except Exception as error:  # mostly OSError, but a name may also be no name
            relay.tally.upstream_failures += 1
            reason = str(error) or f"no answer within {self._config.upstream_connect_timeout_ms} ms"
            self._repeated.warning("upstream_unreachable", upstream=str(upstream), error=reason)
            relay.close("upstream_unreachable")
            self._ask_again(relay)
        except asyncio.CancelledError:
            relay.close("drain_completed")
            raise
        finally:
            if not attached:
                sock.close()

    def _closed(self, relay: Relay, cause: Cause, detail: str) -> None:
        number = self.relays.pop(relay)
        self._setups.end(relay)
        if not relay.gone:
            self._flushing.add(relay)
        relay.tally.active -= 1
        relay.tally.closed[cause] += 1
        if self._watch is not None:
            counts = (relay.requests, relay.received_bytes, relay.sent_bytes)
            at, client_id = monotonic(), relay.client_id
            self._note(ConnectionChange(relay.connection, "closed", at, cause, 0, 0, *counts, client_id))
        if detail and cause.startswith(("client_invalid", "broker_")):
            self._repeated.warning(
                "connection_refused" if cause.startswith("client") else "connection_broken",
                connection_id=relay.id,
                cause=cause,
                detail=detail,
            )
        if cause.startswith("broker_"):
            self._ask_again(relay)
        self._ended(number)

    def _ask_again(self, relay: Relay) -> None:
        """The broker has ended a connection, or refused one: it may be another version when it comes back."""
        if (replying := self._replying.get(relay.connection.listener)) is not None:
            replying.inquiry.ask()

    def _note(self, change: ConnectionChange) -> None:
        if self._watch is not None:
            self._watch.observed[0] += 1
            self._watch.note(change)

    def idlest(self, listeners: Collection[str]) -> tuple[int, float] | None:
        """Return the connection of ``listeners`` that was longest without a byte: its number, and since when.

        Seconds of the monotonic clock, which all processes of a machine share. None where nothing is open.
        """
        tallies = [self.tallies[name] for name in listeners]
        relays = [relay for relay in self.relays if any(relay.tally is tally for tally in tallies)]
        if not relays:
            return None
        idlest = min(relays, key=lambda relay: relay.last_byte_at)
        return self.relays[idlest], idlest.last_byte_at

    def evict(self, number: int) -> None:
        """Close this connection, if it is still open."""
        for relay in [relay for relay, its_number in self.relays.items() if its_number == number]:
            relay.close("evicted")
            if relay in self._connecting:
                self._connecting[relay].cancel()

    def close_idlest(self, listeners: Collection[str]) -> None:
        """Close the connection of ``listeners`` that was longest without a byte, if any is open, in a moment."""
        asyncio.get_running_loop().call_soon(self._close_idlest, listeners)

    def _close_idlest(self, listeners: Collection[str]) -> None:
        if (found := self.idlest(listeners)) is not None:
            self.evict(found[0])

    async def drain(self, patience: float) -> None:
        """Let open requests be answered, then close; whatever is open after ``patience`` seconds is cut."""
        await asyncio.sleep(0)  # what was just carried begins to connect: it could not clean up before
        for replying in self._replying.values():
            replying.inquiry.stop()
        for task in list(self._connecting.values()):
            task.cancel()
        for relay in list(self.relays):
            relay.stop_reading_requests()
        log.info("draining", connections=len(self.relays), patience_s=patience)
        deadline = monotonic() + patience
        while (self.relays or self._flushing) and monotonic() < deadline:
            for relay in list(self.relays):
                if relay.quiet:
                    relay.close("drain_completed")
            await asyncio.sleep(DRAIN_POLL)
        self.cut()
        await asyncio.sleep(0)  # transports finish closing in the next turn of the loop

    def cut(self) -> None:
        """End whatever is still open, at once. Nothing is recorded afterwards."""
        cut = len(self.relays) + len(self._flushing)
        for relay in list(self.relays):
            relay.close("drain_timeout", abort=True)
        for relay in list(self._flushing):
            relay.abort()
        log.info("drained", cut=cut)

    def beat(self) -> None:
        """To be called at each beat, once observers have been handed what was recorded: let connections go on that wait
        for memory, end those whose peer is gone or whose first request does not come, and log how often a repeated
        warning was held back."""
        self.budget.handed_over()
        self.budget.wake()
        self._lost_peers.beat()
        self._setups.beat()
        self._repeated.flush()
        repeated.flush()
