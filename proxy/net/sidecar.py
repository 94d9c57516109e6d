"""The running sidecar: accept, connect upstream, relay, and at the end drain.

Nothing here waits for an observer: finished exchanges are appended to a list, and a timer hands the list over.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from time import monotonic

import structlog

from proxy.config import Config, Endpoint, Listener
from proxy.core.exchange import Connection, Exchange
from proxy.core.session import Session
from proxy.core.tally import Tally
from proxy.net.acceptor import CAPACITY_ERRORS, CAPACITY_RETRY, Acceptor
from proxy.net.relay import Cause, Relay
from proxy.telemetry import Repeated

log = structlog.get_logger(__name__)

FLUSH_INTERVAL = 0.05
"""Seconds between two hand-overs of finished exchanges to the observers; also the beat of the loop-lag probe."""

DRAIN_POLL = 0.02
"""Seconds between two looks at which connections have nothing open any more."""

USER_TIMEOUT_MS = 30_000
"""Milliseconds for which sent bytes may stay unacknowledged before a peer counts as gone (TCP_USER_TIMEOUT)."""

DECODED = {"PLAINTEXT", "SASL_PLAINTEXT"}
"""Security protocols whose frames can be read; the others pass through as bytes."""


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
        self.tallies = {listener.name: Tally() for listener in config.listeners}
        self.relays: set[Relay] = set()
        self._flushing: set[Relay] = set()  # closed, and not all that was written has been taken yet
        self.draining = False
        self.loop_lag = 0.0
        self._record = record
        self._flush = flush
        self._acceptors: list[Acceptor] = []
        self._connecting: set[asyncio.Task[None]] = set()
        self._index = 0
        self._repeated = Repeated(log)
        self._timer: asyncio.TimerHandle | None = None

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
            task = loop.create_task(self._carry(listener, sock, address))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

        def out_of_capacity(error: str) -> None:
            self._repeated.warning("accept_out_of_capacity", listener=listener.name, error=error)

        loop = asyncio.get_running_loop()
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

    async def _carry(self, listener: Listener, sock: socket.socket, address: tuple[str, int]) -> None:
        """Connect an accepted client to the broker; from then on the relay runs by itself."""
        tally = self.tallies[listener.name]
        self._index += 1
        bind = listener.bind
        connection_id = f"{bind.host}:{bind.port}-{address[0]}:{address[1]}-{self._index}"
        session = None
        if listener.security_protocol in DECODED:
            principal = "User:ANONYMOUS" if listener.security_protocol == "PLAINTEXT" else "User:<unknown:SASL>"
            connection = Connection(connection_id, listener.name, address[0], address[1], monotonic(), principal)
            session = Session(connection, tally, self._record, self.config.socket_request_max_bytes)
        relay = Relay(connection_id, session, tally, self._closed, self._flushing.discard)
        self.relays.add(relay)
        tally.active += 1
        try:
            _tune(sock)
            await self._dial(relay, listener.upstream)
            if not relay.closed:
                loop = asyncio.get_running_loop()
                await loop.connect_accepted_socket(lambda: relay.client, sock)
        except Exception as error:  # mostly OSError, but a name may also be no name
            tally.upstream_failures += 1
            reason = str(error) or f"no answer within {self.config.upstream_connect_timeout_ms} ms"
            self._repeated.warning("upstream_unreachable", upstream=str(listener.upstream), error=reason)
            relay.close("upstream_unreachable")
        except asyncio.CancelledError:
            relay.close("drain_completed")
            raise
        finally:
            if relay.client.transport is None:
                sock.close()

    async def _dial(self, relay: Relay, upstream: Endpoint) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self.config.upstream_connect_timeout_ms / 1000):
            while True:
                try:
                    transport, _ = await loop.create_connection(lambda: relay.broker, upstream.host, upstream.port)
                    break
                except OSError as error:
                    if error.errno not in CAPACITY_ERRORS:
                        raise
                    await asyncio.sleep(CAPACITY_RETRY)
        _tune(transport.get_extra_info("socket"))

    def _closed(self, relay: Relay, cause: Cause, detail: str) -> None:
        self.relays.discard(relay)
        if not relay.gone:
            self._flushing.add(relay)
        relay.tally.active -= 1
        relay.tally.closed[cause] += 1
        if detail and cause.startswith(("client_invalid", "broker_")):
            self._repeated.warning(
                "connection_refused" if cause.startswith("client") else "connection_broken",
                connection_id=relay.id,
                cause=cause,
                detail=detail,
            )

    async def drain(self, patience: float) -> None:
        """Stop accepting, let open requests be answered, close; whatever is open after ``patience`` seconds is cut."""
        self.draining = True
        for acceptor in self._acceptors:
            acceptor.close()
        for task in list(self._connecting):
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
        """End whatever is still open, at once, and hand over the last exchanges. Nothing is recorded afterwards."""
        cut = len(self.relays) + len(self._flushing)
        for relay in list(self.relays):
            relay.close("drain_timeout", abort=True)
        for relay in list(self._flushing):
            relay.abort()
        if self._timer is not None:
            self._timer.cancel()
        self._flush()
        self._repeated.flush()
        log.info("drained", cut=cut)


def _tune(sock: socket.socket) -> None:
    """No delay for small frames; a peer that is gone is noticed."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    with contextlib.suppress(OSError):  # not on every platform
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
