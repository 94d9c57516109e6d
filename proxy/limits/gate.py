"""Who may enter, and when: every accepted connection passes here before anything else is done for it.

A state machine without IO: it is told of arrivals, ends and the time, and calls ``admit`` or ``refuse`` for each
connection, once. The order of the looks is the broker's (``ConnectionQuotas.inc``), except that an address with too
many open connections is turned away first of all, so that it uses up nobody's rate:

1. connections of the address (KIP-402): one too many is refused at once;
2. rate of broker and listener (KIP-612), then a slot under ``max.connections``: the connection waits for both, and
   while it does its listener accepts nothing (``busy``);
3. rate of the address: one too many is held for up to a second, while others pass, and then looked at again
   (KIP-306, KIP-612). Nothing of it is counted meanwhile.

Times are milliseconds of one monotonic clock.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Collection
from typing import Generic, TypeVar

from msgspec import Struct

from proxy.limits.model import Done, Limits, Quota, Scope, Throttle, What
from proxy.limits.sensors import Excess, Sensors

SUSPECT_MS = 1000
"""How long after it accepted nothing a listener may still get connections that had to wait for that in the kernel."""

T = TypeVar("T")
"""The caller's name of a connection."""


class Arrival(Struct, Generic[T]):
    """A connection that has been neither admitted nor refused yet."""

    listener: str
    address: str
    token: T
    ready_at: int = -1
    """When its delay is over; −1 before its turn."""
    wants_slot: bool = False
    """Whether it waits for another connection to end, and nothing else."""
    held_for: Excess | None = None
    """What it was held for; back in the line after that, it is not held again."""


