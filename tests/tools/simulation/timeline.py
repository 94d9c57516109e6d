"""Virtual time: what happens next, and the clocks of processes."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random

Action = Callable[[], None]


MOST_AT_ONCE = 20_000
"""Of what happens in one millisecond: more of it would go on for ever."""


class Timeline:
    """What is going to happen, by time in milliseconds. What is due at one time happens in the order it was set."""

    def __init__(self) -> None:
        self.now = 0
        self._heap: list[tuple[int, int, Action]] = []
        self._number = 0
        self._at_once = 0

    def at(self, time: int, action: Action) -> None:
        self._number += 1
        heapq.heappush(self._heap, (max(time, self.now), self._number, action))

    def after(self, delay: int, action: Action) -> None:
        self.at(self.now + delay, action)

    def step(self) -> bool:
        """Do what is due next; False if nothing is left."""
        if not self._heap:
            return False
        before = self.now
        self.now, _, action = heapq.heappop(self._heap)
        self._at_once = self._at_once + 1 if self.now == before else 0
        if self._at_once > MOST_AT_ONCE:
            raise RuntimeError(f"something goes on for ever at {self.now}")
        action()
        return True


class Process:
    """A process of one machine: its clock, and whether it runs.

    A stopped one (SIGSTOP) does nothing; what its kernel gets for it waits. Its clock goes on, as CLOCK_BOOTTIME does.
    """

    def __init__(self, timeline: Timeline, random: Random, name: str) -> None:
        self.timeline, self.random, self.name = timeline, random, name
        self.is_running = False
        """Whether there is a process at all; a stopped one is."""
        self.is_stopped = False
        self.is_powered = True
        """Whether its machine has power: without it no kernel answers for it."""
        self.stopped_at = self.went_on_at = 0
        self.runs = 0
        """How often it was started. What was meant for an earlier run does not happen."""
        self._wakes_at: int | None = None
        self._rate = random.uniform(0.99, 1.01)
        self._zero = random.randrange(1_000_000)
        self._backlog: dict[int, list[Action]] = {}

    def clock(self) -> int:
        """The milliseconds of its own monotonic clock."""
        return self._zero + int(self.timeline.now * self._rate)

    def time_of(self, clock: int) -> int:
        """The first time at which the clock shows at least this."""
        time = int((clock - self._zero) / self._rate)
        while self._zero + int(time * self._rate) < clock:
            time += 1
        return time

    def deliver(self, source: int, action: Action) -> bool:
        """Let it do something now, or when it goes on. Return whether it was done.

        ``source``: what comes from one source stays in order; sources are independent of each other.
        """
        if not self.is_running:
            return True
        if self.is_stopped:
            self._backlog.setdefault(source, []).append(action)
            return False
        action()
        return True

    def later(self, delay: int, source: int, action: Action) -> None:
        """Let this run of it do something after a time."""
        run = self.runs

        def due() -> None:
            if self.runs == run:
                self.deliver(source, action)

        self.timeline.after(delay, due)

    def wake_at(self, due: int, source: int, action: Action) -> None:
        """Let this run of it do something when its clock shows ``due``; of several such times the first one counts."""
        if self._wakes_at is not None and self._wakes_at <= due:
            return
        self._wakes_at = due
        run, time = self.runs, self.time_of(due)

        def wake() -> None:
            if self.runs == run and self._wakes_at == due:
                self._wakes_at = None
                action()

        self.timeline.at(time, lambda: self.deliver(source, wake) if self.runs == run else None)

    def start(self) -> None:
        self.is_running = self.is_powered = True
        self.runs += 1
        self._wakes_at = None

    def stop(self) -> None:
        """SIGSTOP."""
        if self.is_running and not self.is_stopped:
            self.is_stopped, self.stopped_at = True, self.timeline.now

    def go_on(self) -> None:
        """SIGCONT. What has waited is done in any order of its sources."""
        if not self.is_stopped:
            return
        self.is_stopped, self.went_on_at = False, self.timeline.now
        run = self.runs
        while self._backlog and self.runs == run and not self.is_stopped:
            source = self.random.choice(list(self._backlog))
            action = self._backlog[source].pop(0)
            if not self._backlog[source]:
                del self._backlog[source]
            action()

    def end(self) -> None:
        """SIGKILL."""
        self.is_running = self.is_stopped = False
        self._backlog.clear()
        self.runs += 1
