# cython: language_level=3, annotation_typing=False
"""Decides which accepted connections are admitted, and when. Nothing else is done for a connection before.

This is a state machine without IO. It gets arrivals, ends and the time, and calls ``admit`` or ``refuse`` once for each
connection. The order of the checks is that of Kafka's ``ConnectionQuotas.inc``, with one exception: an address with too
many open connections is refused first, so that it does not use up the rate of others.

1. Open connections of the address (KIP-402): a connection above the limit is refused at once.
2. Rates of broker and listener (KIP-612), then a slot under ``max.connections``: the connection waits for both.
   Meanwhile its listener accepts nothing (``is_blocked``).
3. Rate of the address (KIP-306, KIP-612): a connection above the limit is held for up to a second and then checked
   again. Other connections pass in the meantime. A held connection is not counted in any rate.

Times are milliseconds of one monotonic clock.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Collection
from itertools import takewhile
from typing import Any, TypeAlias

import cython

from proxy.limits.inheritance import PendingState
from proxy.limits.model import Limits, Quota, QuotaKind, QuotaScope, Throttle, ThrottleAction, ThrottleKind
from proxy.limits.rate_sensors import RateSensors, RateViolation

RECHECK_CLIENTS_MS = 1000
"""Milliseconds after a listener was blocked in which accepted connections may have waited in the kernel for it."""

MAX_ENDED_HOLDS = 8
"""Held connections that one call of ``process_timers`` admits or refuses. More would delay the traffic of open
connections."""

Token: TypeAlias = Any
"""The caller's identifier of a connection."""


@cython.cclass
class PendingConnection:
    """A connection that is neither admitted nor refused yet.

    ``ready_at``: when its delay ends; −1 if it is not yet the first of its queue. ``wants_slot``: whether it only waits
    for another connection to end. ``held_for``: the violation it was held for. It is not held a second time.
    """

    def __init__(self, listener: str, address: str, token: Token) -> None:
        self.listener = listener
        self.address = address
        self.token = token
        self.ready_at = -1
        self.wants_slot = False
        self.held_for: RateViolation | None = None


