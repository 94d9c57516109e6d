# cython: language_level=3, annotation_typing=False
"""Spreads out the connections that a rate limit lets in at once.

A window of eleven samples lets ten times the limit in at once. Each connection costs the sidecar and the broker a
handshake. A thousand of them at once use up the CPUs for a third of a second, and the requests of open connections
wait that long. So a listener with a rate limit admits connections in steps of a millisecond. The others wait in the
kernel's backlog. The pace is at least twice the limit, so it delays connections only during a burst.

Times are whole milliseconds of one monotonic clock.
"""

from __future__ import annotations

import cython

from proxy.limits.model import Limits

MIN_RATE = 1000
"""Lowest pace in connections per second, after the first ``FIRST`` connections of a burst."""

LIMIT_FACTOR = 2
"""The pace of a listener whose limit is high, as a multiple of it."""

MIN_STEP = 2
"""Connections admitted per millisecond at most; more if the pace is faster. A late step does not admit more."""

FIRST = 100
"""Connections of a burst that only ``MIN_STEP`` bounds. So 200 connections at once are admitted within 0.1 s."""

ADMISSION_COST, ARRIVAL_COST = 3, 1
"""What a connection uses up of the pace: this when it is admitted, and that when it is accepted. So a refused one uses
a quarter of an admitted one."""

CONNECTION_COST = ADMISSION_COST + ARRIVAL_COST

MICROSECONDS = 1_000_000


@cython.cclass
class Pace:
    """The pace of one listener. ``step_cost``: what one millisecond may use up. ``unit_us``: time for a cost of 1."""

    def __init__(self, unit_us: int, step_cost: int) -> None:
        self.unit_us = unit_us
        self.step_cost = step_cost
        self.due_us = 0  # when all connections so far would have been admitted at an even pace
        self.step = 0  # the current millisecond
        self.used = 0  # what it has used up


@cython.cclass
class AdmissionPace:
    """The pace of each listener with an enforced rate limit. Other listeners have none."""

    def __init__(self, limits: Limits) -> None:
        self._paces: dict[str, Pace] = {}
        self.update_limits(limits)

    def update_limits(self, limits: Limits) -> None:
        """Apply new limits. A burst begins anew."""
        self._paces.clear()
        for name, listener in limits.listeners.items():
            quotas = [listener.rate] if listener.protected else [listener.rate, limits.rate]
            rates = [quota.limit for quota in quotas if quota.enforced]
            if rates:
                rate = max(MIN_RATE, LIMIT_FACTOR * min(rates))
                step = max(MIN_STEP, -(-rate // 1000))
                self._paces[name] = Pace(MICROSECONDS // (rate * CONNECTION_COST), step * CONNECTION_COST)

    def record(self, listener: str, cost: int, now: int) -> None:
        """Count ``ADMISSION_COST`` or ``ARRIVAL_COST`` for a connection of ``listener``."""
        pace = self._paces.get(listener)
        if pace is None:
            return
        earliest = now * 1000 - FIRST * CONNECTION_COST * pace.unit_us
        pace.due_us = max(pace.due_us, earliest) + cost * pace.unit_us
        if now != pace.step:
            pace.step, pace.used = now, 0
        pace.used += cost

    def next_at(self, listener: str) -> int:
        """Return when ``listener`` may accept another connection; a time in the past for at once."""
        pace = self._paces.get(listener)
        if pace is None:
            return 0
        even = -(-pace.due_us // 1000)
        return even if pace.used < pace.step_cost else max(even, pace.step + 1)

    def next_timer(self, now: int) -> int | None:
        """Return when the next listener may accept again; None if all of them may."""
        earliest: int | None = None
        for listener in self._paces:
            at = self.next_at(listener)
            if at > now and (earliest is None or at < earliest):
                earliest = at
        return earliest
