"""The thread that keeps the membership: it feeds it with what happens, and does what it asks for."""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from proxy.client.consumer.effects import (
    AssignPartitions,
    CloseLink,
    LogMembership,
    MembershipEffect,
    MembershipEnded,
    OpenLink,
    SendToCoordinator,
)
from proxy.client.consumer.events import LeaveRequested, LinkEnded, LinkFailed, MembershipEvent
from proxy.client.consumer.fetching import FetchingThread
from proxy.client.consumer.link import CoordinatorLink
from proxy.client.consumer.streams import HandoutGate, MessageStream
from proxy.config.values import Endpoint

log = logging.getLogger("proxy.client.consumer")

LOOK_SECONDS = 0.1
"""Between two polls of the socket at most: so much older than it is may a request seem (``FrameReceived``)."""


class ConductorThread(threading.Thread):
    """Ends when the membership has."""

    def __init__(
        self,
        gate: HandoutGate,
        fetching: FetchingThread,
        open_link: Callable[[Endpoint], CoordinatorLink],
        streams: Callable[[], list[MessageStream]],
        max_poll_interval_ms: int,
    ) -> None:
        """``streams``: all that there are now."""
        super().__init__(name="brokerside-coordinator-link", daemon=True)
        self._gate = gate
        self._fetching = fetching
        self._open_link = open_link
        self._streams = streams
        self._max_poll_interval_ms = max_poll_interval_ms
        self._events: SimpleQueue[MembershipEvent] = SimpleQueue()
        self._wakes, self._wake = socket.socketpair()
        self._wakes.setblocking(False)
        self._wake.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._link: CoordinatorLink | None = None

    def begin(self) -> None:
        """Start both threads, unless they are."""
        if self.ident is None:
            self._fetching.start()
            self.start()

    def report(self, event: MembershipEvent) -> None:
        """Handle an event soon; for any thread."""
        self._events.put(event)
        with contextlib.suppress(OSError):  # full: it is awake anyway; closed: the membership has ended
            self._wake.send(b"\0")

    def run(self) -> None:
        """Not to be called."""
        try:
            with self._selector:
                while not self._gate.has_ended:
                    self._wait()
                    self._turn()
        except Exception as error:
            log.exception("the consumer has failed")
            self._end(f"the consumer has failed: {error}")
        finally:
            if self._link is not None:
                self._link.close(reset=True)
            self._fetching.end()
            self._wakes.close()
            self._wake.close()

    def _wait(self) -> None:
        """Return when there may be something to do."""
        self._selector.register(self._wakes, selectors.EVENT_READ)
        interest = None if self._link is None else self._link.interest
        if interest is not None:
            self._selector.register(*interest)
        due = self._gate.membership.due()
        seconds = LOOK_SECONDS if due is None else min(LOOK_SECONDS, max(0, due - self._gate.clock()) / 1000)
        self._selector.select(seconds)
        self._selector.unregister(self._wakes)
        if interest is not None:
            self._selector.unregister(interest[0])
        with contextlib.suppress(BlockingIOError):
            while self._wakes.recv(4096):
                pass

    def _turn(self) -> None:
        """Do everything once."""
        link = self._link
        if link is not None:
            for event in link.poll():
                if isinstance(event, LinkFailed | LinkEnded):
                    self._link = None  # it has closed itself
                self._handle(event)
                if self._link is not link:
                    break
        with contextlib.suppress(Empty):
            while True:
                self._handle(self._events.get_nowait())
        with self._gate.lock:
            stalled = any(one.untaken_ms() >= self._max_poll_interval_ms for one in self._streams())
        self._handle(LeaveRequested(self._stalled_text) if stalled else None)

    @property
    def _stalled_text(self) -> str:
        return (
            f"no message was taken from a stream for {self._max_poll_interval_ms} ms, and so its partitions were given"
            " up: take messages more often, or set a larger max_poll_interval_ms"
        )

    def _handle(self, event: MembershipEvent) -> None:
        with self._gate.lock:
            effects = self._gate.membership.handle(event, self._gate.clock())
            if effects:
                for stream in self._streams():
                    stream.refresh()
        for effect in effects:
            self._do(effect)

    def _do(self, effect: MembershipEffect) -> None:
        match effect:
            case SendToCoordinator(frame):
                if self._link is not None:
                    self._link.send(frame)
            case AssignPartitions():
                self._fetching.assign(effect)
            case OpenLink(address):
                self._link = self._open_link(address)
            case CloseLink(reset):
                if self._link is not None:
                    self._link.close(reset=reset)
                self._link = None
            case LogMembership(level, message):
                log.log(logging.getLevelNamesMapping()[level.upper()], message)
            case MembershipEnded(error):
                self._end(error)

    def _end(self, error: str | None) -> None:
        with self._gate.lock:
            self._gate.has_ended, self._gate.error = True, error
            for stream in self._streams():
                stream.refresh()
