"""One client connection: bytes from each side to the other, with back-pressure, half-close and one cause at its end.

Two uvloop protocols share a ``Relay``. Where a session is given, each chunk passes it in the order header, forward,
bodies (see ``proxy.core.session``); without one (TLS passing through) bytes are all there is. A chunk counts as handed
on once it was written; what the kernel does not take at once waits in the side's own buffer.

Back-pressure: a side whose write buffer is over ``HIGH_WATER`` pauses the reading of the other side until it is below
``LOW_WATER``; so is a client with ``MAX_IN_FLIGHT`` open requests, or one that does not read what the sidecar itself
answers: then even what was already read of it waits (``Answers.rest``), as does what is too much for one turn. So does
a side that makes the process hold too much memory (``proxy.core.budget``).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from time import monotonic
from typing import Literal, cast

import structlog

from proxy.core.budget import SCARCE_CHUNK
from proxy.core.exchange import Connection
from proxy.core.session import Session
from proxy.core.tally import Tally
from proxy.errors import PeerError, Side
from proxy.net.turns import turns_of
from proxy.telemetry import Repeated

log = structlog.get_logger(__name__)
repeated = Repeated(log)

HIGH_WATER = 65_536
"""Bytes waiting to be written to one side from which the other side is not read any more (uvicorn: the same)."""

LOW_WATER = 32_768
"""Bytes waiting at which reading goes on."""

READ_SIZE = 65_536
"""Bytes read at once: with ``HIGH_WATER`` and Python's own share no slow reader holds more than 160 KiB. uvloop itself
would read 256 KiB."""

SILENCE = 1.0
"""Seconds without a byte after which a connection that is not read counts as quiet."""

LINGER = 10.0
"""Seconds in which a closed side may still take what was written to it; then it is cut."""

Cause = Literal[
    "client_closed",  # the client ended it, as clients do
    "client_reset",
    "connection_setup_timeout",  # its first request was not complete within connection.setup.timeout.ms
    "client_timeout",  # it confirms nothing any more: its machine or the network is gone
    "broker_closed",
    "broker_reset",
    "broker_timeout",
    "upstream_unreachable",  # the broker did not accept within upstream.connect.timeout.ms
    "client_invalid_size",
    "client_invalid_header",
    "client_invalid_request",  # one that the sidecar itself answers, and that cannot be read
    "broker_invalid_size",
    "broker_invalid_header",
    "broker_out_of_sync",  # a response that matches no request
    "unsupported_request",  # one that is answered by closing
    "protected_topic",  # a request that would have changed a topic of the sidecars
    "session_failed",  # an error of the sidecar's own, while it held back some of the connection's bytes
    "drain_completed",  # closed by a shutdown when nothing was open
    "drain_timeout",  # closed by a shutdown with a request open
    "untrusted_proxy",  # it came from outside proxy.protocol.trusted
    "invalid_proxy_header",  # no PROXY header, or one that is not as specified
    "proxy_header_timeout",  # its PROXY header was not complete in time
    "proxy_header_overload",  # too many others waited for their PROXY header
    "quota_exceeded",  # a limit had no room for it, and it was closed before it was carried
    "evicted",  # the longest idle one, closed to have room for one of a protected listener
    "worker_lost",  # the process that carried it ended, or had no descriptor left for it
]
"""Why a connection ended; also the label of ``brokerside_connections_closed_total``."""


class Relay:
    """Both ends of one connection. Closing happens once, by ``close``, and calls ``on_closed``; ``on_gone``
    follows when everything written has been taken, or cut."""

    __slots__ = (
        "_cause",
        "_known_as",
        "_on_closed",
        "_requests",
        "broker",
        "client",
        "ended_by",
        "last_byte_at",
        "on_gone",
        "received_bytes",
        "sent_bytes",
        "session",
        "tally",
    )

    def __init__(
        self,
        connection: Connection,
        session: Session | None,
        tally: Tally,
        on_closed: Callable[[Relay, Cause, str], None],
        on_gone: Callable[[Relay], None],
    ) -> None:
        self._known_as = connection
        self._requests = 0  # of a session that was given up
        self.session = session
        self.tally = tally
        self.client = ClientEnd(self)
        self.broker = BrokerEnd(self)
        self.client.other, self.broker.other = self.broker, self.client
        self.last_byte_at = monotonic()
        """Of either side; until there is one, when the client was accepted."""
        self.received_bytes = 0  # from the client
        self.sent_bytes = 0  # to the client
        self._on_closed = on_closed
        self.on_gone = on_gone
        self._cause: Cause | None = None
        self.ended_by: Cause | None = None  # whoever said first that it sends no more

    @property
    def id(self) -> str:
        """Of the connection."""
        return self._known_as.id

    @property
    def connection(self) -> Connection:
        """As it is known now."""
        return self._known_as if self.session is None else self.session.connection

    @property
    def requests(self) -> int:
        """How many have begun, where they can be told apart."""
        return self._requests if self.session is None else self.session.requests

    @property
    def client_id(self) -> str | None:
        """As the last request has it, where they can be told apart."""
        return None if self.session is None else self.session.client_id

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._cause is not None

    @property
    def quiet(self) -> bool:
        """Whether closing now would cut nothing short that this process knows of."""
        session = self.session
        quiet = monotonic() - self.last_byte_at > SILENCE if session is None else session.quiet
        return quiet and not self.unsent("client") and not self.unsent("broker")

    @property
    def gone(self) -> bool:
        """Whether both sides have ended and nothing waits to be written any more."""
        return all(end.transport is None or end.lost for end in (self.client, self.broker))

    def unsent(self, side: Side) -> int:
        """Bytes written to ``side`` that the kernel has not taken yet."""
        transport = (self.client if side == "client" else self.broker).transport
        return 0 if transport is None else transport.get_write_buffer_size()

    def descriptor(self, side: Side) -> int:
        """Of the socket of ``side``; −1 before it is attached and after it is closed."""
        transport = (self.client if side == "client" else self.broker).transport
        if transport is None or transport.is_closing():
            return -1
        return int(transport.get_extra_info("socket").fileno())

    async def attach(self, client: socket.socket, broker: socket.socket) -> None:
        """Take over both connections and carry from now on. Raises OSError; the sockets are taken care of then too."""
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self.broker, sock=broker)
            if not self.closed:
                await loop.connect_accepted_socket(lambda: self.client, client)
        finally:
            for end, sock in ((self.client, client), (self.broker, broker)):
                if end.transport is None:
                    sock.close()

    def stop_reading_requests(self) -> None:
        """For a drain: let a request that has begun come to its end, and read no further one.

        Where requests cannot be told apart, reading goes on until the connection is silent.
        """
        self.client.draining = True
        if self.session is not None and self.session.between_requests:
            self.client.pause("drain")

    def abort(self) -> None:
        """Cut both sides at once, whatever was still to be written."""
        for end in (self.client, self.broker):
            if end.transport is not None:
                end.transport.abort()

    def close(self, cause: Cause, detail: str = "", *, abort: bool = False) -> None:
        """End both sides for ``cause``: what was written is flushed, unless ``abort``. Later calls change nothing."""
        if self._cause is not None:
            return
        self._cause = cause
        for end in (self.client, self.broker):
            transport = end.transport
            if transport is not None:
                if abort:
                    transport.abort()
                    continue
                transport.close()
                if transport.get_write_buffer_size():
                    asyncio.get_running_loop().call_later(LINGER, transport.abort)
        if self.session is not None:
            self.session.lost(monotonic())
        self._on_closed(self, cause, detail)

    def abandon_session(self, error: Exception) -> None:
        """Carry this connection on as bytes: an error of ours is no reason to end it, unless bytes would be missing."""
        session = self.session
        whole = session is None or session.untouched
        self._known_as, self._requests, self.session = self.connection, self.requests, None
        self.tally.abandoned += 1
        log.error("session_abandoned", connection_id=self.id, error=type(error).__name__, exc_info=error)
        if session is not None:
            for step in (session.walk, session.lost):
                with contextlib.suppress(Exception):  # it has failed once already
                    step(monotonic())
        if not whole:
            self.close("session_failed", f"{type(error).__name__}")
            return
        for end in (self.client, self.broker):
            for reason in end.paused_for & {"in_flight", "memory"}:
                end.resume(reason)

    def divert(self, end: End, session: Session, data: bytes) -> None:
        """Hand on what goes on in place of the chunk ``data`` of ``end``, and what is said to the client."""
        answers = session.answers
        if answers is None:
            return
        if answers.failure is not None:
            report_failure(self.id, answers.failure)
        onward = data if answers.edited is None else answers.edited
        if onward:
            end.pass_on(onward)
        if answers.replies and not self.broker.eof:  # after that no answer can go out
            self.broker.pass_on(answers.replies)
        answers.let_go()

    def follow(self) -> None:
        """After a chunk, or once the client has taken what was written: pause or resume the client for want of room for
        answers, or end what is to end."""
        session, client = self.session, self.client
        answers = None if session is None else session.answers
        if session is None or answers is None or self.closed:
            return
        if answers.ending:
            self.close(answers.cause)
        elif self.broker.eof and (answers.waiting or session.saturated):  # what they wait for will not come
            self.close(self.ended_by or "broker_closed")
        elif answers.full or (client.choked and (answers.rest or answers.replied)):
            client.pause("answers")
        elif "answers" in client.paused_for and not client.choked:
            client.resume("answers")

    def refuse(self, end: End, error: PeerError, data: bytes) -> None:
        """Close because of what ``end`` sent; frames before the bad one still go on."""
        session = self.session
        if session is not None and session.diverted:
            self.divert(end, session, data)
            session.walk(monotonic())
        elif session is not None and session.clean:
            end.pass_on(data[: session.clean])
            session.walk(monotonic())
        self.tally.invalid_frames[error.side, error.reason] += 1
        self.close(f"{error.side}_{error.reason}", error.detail)  # type: ignore[arg-type]  # reasons of PeerError are causes


def report_failure(connection_id: str, error: Exception) -> None:
    """Log that an interceptor raised ``error``: what it was to answer or change went on as it came."""
    # In words: what is held back until it is due must not hold the bytes that its traceback leads to.
    repeated.warning("intercept_failed", connection_id=connection_id, error=f"{type(error).__name__}: {error}")


_chunk = memoryview(bytearray(READ_SIZE))  # every relay's: what is read is taken out before the next read
_scarce_chunk = _chunk[:SCARCE_CHUNK]


class End(asyncio.BufferedProtocol):
    """One side of a relay; a subclass says what to do with its bytes."""

    __slots__ = ("_early", "eof", "lost", "other", "paused_for", "relay", "transport", "write")

    side: Side
    closed_by: Cause
    reset_by: Cause
    scan: Callable[[Session, bytes, float], bool]
    other: End
    write: Callable[[bytes], None]

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self.transport: asyncio.Transport | None = None
        self.paused_for: set[str] = set()
        self.eof = False
        self.lost = False
        self._early: list[bytes] = []
        self.write = self._early.append  # until there is a transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's do not inherit from it
        self.write = self.transport.write
        self.transport.set_write_buffer_limits(high=HIGH_WATER, low=LOW_WATER)
        if self._early:
            self.write(b"".join(self._early))
            self._early.clear()

    def get_buffer(self, sizehint: int) -> memoryview:
        session = self.relay.session
        return _scarce_chunk if session is not None and session.account.budget.full else _chunk

    def buffer_updated(self, nbytes: int) -> None:
        relay = self.relay
        relay.tally.received[self.side] += nbytes
        relay.last_byte_at = monotonic()
        self.carry(bytes(_chunk[:nbytes]))

    def carry(self, data: bytes) -> None:
        """Carry ``data`` of this side to the other: header, forward, bodies."""
        relay = self.relay
        session = relay.session
        if session is None:
            self.pass_on(data)
            return
        try:
            bodies = self.scan(session, data, relay.last_byte_at)
        except PeerError as error:
            relay.refuse(self, error, data)
            return
        except Exception as error:
            relay.abandon_session(error)
            if not relay.closed:
                self.pass_on(data)
            return
        if session.diverted:
            relay.divert(self, session, data)
        else:
            self.pass_on(data)
        if bodies:
            session.walk(monotonic())
        if session.must_wait(self.side):
            self.pause("memory")
            session.account.budget.wait(self.go_on_reading)
        self.forwarded(session)

    def go_on_reading(self) -> bool:
        """There is memory for a chunk of this side. Returns whether it waited for that."""
        waited = "memory" in self.paused_for and not self.relay.closed
        if waited:
            self.resume("memory")
        return waited

    def pass_on(self, data: bytes) -> None:
        """Write ``data`` of this side to the other."""
        self.other.write(data)

    def forwarded(self, session: Session) -> None:
        """A chunk of this side has gone on: pause or resume what depends on it."""

    def pause(self, reason: str) -> None:
        """Read no more from this side, for ``reason``, until every reason is gone."""
        if not self.paused_for and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
            self.relay.tally.pauses[self.side] += 1
        self.paused_for.add(reason)

    def resume(self, reason: str) -> None:
        """``reason`` is gone."""
        self.paused_for.discard(reason)
        if not self.paused_for and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        self.other.pause("backlog")

    def resume_writing(self) -> None:
        self.other.resume("backlog")

    def eof_received(self) -> bool:
        """This side will send no more: tell the other one, and keep carrying its answers."""
        self.eof = True
        relay = self.relay
        relay.ended_by = relay.ended_by or self.closed_by
        onward = self.other.transport
        if self.other.eof or onward is None or onward.is_closing():
            relay.close(relay.ended_by)
            return False
        onward.write_eof()
        relay.follow()
        return not relay.closed

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        cause = self.closed_by if exc is None else self.reset_by
        relay = self.relay
        relay.close(relay.ended_by or cause, "" if exc is None else str(exc))
        if relay.gone:
            relay.on_gone(relay)


class ClientEnd(End):
    """The client's side: requests come in here."""

    __slots__ = ("choked", "draining")

    side = "client"
    closed_by = "client_closed"
    reset_by = "client_reset"
    scan = staticmethod(Session.client_data)

    def __init__(self, relay: Relay) -> None:
        super().__init__(relay)
        self.draining = False
        self.choked = False  # it does not read what is written to it

    def buffer_updated(self, nbytes: int) -> None:
        self.relay.received_bytes += nbytes
        super().buffer_updated(nbytes)
        self.go_on()

    def forwarded(self, session: Session) -> None:
        if session.saturated:
            self.pause("in_flight")
        if self.draining and session.between_requests:
            self.pause("drain")
        self.relay.follow()

    def resume(self, reason: str) -> None:
        super().resume(reason)
        self.go_on()

    def go_on(self) -> None:
        """Carry what was read and not looked at, in a later round of the loop: a chunk may hold many requests, short
        requests may have long answers, and other connections are not to wait for all of them."""
        session = self.relay.session
        if session is not None and session.rest and not self.paused_for and not self.relay.closed:
            self.pause("turn")
            turns_of(asyncio.get_running_loop()).enter(self.take_turn)

    def take_turn(self) -> None:
        """Carry as much of it as one turn takes."""
        session = self.relay.session
        if session is not None and session.rest and self.paused_for == {"turn"} and not self.relay.closed:
            self.carry(session.rest)
            if session.rest and self.paused_for == {"turn"} and not self.relay.closed:
                turns_of(asyncio.get_running_loop()).enter(self.take_turn)
                return
        self.resume("turn")

    def pause_writing(self) -> None:
        self.choked = True
        super().pause_writing()

    def resume_writing(self) -> None:
        self.choked = False
        super().resume_writing()
        self.relay.follow()


class BrokerEnd(End):
    """The broker's side: responses come in here."""

    __slots__ = ()

    side = "broker"
    closed_by = "broker_closed"
    reset_by = "broker_reset"
    scan = staticmethod(Session.broker_data)

    def pass_on(self, data: bytes) -> None:
        self.relay.sent_bytes += len(data)
        self.other.write(data)

    def forwarded(self, session: Session) -> None:
        if "in_flight" in self.other.paused_for and not session.saturated:
            self.other.resume("in_flight")
        self.relay.follow()