class Gate(Generic[T]):
    """All limits of one sidecar, and the connections that wait for them.

    ``admit(listener, token)`` and ``refuse(listener, token)`` take a connection over. ``is_gone(token)`` tells whether
    its client has given up, and is asked of those that have waited, or may have in the kernel: after an outage its
    queue is full of them, and were they counted, clients that are still there would never get their turn.
    ``evict(listeners)`` asks to close the longest idle connection of any of these listeners. ``report`` is told of each
    throttle. After every call of a method ``due`` may have changed.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        admit: Callable[[str, T], None],
        refuse: Callable[[str, T], None],
        is_gone: Callable[[T], bool],
        evict: Callable[[Collection[str]], None],
        report: Callable[[Throttle], None],
    ) -> None:
        self.limits = limits
        self.sensors = Sensors(limits)
        self.total = 0
        """Open connections."""
        self.open = dict.fromkeys(limits.listeners, 0)
        """The same by listener."""
        self.open_by_address: dict[str, int] = {}
        """The same by address; those with none are not there."""
        self.throttled: Counter[tuple[str, Scope, What, Done]] = Counter()
        self.admitted = dict.fromkeys(limits.listeners, 0)
        self.delays = {name: [0, 0] for name in limits.listeners}
        """Connections delayed for a rate of broker or listener, and for how many ms in sum, by listener."""
        self.holds = {name: [0, 0] for name in limits.listeners}
        """The same for those held for their address' rate."""
        self.lines: dict[str, deque[Arrival[T]]] = {name: deque() for name in limits.listeners}
        """Who waits for a rate or a slot, by listener; the first of each line has its turn."""
        self.held: list[tuple[int, int, Arrival[T]]] = []
        """A heap: when to look again, a number, and who."""
        self._blocked = dict.fromkeys(limits.listeners, 0)
        self._blocked_since: dict[str, int] = {}
        self._suspect_until = dict.fromkeys(limits.listeners, -1)
        self._numbers = 0
        self._admit = admit
        self._refuse = refuse
        self._is_gone = is_gone
        self._evict = evict
        self._report = report

    def arrive(self, listener: str, address: str, token: T, now: int) -> None:
        """A connection was accepted. ``address``: in its canonical form."""
        arrival = Arrival(listener, address, token)
        line = self.lines[listener]
        line.append(arrival)
        if len(line) == 1:
            self._serve(listener, now)

    def leave(self, listener: str, address: str, now: int) -> None:
        """A connection that was admitted has ended."""
        self.total -= 1
        self.open[listener] -= 1
        left = self.open_by_address[address] - 1
        if left:
            self.open_by_address[address] = left
        else:
            del self.open_by_address[address]
        self._serve_all(now)

    def advance(self, now: int) -> None:
        """Time has passed: let through, or refuse, whoever has waited long enough."""
        back = []
        while self.held and self.held[0][0] <= now:
            arrival = heapq.heappop(self.held)[2]
            if self._may_enter(arrival, now):
                back.append(arrival)
        for arrival in reversed(back):  # the one held first comes first
            self.lines[arrival.listener].appendleft(arrival)
        self._serve_all(now)

    def due(self) -> int | None:
        """When ``advance`` has something to do; None if it never has. A free slot makes itself known in ``leave``."""
        times = [line[0].ready_at for line in self.lines.values() if line and not line[0].wants_slot]
        if self.held:
            times.append(self.held[0][0])
        return min(times, default=None)

    def busy(self, listener: str) -> bool:
        """Whether ``listener`` is not to accept anything now."""
        return bool(self.lines[listener])

    def lacks(self, listener: str) -> tuple[Scope, Quota, int] | None:
        """The limit of connections that the first of the line waits for, and how many there are; None if for none."""
        line = self.lines[listener]
        if not line or not line[0].wants_slot:
            return None
        return next((full for full in self._full_quotas(listener) if full[1].enforced), None)

    def waiting(self, listener: str, now: int) -> int:
        """For how many ms ``listener`` has now accepted nothing; 0 where it may."""
        return now - self._blocked_since.get(listener, now)

    def blocked(self, listener: str, now: int) -> int:
        """For how many ms ``listener`` has accepted nothing, in sum, because of a limit other than an address'."""
        return self._blocked[listener] + self.waiting(listener, now)

    def change(self, limits: Limits, now: int) -> None:
        """Take new limits over everything measured so far. Who waits out a delay or hold does so to its end."""
        self.limits = limits
        self.sensors.change(limits)
        self._serve_all(now)

    def close(self) -> None:
        """Refuse all who wait."""
        waiting = [arrival for line in self.lines.values() for arrival in line] + [held for _, _, held in self.held]
        for line in self.lines.values():
            line.clear()
        self.held.clear()
        for arrival in waiting:
            self._refuse(arrival.listener, arrival.token)

    # ---- one after the other ------------------------------------------------------------------------------------

    def _serve_all(self, now: int) -> None:
        for listener, line in self.lines.items():
            if line:
                self._serve(listener, now)

    def _serve(self, listener: str, now: int) -> None:
        """Let through whoever's turn it is, until one has to wait."""
        line = self.lines[listener]
        while line:
            arrival = line[0]
            if arrival.ready_at < 0:
                may_have_waited = now <= self._suspect_until[listener]
                if (may_have_waited and self._is_gone(arrival.token)) or self._address_is_full(arrival):
                    line.popleft()
                    self._refuse(listener, arrival.token)
                    continue
                arrival.ready_at = now + self._delay(arrival, now)
            if now < arrival.ready_at or not self._gets_slot(arrival):
                self._blocked_since.setdefault(listener, now)
                return
            line.popleft()
            since = self._blocked_since.pop(listener, now)
            self._blocked[listener] += now - since
            if since < now:
                self._suspect_until[listener] = now + SUSPECT_MS
            if since < now and self._is_gone(arrival.token):
                if not arrival.wants_slot:  # then it was counted within this window; older ones have left it anyway
                    self.sensors.record(listener, -1, now)
                self._refuse(listener, arrival.token)
            elif arrival.held_for is not None or not self._hold(arrival, now):
                self._enter(arrival)

    def _enter(self, arrival: Arrival[T]) -> None:
        listener = arrival.listener
        if self._address_is_full(arrival):  # by others that entered while it waited
            self._refuse(listener, arrival.token)
            return
        self._say_observed(arrival)
        self.total += 1
        self.open[listener] += 1
        self.open_by_address[arrival.address] = self.open_by_address.get(arrival.address, 0) + 1
        self.admitted[listener] += 1
        self._admit(listener, arrival.token)
        limits = self.limits
        if limits.connections.enforced and self.total > limits.connections.limit and self._is_protected(listener):
            self._evict([name for name in limits.listeners if not self._is_protected(name)])

    # ---- rates --------------------------------------------------------------------------------------------------

    def _delay(self, arrival: Arrival[T], now: int) -> int:
        """Count it against broker and listener; return for how many ms it has to wait."""
        listener = arrival.listener
        self.sensors.record(listener, 1, now)
        excesses = self.sensors.excesses(listener, now)
        enforced = [excess for excess in excesses if excess.quota.enforced]
        worst = max(enforced, key=lambda excess: excess.wait_ms, default=None)
        delay = worst.wait_ms if worst is not None else 0
        if worst is not None and delay:  # as in Kafka, less than half a millisecond is none
            self._say_excess(arrival, worst, "delay")
            self.delays[listener][0] += 1
            self.delays[listener][1] += delay
        for excess in excesses:
            if not excess.quota.enforced and excess.wait_ms:
                self._say_excess(arrival, excess, "observe")
        return delay

    def _hold(self, arrival: Arrival[T], now: int) -> bool:
        """Whether the rate of its address keeps it from entering now; it is held then, or refused."""
        excess = self.sensors.arrive(arrival.address, now)
        if excess is None:
            return False
        if not excess.quota.enforced:
            self._say_excess(arrival, excess, "observe")
            return False
        self.sensors.record(arrival.listener, -1, now)
        if len(self.held) >= self.limits.max_held:
            self._say_excess(arrival, excess, "drop")
            self._refuse(arrival.listener, arrival.token)
            return True
        self._say_excess(arrival, excess, "hold")
        self.holds[arrival.listener][0] += 1
        self.holds[arrival.listener][1] += excess.wait_ms
        arrival.held_for = excess
        self._numbers += 1
        heapq.heappush(self.held, (now + excess.wait_ms, self._numbers, arrival))
        return True

    def _may_enter(self, arrival: Arrival[T], now: int) -> bool:
        """Its hold is over: it is counted once more, and may enter or wait for a slot, or is refused."""
        listener, address = arrival.listener, arrival.address
        if self._is_gone(arrival.token) or self._address_is_full(arrival):
            self._refuse(listener, arrival.token)
            return False
        closes = self.sensors.quota_of(address).enforced and not self.limits.recheck
        excess = arrival.held_for if closes else self.sensors.arrive(address, now)
        if excess is not None and excess.quota.enforced:
            self._say_excess(arrival, excess, "drop")
            self._refuse(listener, arrival.token)
            return False
        self.sensors.record(listener, 1, now)
        arrival.ready_at = now
        return True

    # ---- open connections ---------------------------------------------------------------------------------------

    def _is_protected(self, listener: str) -> bool:
        return self.limits.listeners[listener].protected

    def _has_slot(self, listener: str) -> bool:
        own, all_ = self.limits.listeners[listener].connections, self.limits.connections
        if own.enforced and self.open[listener] >= own.limit:
            return False
        return not all_.enforced or self.total < all_.limit or self._is_protected(listener)

    def _gets_slot(self, arrival: Arrival[T]) -> bool:
        """Whether there is a slot for it; the first time there is none, that is reported."""
        if self._has_slot(arrival.listener):
            return True
        if not arrival.wants_slot:
            arrival.wants_slot = True
            lacks = self.lacks(arrival.listener)
            assert lacks is not None, "it is the first of its line, and has no slot"
            scope, quota, count = lacks
            self._say(arrival, scope, "connections", "delay", quota.limit, count)
        return False

    def _full_quotas(self, listener: str) -> list[tuple[Scope, Quota, int]]:
        """Return the limits of connections that leave ``listener`` no slot, or would if they were enforced."""
        own, all_ = self.limits.listeners[listener].connections, self.limits.connections
        full: list[tuple[Scope, Quota, int]] = []
        if own.limited and self.open[listener] >= own.limit:
            full.append(("listener", own, self.open[listener]))
        if all_.limited and self.total >= all_.limit and not self._is_protected(listener):
            full.append(("broker", all_, self.total))
        return full

    def limit_of(self, address: str) -> Quota:
        """Return how many connections ``address`` may have open."""
        limits = self.limits
        override = limits.ip_connections_overrides.get(address)
        return limits.ip_connections if override is None else Quota(override, limits.ip_connections.action)

    def _address_is_full(self, arrival: Arrival[T]) -> bool:
        """Whether its address has all the connections it may have, and is to be refused another."""
        quota = self.limit_of(arrival.address)
        count = self.open_by_address.get(arrival.address, 0)
        if count < quota.limit or not quota.enforced:
            return False
        self._say(arrival, "ip", "connections", "drop", quota.limit, count)
        return True

    # ---- what happened ------------------------------------------------------------------------------------------

    def _say_observed(self, arrival: Arrival[T]) -> None:
        """Report limits of connections that would have kept it out."""
        full = self._full_quotas(arrival.listener)
        full.append(("ip", self.limit_of(arrival.address), self.open_by_address.get(arrival.address, 0)))
        for scope, quota, count in full:
            if not quota.enforced and count >= quota.limit:
                self._say(arrival, scope, "connections", "observe", quota.limit, count)

    def _say_excess(self, arrival: Arrival[T], excess: Excess, done: Done) -> None:
        limit = excess.quota.limit
        wait = 0 if done == "drop" else excess.wait_ms
        self._say(arrival, excess.scope, "connection_creation_rate", done, limit, excess.observed, wait)

    def _say(
        self,
        arrival: Arrival[T],
        scope: Scope,
        quota: What,
        done: Done,
        limit: int,
        observed: float,
        delay_ms: int = 0,
    ) -> None:
        self.throttled[arrival.listener, scope, quota, done] += 1
        self._report(Throttle(arrival.listener, arrival.address, scope, quota, done, limit, observed, delay_ms))
