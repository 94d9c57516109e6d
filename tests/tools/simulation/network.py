"""TCP connections between processes: latency, loss, resets, full buffers, as kernels and processes see them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random

from tests.tools.simulation.timeline import Process, Timeline

FIN = b""
"""In place of a frame: the end of what one side sends."""

FIRST_RETRY, LAST_RETRY = 200, 1600
"""Milliseconds between two attempts to deliver what was lost; about doubled with each."""

SOCKET_BACKLOG = -1
"""The source of new connections of a process."""


class Listener(Process):
    """A process that accepts connections."""

    def accept(self, socket: Socket) -> None:
        raise NotImplementedError


class Segment:
    """A frame that a kernel has taken. ``sent_at``: when."""

    __slots__ = ("frame", "is_under_way", "sent_at")

    def __init__(self, frame: bytes, sent_at: int) -> None:
        self.frame, self.sent_at = frame, sent_at
        self.is_under_way = False


class Socket:
    """One end of a connection: its kernel's side, and what its process has not given to the kernel yet."""

    peer: Socket

    def __init__(self, network: Network, process: Process) -> None:
        self.network, self.process = network, process
        self.number = network.next_number()
        self.is_open = True
        """Whether the process has it open and no end of it was seen."""
        self.is_gone = False
        """Whether the kernel does not know it any more: it answers with a reset."""
        self.lost_until = 0
        """Nothing that is sent here arrives before that time."""
        self.window = network.window
        self.opened_at = network.timeline.now
        self.on_frame: Callable[[bytes, int], None] = _ignore
        """Gets each frame without its size, and when it arrived."""
        self.on_end: Callable[[str], None] = _ignore
        """Gets ``fin``, ``reset`` or ``timeout``."""
        self.on_drained: Callable[[], None] = _nothing
        self._user_timeout: int | None = None
        self._taken: deque[Segment] = deque()
        self._waiting: deque[bytes] = deque()
        self._unread = 0
        self._retry = FIRST_RETRY
        self._retries = False
        self._last_arrival = 0

    # The process

    def send(self, frame: bytes) -> bool:
        """Return whether the kernel has taken it."""
        if not self.is_open:
            return True
        if self._waiting or len(self._taken) >= self.window:
            self._waiting.append(frame)
            return False
        self._take(frame)
        return True

    def set_user_timeout(self, milliseconds: int) -> None:
        self._user_timeout = milliseconds
        self._watch()

    def close(self, *, reset: bool = False) -> None:
        """What was sent before goes on to be sent, unless with a reset, which unread bytes cause, too."""
        if not self.is_open:
            return
        self.is_open = False
        if reset or self._unread:
            self._vanish()
            self._send_reset()
        elif self._waiting:
            self._waiting.append(FIN)
        else:
            self._take(FIN)

    def process_ended(self, *, powered: bool) -> None:
        """The process was killed, or its machine has lost power."""
        was_open, self.is_open = self.is_open, False
        self._waiting.clear()
        if not powered:
            self._vanish()
        elif was_open and self._unread:
            self._vanish()
            self._send_reset()
        elif was_open:
            self._take(FIN)

    def reset_by_network(self) -> None:
        """A middlebox resets the connection in the name of the other side."""
        self._end("reset")

    # The kernel

    def _take(self, frame: bytes) -> None:
        self._taken.append(Segment(frame, self.network.timeline.now))
        self._watch()
        self._transmit()

    def _watch(self) -> None:
        if self._user_timeout is not None and self._taken:
            at = self._taken[0].sent_at + self._user_timeout
            self.network.timeline.at(at, self._check_user_timeout)

    def _check_user_timeout(self) -> None:
        timeout, now = self._user_timeout, self.network.timeline.now
        if timeout is not None and self._taken and self._taken[0].sent_at + timeout <= now and not self.is_gone:
            self._end("timeout")

    def _transmit(self) -> None:
        for segment in self._taken:
            if segment.is_under_way:
                continue
            if self.network.is_lost(self):
                self._try_again()
                return
            segment.is_under_way = True
            arrival = max(self._last_arrival, self.network.timeline.now + self.network.latency())
            self._last_arrival = arrival
            self.network.timeline.at(arrival, lambda segment=segment: self._arrive(segment))  # type: ignore[misc]
        self._retry = FIRST_RETRY

    def _try_again(self) -> None:
        if self._retries or self.is_gone:
            return
        self._retries = True

        def again() -> None:
            self._retries = False
            if not self.is_gone:
                self._transmit()

        self.network.timeline.after(self.network.random.randrange(self._retry // 2, self._retry), again)
        self._retry = min(2 * self._retry, LAST_RETRY)

    def _arrive(self, segment: Segment) -> None:
        """At the other end."""
        if self.is_gone:
            return
        peer = self.peer
        if not peer.process.is_powered:
            return
        if not peer.is_open:
            if peer.is_gone or segment.frame != FIN:
                peer._send_reset()
            else:
                self._acknowledge(segment)
            return
        self._acknowledge(segment)
        arrived = self.network.timeline.now
        if segment.frame == FIN:
            peer.process.deliver(peer.number, lambda: peer._report_end("fin"))
            return
        peer._unread += 1

        def read() -> None:
            peer._unread -= 1
            if peer.is_open:
                peer.on_frame(segment.frame[4:], arrived)

        peer.process.deliver(peer.number, read)

    def _acknowledge(self, segment: Segment) -> None:
        """The acknowledgement comes back, as soon as that direction works."""
        if self.is_gone:
            return
        if self.network.is_lost(self.peer):
            self.network.timeline.after(FIRST_RETRY, lambda: self._acknowledge(segment))
        else:
            self.network.timeline.after(self.network.latency(), lambda: self._acknowledged(segment))

    def _acknowledged(self, segment: Segment) -> None:
        if self.is_gone or segment not in self._taken:
            return
        while self._taken.popleft() is not segment:
            pass
        self._watch()
        if self._waiting:
            self.process.deliver(self.number, self._flush)

    def _flush(self) -> None:
        """The process gives what has waited to its kernel."""
        if self.is_gone:
            return
        while self._waiting and len(self._taken) < self.window:
            self._take(self._waiting.popleft())
        if not self._waiting and self.is_open:
            self.on_drained()

    def _send_reset(self) -> None:
        if not self.network.is_lost(self):
            self.network.timeline.after(self.network.latency(), lambda: self.peer._end("reset"))

    def _end(self, how: str) -> None:
        """The kernel has given the connection up."""
        if self.is_gone:
            return
        self._vanish()
        if self.is_open:
            self.process.deliver(self.number, lambda: self._report_end(how))

    def _report_end(self, how: str) -> None:
        if self.is_open:
            self.is_open = False
            if how == "fin":
                self._take(FIN)
            self.on_end(how)

    def _vanish(self) -> None:
        self.is_gone = True
        self._taken.clear()
        self._waiting.clear()


class Network:
    """All connections."""

    def __init__(self, timeline: Timeline, random: Random) -> None:
        self.timeline = timeline
        self.window = random.choice((1, 2, 50, 50, 50))
        """Frames that a kernel takes before it has an acknowledgement of the first."""
        self.sockets: list[Socket] = []
        self.lost_until: dict[tuple[str, str], int] = {}
        """By the names of two processes: nothing arrives from the first at the second before that time."""
        self.random = random
        self._latency = random.choice((1, 2, 10, 30))
        self._numbers = 0

    def next_number(self) -> int:
        """Sockets are never numbered alike."""
        self._numbers += 1
        return self._numbers

    def latency(self) -> int:
        return self._latency + (self.random.randrange(self._latency) if self.random.random() < 0.1 else 0)

    def is_lost(self, sender: Socket) -> bool:
        now = self.timeline.now
        return now < sender.lost_until or self.is_path_lost(sender.process.name, sender.peer.process.name)

    def is_path_lost(self, sender: str, receiver: str) -> bool:
        return self.timeline.now < self.lost_until.get((sender, receiver), 0)

    def open_sockets(self, process: Process) -> list[Socket]:
        self.sockets = [one for one in self.sockets if one.is_open]
        return [one for one in self.sockets if one.process is process]

    def ended(self, process: Process, *, powered: bool) -> None:
        """A process was killed; without power its machine, too."""
        for one in self.open_sockets(process):
            one.process_ended(powered=powered)

    def connect(self, client: Process, server: Listener, done: Callable[[Socket | None], None]) -> Callable[[], None]:
        """``done`` gets the client's end, or None if it was refused. Return what gives the attempt up."""
        attempt = Attempt(self, client, server, done)
        attempt.send()
        return attempt.give_up


class Attempt:
    """An attempt to connect."""

    def __init__(
        self, network: Network, client: Process, server: Listener, done: Callable[[Socket | None], None]
    ) -> None:
        self._network, self._client, self._server, self._done = network, client, server, done
        self._is_over = False

    def give_up(self) -> None:
        self._is_over = True

    def send(self) -> None:
        if self._is_over:
            return
        there, back = self._client.name, self._server.name
        lost = self._network.is_path_lost(there, back) or self._network.is_path_lost(back, there)
        if lost or not self._server.is_powered:
            self._network.timeline.after(FIRST_RETRY * 5, self.send)
        else:
            self._network.timeline.after(2 * self._network.latency(), self._answered)

    def _answered(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        if not self._server.is_running:
            self._client.deliver(SOCKET_BACKLOG, lambda: self._done(None))
            return
        ours, theirs = Socket(self._network, self._client), Socket(self._network, self._server)
        ours.peer, theirs.peer = theirs, ours
        self._network.sockets += (ours, theirs)
        self._server.deliver(theirs.number, lambda: self._server.accept(theirs))
        self._client.deliver(SOCKET_BACKLOG, lambda: self._done(ours))


def _ignore(*_: object) -> None:
    pass


def _nothing() -> None:
    pass
