"""Accepted sockets at the gate: until it lets them through they are neither read nor connected to the broker.

Gives the gate its clock, its timer and its sockets, and tells who was throttled: to the observers each second, in the
log a line for each kind of throttle every ``LOG_EVERY`` seconds at most, however many connections it met.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable
from time import monotonic, monotonic_ns

import structlog
from msgspec import Struct, structs

from proxy.config import Listener
from proxy.core.causes import Cause
from proxy.limits.gate import Gate
from proxy.limits.model import GateState, Limits, Throttle
from proxy.limits.state import state
from proxy.limits.throttles import MANY, Summary, ThrottleReport, Throttles, summarise
from proxy.net.acceptor import is_ended
from proxy.net.connection_handler import Carrying

REPORT_EVERY = 1.0
"""Seconds between two reports to the observers."""

LOG_EVERY = 10.0
"""Seconds between two log lines of the same kind of throttle; the first one comes with the next report."""

HELD_SHARE = 20
"""At most one in so many descriptors is for held connections, whatever is configured."""

REFUSED: Cause = "quota_exceeded"
DRAINED: Cause = "drain_completed"
GONE: Cause = "client_closed"

log = structlog.get_logger(__name__)


class Guest(Struct):
    """An accepted connection. ``host``: its client's address, canonical; ``port``: of the client. ``counted_as``: by
    the limits of addresses."""

    listener: Listener
    sock: socket.socket
    host: str
    port: int
    counted_as: str
    gone: bool = False
    """Whether the client has given up."""


class Entrance:
    """All limits of one sidecar, before ``carrying``. ``on_free()`` is called when a listener may accept again."""

    def __init__(self, limits: Limits, carrying: Carrying, on_free: Callable[[], None]) -> None:
        self._carrying = carrying
        self._on_free = on_free
        self._loop = asyncio.get_running_loop()
        self._gate: Gate[Guest] = Gate(
            self._bounded(limits),
            admit=self._admit,
            refuse=self._refuse,
            is_gone=_is_gone,
            evict=carrying.close_idlest,
            report=self._throttled,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._due: int | None = None
        self._admitted = 0
        self._open: dict[int, tuple[str, str]] = {}  # listener and address by number
        self._throttles = Throttles()
        self._report_at = 0.0
        self._summaries: dict[tuple[str, ...], Summary] = {}
        self._log_at: dict[tuple[str, ...], float] = {}
        self._full_at = 0.0
        self._closing = False
        carrying.on_end(self._ended)

    def arrive(self, listener: Listener, sock: socket.socket, host: str, port: int) -> None:
        """Take over an accepted connection. ``host``: the client's address, canonical."""
        now = _now()
        counted_as = self._gate.limits.counted_as(host)
        self._gate.arrive(listener.name, counted_as, Guest(listener, sock, host, port, counted_as), now)
        self._arm()

    def busy(self, listener: str) -> bool:
        """Whether ``listener`` is not to accept anything just now."""
        return self._gate.busy(listener)

    @property
    def pending(self) -> int:
        """Accepted connections that wait or are held, so that they have no connection to the broker yet."""
        return len(self._gate.held) + sum(map(len, self._gate.lines.values()))

    def change(self, limits: Limits) -> None:
        """Take new limits, with all that was measured so far."""
        self._gate.change(self._bounded(limits), _now())
        self._moved()

    def state(self) -> GateState:
        """Present limits, rates and counts."""
        return state(self._gate, _now())

    def beat(self) -> None:
        """To be called now and then: reports throttles, forgets idle addresses."""
        self._gate.sensors.expire(_now())
        now = monotonic()
        if now >= self._report_at:
            self._report_at = now + REPORT_EVERY
            self._tell(self._throttles.take(), now)

    def close(self) -> None:
        """Close whoever waits, and report what has not been."""
        self._closing = True
        self._gate.close()
        if self._timer is not None:
            self._timer.cancel()
        self._log_at.clear()
        self._tell(self._throttles.take(), monotonic())

    @staticmethod
    def _bounded(limits: Limits) -> Limits:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // HELD_SHARE
        return structs.replace(limits, max_held=min(limits.max_held, most))

    def _ended(self, number: int) -> None:
        listener, address = self._open.pop(number)
        self._gate.leave(listener, address, _now())
        self._moved()

    def _advance(self) -> None:
        self._timer = self._due = None
        self._gate.advance(_now())
        self._moved()

    def _moved(self) -> None:
        self._arm()
        self._on_free()

    def _arm(self) -> None:
        due = self._gate.due()
        if due == self._due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        # A timer may be a millisecond early; the gate then finds nothing to do, and is asked again.
        self._timer = None if due is None else self._loop.call_later(max(due - _now(), 0) / 1000, self._advance)

    def _admit(self, listener: str, guest: Guest) -> None:
        self._admitted += 1
        number = self._admitted
        self._open[number] = (listener, guest.counted_as)
        self._carrying.carry(guest.listener, guest.sock, (guest.host, guest.port), number)

    def _refuse(self, listener: str, guest: Guest) -> None:
        cause = DRAINED if self._closing else GONE if guest.gone else REFUSED
        self._carrying.tallies[listener].closed[cause] += 1
        guest.sock.close()

    def _throttled(self, throttle: Throttle) -> None:
        self._throttles.add(throttle, monotonic())

    def _tell(self, reports: list[ThrottleReport], now: float) -> None:
        if reports:
            self._carrying.report(reports)
            summarise(self._summaries, reports)
        for kind in [kind for kind in self._summaries if now >= self._log_at.get(kind, now)]:
            self._log_at[kind] = now + LOG_EVERY
            _log(self._summaries.pop(kind))
        if now >= self._full_at and not self._closing:
            self._log_full(now)

    def _log_full(self, now: float) -> None:
        """Say again and again which listeners wait for an end: that is reported once, and may last for hours."""
        for name in self._carrying.tallies:
            if (lacks := self._gate.lacks(name)) is not None:
                self._full_at = now + LOG_EVERY
                scope, quota, count = lacks
                waiting_s = round(self._gate.waiting(name, _now()) / 1000, 1)
                log.warning(
                    "listener_full", listener=name, scope=scope, limit=quota.limit, open=count, waiting_s=waiting_s
                )


def _log(summary: Summary) -> None:
    (address, count), *_ = summary.addresses.most_common(1)
    log.warning(
        "connections_throttled",
        listener=summary.listener,
        scope=summary.scope,
        quota=summary.quota,
        action=summary.action,
        connections=summary.connections,
        limit=summary.limit,
        observed=round(summary.observed, 3),
        delay_ms=summary.delay_ms,
        addresses=f"more than {len(summary.addresses) - 1}" if MANY in summary.addresses else len(summary.addresses),
        top_address=address,
        top_connections=count,
    )


def _now() -> int:
    """Milliseconds of the clock that nobody sets."""
    return monotonic_ns() // 1_000_000


def _is_gone(guest: Guest) -> bool:
    guest.gone = is_ended(guest.sock)
    return guest.gone