@cython.cclass
class ConnectionQuotas:
    """All limits of one sidecar, and the connections that wait for them.

    * ``admit(listener, token)`` and ``refuse(listener, token)`` pass the ownership of a connection to the caller.
    * ``is_disconnected(token)`` returns whether the client has closed the connection. It is called for connections that
      have waited here or may have waited in the kernel. After an outage the kernel's queue is full of such connections.
      If they were counted, clients that still wait would never be admitted.
    * ``evict(listeners)`` asks to close the connection of these listeners that has been idle for longest.
    * ``on_throttle(throttle)`` is called for each throttle.

    Each method may change ``next_timer``.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        admit: Callable[[str, Token], None],
        refuse: Callable[[str, Token], None],
        is_disconnected: Callable[[Token], bool],
        evict: Callable[[Collection[str]], None],
        on_throttle: Callable[[Throttle], None],
    ) -> None:
        self._set_limits(limits)
        self.sensors = RateSensors(limits)
        self.open_total = 0
        """Open connections."""
        self.open_by_listener: dict[str, int] = {}
        """Open connections by listener; of one that is no more there as long as it has any."""
        self.open_by_address: dict[str, int] = {}
        """Open connections by address, without addresses that have none."""
        self.throttled: Counter[ThrottleKind] = Counter()
        self.admitted: dict[str, int] = {}
        self.delays: dict[str, list[int]] = {}
        """By listener: connections delayed for a rate of the broker or the listener, and the sum of their delays in
        ms."""
        self.holds: dict[str, list[int]] = {}
        """By listener: connections held for the rate of their address, and the sum of their holds in ms."""
        self.queues: dict[str, deque[PendingConnection]] = {}
        """Connections that wait for a rate or a slot, by listener. The first of each queue is checked next."""
        self.held: list[tuple[int, int, PendingConnection]] = []
        """A heap of held connections: when the hold ends, a serial number, and the connection."""
        self._paused = False
        self._blocked_ms: dict[str, int] = {}
        self._blocked_since: dict[str, int] = {}
        self._recheck_clients_until: dict[str, int] = {}
        for name in limits.listeners:
            self._add_listener(name)
        self._hold_number = 0
        self._admit = admit
        self._refuse = refuse
        self._is_disconnected = is_disconnected
        self._evict = evict
        self._on_throttle = on_throttle

    def submit(self, listener: str, address: str, token: Token, now: int) -> None:
        """Add an accepted connection. ``address``: in canonical form."""
        pending = PendingConnection(listener, address, token)
        queue = self.queues[listener]
        queue.append(pending)
        if len(queue) == 1:
            self._process_queue(listener, now)

    def release(self, listener: str, address: str, now: int) -> None:
        """Count an admitted connection as ended."""
        self.open_total -= 1
        self.open_by_listener[listener] -= 1
        if not self.open_by_listener[listener] and listener not in self.limits.listeners:
            del self.open_by_listener[listener]
        left = self.open_by_address[address] - 1
        if left:
            self.open_by_address[address] = left
        else:
            del self.open_by_address[address]
        self._process_all_queues(now)

    def process_timers(self, now: int) -> None:
        """Admit or refuse connections whose delay or hold is over, at most ``MAX_ENDED_HOLDS`` held ones.

        If there are more of these, ``next_timer`` is over, and they are next.
        """
        for _ in range(MAX_ENDED_HOLDS):
            if self._paused or not self.held or self.held[0][0] > now:
                break
            pending = heapq.heappop(self.held)[2]
            if self._end_hold(pending, now):
                self._return_to_queue(pending)
        self._process_all_queues(now)

    def next_timer(self) -> int | None:
        """Return when to call ``process_timers``; None if no timer runs. A slot that becomes free is noticed by
        ``release``."""
        if self._paused:
            return None
        earliest: int | None = self.held[0][0] if self.held else None
        for queue in self.queues.values():
            if queue and not queue[0].wants_slot and (earliest is None or queue[0].ready_at < earliest):
                earliest = queue[0].ready_at
        return earliest

    def is_blocked(self, listener: str) -> bool:
        """Return whether ``listener`` must not accept connections now."""
        return self._paused or bool(self.queues[listener])

    def has_queued(self) -> bool:
        """Return whether connections of any listener wait for a rate or a slot."""
        for queue in self.queues.values():  # noqa: SIM110  # a loop in C
            if queue:
                return True
        return False

    def missing_slot(self, listener: str) -> tuple[QuotaScope, Quota, int] | None:
        """Return the limit of open connections that the queue of ``listener`` waits for, with its scope and the open
        connections.

        Returns None if it does not wait for a slot.
        """
        queue = self.queues[listener]
        if not queue or not queue[0].wants_slot:
            return None
        return next((full for full in self._full_quotas(listener) if full[1].enforced), None)

    def blocked_for(self, listener: str, now: int) -> int:
        """Return for how many ms ``listener`` has been blocked; 0 if it is not blocked."""
        return now - self._blocked_since.get(listener, now)

    def total_blocked(self, listener: str, now: int) -> int:
        """Return for how many ms ``listener`` was blocked in total. Limits of addresses never block it."""
        return self._blocked_ms[listener] + self.blocked_for(listener, now)

    def update_limits(self, limits: Limits, now: int) -> None:
        """Apply new limits and keep everything that was measured. Running delays and holds are not shortened.

        Pending connections of a listener that is no more there are refused.
        """
        self._set_limits(limits)
        self.sensors.update_limits(limits)
        self._change_listeners(limits)
        self._process_all_queues(now)

    def pause(self) -> None:
        """Admit and refuse nothing until ``resume``, so that all of the state can be passed to another process."""
        self._paused = True

    def resume(self, now: int) -> None:
        """Continue after ``pause``."""
        self._paused = False
        self._process_all_queues(now)

    def count_open(self, listener: str, address: str) -> None:
        """Count an open connection, until ``release``."""
        self.open_total += 1
        self.open_by_listener[listener] = self.open_by_listener.get(listener, 0) + 1
        self.open_by_address[address] = self.open_by_address.get(address, 0) + 1

    def pending(self) -> list[tuple[PendingState, Token]]:
        """Return all connections that are neither admitted nor refused, in the order in which they are checked."""
        queued = [
            (PendingState(one.ready_at, one.wants_slot, one.held_for), one.token)
            for queue in self.queues.values()
            for one in queue
        ]
        held = [(PendingState(held_for=one.held_for, held_until=end), one.token) for end, _, one in sorted(self.held)]
        return queued + held

    def restore_pending(self, listener: str, address: str, token: Token, state: PendingState) -> None:
        """Add a connection of ``pending`` of another process. It is checked with the next call of another method."""
        pending = PendingConnection(listener, address, token)
        pending.ready_at, pending.wants_slot, pending.held_for = state.ready_at, state.wants_slot, state.held_for
        if state.held_until is None:
            self.queues[listener].append(pending)
        else:
            self._hold(pending, state.held_until)

    def forget_pending(self) -> None:
        """Forget all connections of ``pending``. Another process has them."""
        for queue in self.queues.values():
            queue.clear()
        self.held.clear()

    def close(self) -> None:
        """Refuse all pending connections."""
        waiting = [pending for queue in self.queues.values() for pending in queue] + [held for _, _, held in self.held]
        self.forget_pending()
        for pending in waiting:
            self._refuse(pending.listener, pending.token)

    def _set_limits(self, limits: Limits) -> None:
        self.limits = limits
        connections = [limits.connections, *(each.connections for each in limits.listeners.values())]
        # Most sidecars have few kinds of limits. What has none is not looked for with each connection.
        self._limits_slots = any(quota.enforced for quota in connections)
        self._limits_addresses = limits.ip_connections.limited or bool(limits.ip_connections_overrides)
        overridden = bool(limits.ip_connections_overrides) and limits.ip_connections.action != "enforce"
        self._observes_connections = overridden or any(
            quota.limited and not quota.enforced for quota in (*connections, limits.ip_connections)
        )

    def _change_listeners(self, limits: Limits) -> None:
        gone = self.queues.keys() - limits.listeners.keys()
        refused = [pending for name in gone for pending in self.queues[name]]
        refused += [pending for _, _, pending in self.held if pending.listener in gone]
        self.held = [one for one in self.held if one[2].listener not in gone]
        heapq.heapify(self.held)
        by_listener: list[dict[str, Any]] = [
            self.queues, self.admitted, self.delays, self.holds, self._blocked_ms, self._recheck_clients_until
        ]  # fmt: skip
        for name in gone:
            self._blocked_since.pop(name, None)
            for counts in by_listener:
                del counts[name]
        for name in [name for name in limits.listeners if name not in self.queues]:
            self._add_listener(name)
        for pending in refused:
            self._refuse(pending.listener, pending.token)

    def _add_listener(self, name: str) -> None:
        self.open_by_listener.setdefault(name, 0)
        self.admitted[name] = self._blocked_ms[name] = 0
        self.delays[name], self.holds[name] = [0, 0], [0, 0]
        self.queues[name] = deque()
        self._recheck_clients_until[name] = -1

    # ---- queues ------------------------------------------------------------------------------------------------

    def _process_all_queues(self, now: int) -> None:
        for listener, queue in self.queues.items():
            if queue:
                self._process_queue(listener, now)

    def _process_queue(self, listener: str, now: int) -> None:
        """Admit or refuse connections of the queue until the first one has to wait."""
        queue = self.queues[listener]
        while queue and not self._paused:
            pending = queue[0]
            if pending.ready_at < 0:
                may_have_waited = now <= self._recheck_clients_until[listener]
                if (may_have_waited and self._is_disconnected(pending.token)) or self._address_is_full(pending):
                    queue.popleft()
                    self._refuse(listener, pending.token)
                    continue
                pending.ready_at = now + self._count_and_delay(pending, now)
            if now < pending.ready_at or not self._has_slot_or_report(pending):
                self._blocked_since.setdefault(listener, now)
                return
            queue.popleft()
            since = self._blocked_since.pop(listener, now)
            if since < now:
                self._blocked_ms[listener] += now - since
                self._recheck_clients_until[listener] = now + RECHECK_CLIENTS_MS
            if since < now and self._is_disconnected(pending.token):
                if not pending.wants_slot:  # it was counted in this window
                    self.sensors.record(listener, -1, now)
                self._refuse(listener, pending.token)
            elif pending.held_for is not None or not self._hold_or_refuse(pending, now):
                self._admit_or_refuse(pending)

    def _admit_or_refuse(self, pending: PendingConnection) -> None:
        listener = pending.listener
        if self._address_is_full(pending):  # others were admitted meanwhile
            self._refuse(listener, pending.token)
            return
        if self._observes_connections:
            self._report_observed_limits(pending)
        self.count_open(listener, pending.address)
        self.admitted[listener] += 1
        self._admit(listener, pending.token)
        if self._limits_slots:
            self._evict_if_too_many(listener)

    def _evict_if_too_many(self, listener: str) -> None:
        """After a connection of ``listener`` was admitted: it may be one too many of all, as those of the protected
        listener never wait."""
        limits = self.limits
        if limits.connections.enforced and self.open_total > limits.connections.limit and self._is_protected(listener):
            self._evict([name for name in limits.listeners if not self._is_protected(name)])

    # ---- rates --------------------------------------------------------------------------------------------------

    def _count_and_delay(self, pending: PendingConnection, now: int) -> int:
        """Count the connection in the rates of broker and listener, and return its delay in ms."""
        listener = pending.listener
        self.sensors.record(listener, 1, now)
        violations = self.sensors.violations(listener, now)
        return self._delay(pending, violations) if violations else 0

    def _delay(self, pending: PendingConnection, violations: list[RateViolation]) -> int:
        """Report the violations, and return the longest delay of those that are enforced."""
        enforced = [violation for violation in violations if violation.quota.enforced]
        worst = max(enforced, key=lambda violation: violation.wait_ms, default=None)
        delay = worst.wait_ms if worst is not None else 0
        if worst is not None and delay:  # less than half a millisecond counts as no delay, as in Kafka
            self._report_violation(pending, worst, "delay")
            self.delays[pending.listener][0] += 1
            self.delays[pending.listener][1] += delay
        for violation in violations:
            if not violation.quota.enforced and violation.wait_ms:
                self._report_violation(pending, violation, "observe")
        return delay

    def _hold_or_refuse(self, pending: PendingConnection, now: int) -> bool:
        """Return whether the rate of the address forbids to admit the connection now. It is then held or refused."""
        violation = self.sensors.count_address(pending.address, now)
        if violation is None:
            return False
        if not violation.quota.enforced:
            self._report_violation(pending, violation, "observe")
            return False
        self.sensors.record(pending.listener, -1, now)
        if len(self.held) >= self.limits.max_held:
            self._report_violation(pending, violation, "drop")
            self._refuse(pending.listener, pending.token)
            return True
        self._report_violation(pending, violation, "hold")
        self.holds[pending.listener][0] += 1
        self.holds[pending.listener][1] += violation.wait_ms
        pending.held_for = violation
        self._hold(pending, now + violation.wait_ms)
        return True

    def _hold(self, pending: PendingConnection, until: int) -> None:
        self._hold_number += 1
        heapq.heappush(self.held, (until, self._hold_number, pending))

    def _end_hold(self, pending: PendingConnection, now: int) -> bool:
        """Check a connection whose hold is over. Return whether it may be admitted or wait for a slot; otherwise it is
        refused."""
        listener, address = pending.listener, pending.address
        if self._is_disconnected(pending.token) or self._address_is_full(pending):
            self._refuse(listener, pending.token)
            return False
        closes = self.sensors.rate_quota(address).enforced and not self.limits.recheck
        violation = pending.held_for if closes else self.sensors.count_address(address, now)
        if violation is not None and violation.quota.enforced:
            self._report_violation(pending, violation, "drop")
            self._refuse(listener, pending.token)
            return False
        self.sensors.record(listener, 1, now)
        pending.ready_at = now
        return True

    def _return_to_queue(self, pending: PendingConnection) -> None:
        """Put a connection whose hold is over before those that were not held, in the order of the holds."""
        queue = self.queues[pending.listener]
        held_before = takewhile(lambda waiting: waiting.held_for is not None, queue)
        queue.insert(sum(1 for _ in held_before), pending)

    # ---- open connections ---------------------------------------------------------------------------------------

    def _is_protected(self, listener: str) -> bool:
        return self.limits.listeners[listener].protected

    def _has_slot(self, listener: str) -> bool:
        own, all_ = self.limits.listeners[listener].connections, self.limits.connections
        if own.enforced and self.open_by_listener[listener] >= own.limit:
            return False
        return not all_.enforced or self.open_total < all_.limit or self._is_protected(listener)

    def _has_slot_or_report(self, pending: PendingConnection) -> bool:
        """Return whether there is a slot for the connection. A missing slot is reported once for each connection."""
        if not self._limits_slots or self._has_slot(pending.listener):
            return True
        if not pending.wants_slot:
            pending.wants_slot = True
            missing = self.missing_slot(pending.listener)
            assert missing is not None, "it is the first of its queue, and has no slot"
            scope, quota, count = missing
            self._report_throttle(pending, scope, "connections", "delay", quota.limit, count)
        return False

    def _full_quotas(self, listener: str) -> list[tuple[QuotaScope, Quota, int]]:
        """Return the limits of open connections that are reached for ``listener``, whether they are enforced or not."""
        own, all_ = self.limits.listeners[listener].connections, self.limits.connections
        full: list[tuple[QuotaScope, Quota, int]] = []
        if own.limited and self.open_by_listener[listener] >= own.limit:
            full.append(("listener", own, self.open_by_listener[listener]))
        if all_.limited and self.open_total >= all_.limit and not self._is_protected(listener):
            full.append(("broker", all_, self.open_total))
        return full

    def connection_quota(self, address: str) -> Quota:
        """Return the limit of open connections of ``address``."""
        limits = self.limits
        override = limits.ip_connections_overrides.get(address)
        return limits.ip_connections if override is None else Quota(override, limits.ip_connections.action)

    def _address_is_full(self, pending: PendingConnection) -> bool:
        """Return whether the address has reached its limit of open connections, so that the connection has to be
        refused."""
        if not self._limits_addresses:
            return False
        quota = self.connection_quota(pending.address)
        count = self.open_by_address.get(pending.address, 0)
        if count < quota.limit or not quota.enforced:
            return False
        self._report_throttle(pending, "ip", "connections", "drop", quota.limit, count)
        return True

    # ---- reports -----------------------------------------------------------------------------------------------

    def _report_observed_limits(self, pending: PendingConnection) -> None:
        """Report limits in dry-run mode that would have kept the connection out."""
        full = self._full_quotas(pending.listener)
        full.append(("ip", self.connection_quota(pending.address), self.open_by_address.get(pending.address, 0)))
        for scope, quota, count in full:
            if not quota.enforced and count >= quota.limit:
                self._report_throttle(pending, scope, "connections", "observe", quota.limit, count)

    def _report_violation(self, pending: PendingConnection, violation: RateViolation, action: ThrottleAction) -> None:
        limit = violation.quota.limit
        wait = 0 if action == "drop" else violation.wait_ms
        self._report_throttle(
            pending, violation.scope, "connection_creation_rate", action, limit, violation.observed, wait
        )

    def _report_throttle(
        self,
        pending: PendingConnection,
        scope: QuotaScope,
        quota: QuotaKind,
        action: ThrottleAction,
        limit: int,
        observed: float,
        delay_ms: int = 0,
    ) -> None:
        self.throttled[ThrottleKind(pending.listener, scope, quota, action)] += 1
        self._on_throttle(Throttle(pending.listener, pending.address, scope, quota, action, limit, observed, delay_ms))
