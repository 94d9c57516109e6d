# cython: language_level=3, annotation_typing=False
"""Limits of authenticated principals: how many connections each has, and how fast it makes them.

Clients behind one NAT share an address; a principal distinguishes them. It is known only once the broker has accepted a
SASL login, so a connection counts from then on. A state machine without IO: it gets logins, ends and the time.

1. Open connections of the principal: a connection above the limit is closed, and does not use up the rate.
2. Rate of the principal: a connection above the limit is held, that is: its client is not read for the throttle time,
   a second at most, and then checked again, as those of addresses are. It continues if the rate then allows it, and is
   closed if not. A held connection is not counted in the rate. It is open, so it counts in the number.

A connection counts once, however often its client logs in again (KIP-368). Times are milliseconds of one monotonic
clock.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable

import cython
from msgspec import Struct

from proxy.limits.model import Limits, QuotaKind, Throttle, ThrottleAction, ThrottleKind
from proxy.limits.rate_sensors import KeyedRates, RateViolation

MAX_MEASURED_PRINCIPALS = 10_000
"""Principals whose rate is measured, up to 5 KiB each with the longest names. Beyond it the least recently used one is
dropped."""

MAX_ENDED_HOLDS = 8
"""Held connections that one call of ``process_timers`` closes or continues. More would delay others' traffic."""

Logins = list[tuple[int, str]]
"""Clients that have logged in: the number of the connection, and the principal, such as ``User:alice``."""


class Login(Struct, frozen=True):
    """One connection whose client has logged in. ``address``: of the client, as throttles name it."""

    principal: str
    listener: str
    address: str


@cython.cclass
class PrincipalQuotas:
    """The limits of principals of one sidecar, and the connections that count in them.

    * ``hold(number)``: do not read the client of this connection until ``resume`` or ``close``.
    * ``resume(number)``: read it again.
    * ``close(number)``: close this connection. ``release`` follows if it counts.
    * ``on_throttle(throttle)`` is called for each throttle.

    Nothing is counted while no principal has a limit.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        hold: Callable[[int], None],
        resume: Callable[[int], None],
        close: Callable[[int], object],
        on_throttle: Callable[[Throttle], None],
    ) -> None:
        self.limits = limits
        self.rates = KeyedRates("principal", MAX_MEASURED_PRINCIPALS, limits)
        self.open_by_principal: dict[str, int] = {}
        """Open connections by principal, without principals that have none."""
        self.throttled: Counter[ThrottleKind] = Counter()
        self.holds = {name: [0, 0] for name in limits.listeners}
        """By listener: connections held for the rate of their principal, and the sum of their holds in ms."""
        self._principals: dict[int, str] = {}  # by connection number
        self._held: dict[int, Login] = {}  # by connection number
        self._hold_ends: list[tuple[int, int]] = []  # a heap: when a hold ends, and the connection; it may have ended
        self._hold = hold
        self._resume = resume
        self._close = close
        self._on_throttle = on_throttle

    @property
    def is_active(self) -> bool:
        """Whether any principal has a limit."""
        return self.limits.any_of_principals

    def update_limits(self, limits: Limits) -> None:
        """Apply new limits to later logins, and keep what was measured."""
        self.limits = limits
        self.rates.update_limits(limits)
        self.holds = {name: self.holds.get(name, [0, 0]) for name in limits.listeners}
        if not self.is_active:
            self._principals.clear()
            self.open_by_principal.clear()

    def add_earlier(self, number: int, principal: str) -> None:
        """Count a connection that logged in while no principal had a limit. It meets none."""
        if self.is_active and number not in self._principals:
            self._count(number, principal)

    def add(self, number: int, principal: str, listener: str, address: str, now: int) -> None:
        """Count a connection whose client has logged in, and hold or close it where a limit says so.

        ``number``: of the connection; ``address``: of the client, as throttles name it.
        """
        if not self.is_active or number in self._principals:
            return
        login = Login(principal, listener, address)
        most, count = self.limits.principal_connection_quota(principal), self.open_by_principal.get(principal, 0)
        if most.limited and count >= most.limit:
            action: ThrottleAction = "drop" if most.enforced else "observe"
            self._report(login, "connections", action, most.limit, count)
            if most.enforced:
                self._close(number)
                return
        self._count(number, principal)
        violation = self._count_in_rate(login, "hold", now)
        if violation is None:
            return
        holds = self.holds.get(listener, [0, 0])  # the listener may be no more there
        holds[0] += 1
        holds[1] += violation.wait_ms
        self._held[number] = login
        heapq.heappush(self._hold_ends, (now + violation.wait_ms, number))
        self._hold(number)

    def process_timers(self, now: int) -> None:
        """Close connections whose hold is over or let them continue, at most ``MAX_ENDED_HOLDS``.

        If there are more of these, ``next_timer`` is over, and they are next.
        """
        for _ in range(MAX_ENDED_HOLDS):
            if not self._hold_ends or self._hold_ends[0][0] > now:
                return
            number = heapq.heappop(self._hold_ends)[1]
            login = self._held.pop(number, None)
            if login is None:  # it has ended meanwhile
                continue
            if self._count_in_rate(login, "drop", now) is None:
                self._resume(number)
            else:
                self._close(number)

    def next_timer(self) -> int | None:
        """Return when to call ``process_timers``; None if nothing is held."""
        return self._hold_ends[0][0] if self._hold_ends else None

    def principal(self, number: int) -> str | None:
        """Return who has logged in on a connection that counts; None if it does not."""
        return self._principals.get(number)

    def release(self, number: int) -> None:
        """Count a connection as ended, if it counts."""
        self._held.pop(number, None)
        principal = self._principals.pop(number, None)
        if principal is None:
            return
        left = self.open_by_principal[principal] - 1
        if left:
            self.open_by_principal[principal] = left
        else:
            del self.open_by_principal[principal]

    def _count(self, number: int, principal: str) -> None:
        self._principals[number] = principal
        self.open_by_principal[principal] = self.open_by_principal.get(principal, 0) + 1

    def _count_in_rate(self, login: Login, enforced: ThrottleAction, now: int) -> RateViolation | None:
        """Count a connection, and return None, if the rate of its principal allows that or only observes.

        Otherwise report the action ``enforced``, and return the violation.
        """
        principal = login.principal
        violation = self.rates.count(principal, self.limits.principal_rate(principal), now)
        if violation is None:
            return None
        quota, observed = violation.quota, violation.observed
        wait = 0 if enforced == "drop" else violation.wait_ms
        action = enforced if quota.enforced else "observe"
        self._report(login, "connection_creation_rate", action, quota.limit, observed, wait)
        if not quota.enforced:
            return None
        self.rates.take_back(principal, now)
        return violation

    def _report(
        self,
        login: Login,
        quota: QuotaKind,
        action: ThrottleAction,
        limit: int,
        observed: float,
        delay_ms: int = 0,
    ) -> None:
        self.throttled[ThrottleKind(login.listener, "principal", quota, action)] += 1
        self._on_throttle(
            Throttle(
                login.listener,
                login.address,
                "principal",
                quota,
                action,
                limit,
                observed,
                delay_ms,
                login.principal,
            )
        )
