"""Limits of authenticated principals: how many connections each has, and how fast it makes them.

Clients behind one NAT share an address; a principal tells them apart. It is known only once the broker has accepted a
SASL login, so a connection counts from then on. A state machine without IO: it gets logins, ends and the time.

1. Open connections of the principal: a connection above the limit is closed, and does not use up the rate.
2. Rate of the principal: a connection above the limit is held, that is: its client is not read for the throttle time,
   a second at most. Then it goes on. It counts in the rate, for nothing has to be let in later.

A connection counts once, however often its client logs in again (KIP-368). Times are milliseconds of one monotonic
clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from proxy.limits.model import Limits, QuotaKind, Throttle, ThrottleAction, ThrottleKind
from proxy.limits.rate_sensors import KeyedRates

MAX_MEASURED_PRINCIPALS = 10_000
"""Principals whose rate is measured, up to 5 KiB each with the longest names. Beyond it the least recently used one is
dropped."""

Logins = list[tuple[int, str]]
"""Clients that have logged in: the number of the connection, and the principal, such as ``User:alice``."""


class PrincipalQuotas:
    """The limits of principals of one sidecar, and the connections that count in them.

    * ``hold(number, hold_ms)``: do not read the client of this connection for ``hold_ms``.
    * ``close(number)``: close this connection. It is counted no more.
    * ``on_throttle(throttle)`` is called for each throttle.

    Nothing is counted while no principal has a limit.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        hold: Callable[[int, int], None],
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
        self._hold = hold
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

        def report(quota: QuotaKind, action: ThrottleAction, limit: int, observed: float, delay_ms: int = 0) -> None:
            self.throttled[ThrottleKind(listener, "principal", quota, action)] += 1
            self._on_throttle(
                Throttle(listener, address, "principal", quota, action, limit, observed, delay_ms, principal)
            )

        most, count = self.limits.principal_connection_quota(principal), self.open_by_principal.get(principal, 0)
        if most.limited and count >= most.limit:
            report("connections", "drop" if most.enforced else "observe", most.limit, count)
            if most.enforced:
                self._close(number)
                return
        self._count(number, principal)
        violation = self.rates.count(principal, self.limits.principal_rate(principal), now)
        if violation is None:
            return
        quota, wait = violation.quota, violation.wait_ms
        action: ThrottleAction = "hold" if quota.enforced else "observe"
        report("connection_creation_rate", action, quota.limit, violation.observed, wait)
        if quota.enforced:
            self.holds[listener][0] += 1
            self.holds[listener][1] += wait
            self._hold(number, wait)

    def principal(self, number: int) -> str | None:
        """Return who has logged in on a connection that counts; None if it does not."""
        return self._principals.get(number)

    def release(self, number: int) -> None:
        """Count a connection as ended, if it counts."""
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
