"""What is measured against rate limits: broker-wide, by listener, by address. Nothing is measured without a limit.

Times are milliseconds of one monotonic clock.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import NamedTuple

from proxy.limits.model import Limits, Quota, Scope
from proxy.limits.window import Rate, is_over, wait, wait_at_least

MAX_ADDRESSES = 100_000
"""Addresses whose rate is measured at a time, about 0.7 KiB each; beyond it the one unused for longest is forgotten."""

MAX_HOLD_MS = 1000
"""Longest time that a connection is held for its address' rate (KIP-612)."""

EXPIRE_AT_ONCE = 1_000
"""Idle addresses forgotten in one call; more would hold up traffic."""

RECENT = 500
"""Addresses, those used last, among which the busiest are looked for."""


class Excess(NamedTuple):
    """A rate that is over its limit. ``wait_ms``: until it is not, if nothing more comes; bounded."""

    scope: Scope
    quota: Quota
    observed: float
    wait_ms: int


class Sensors:
    """All rates of one sidecar."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._broker: Rate | None = None
        self._listeners: dict[str, Rate] = {}
        self._addresses: OrderedDict[str, Rate] = OrderedDict()  # the one used last at the end
        self.change(limits)

    @property
    def addresses(self) -> int:
        """How many addresses are measured."""
        return len(self._addresses)

    def change(self, limits: Limits) -> None:
        """Take new limits over what was measured so far; other windows begin anew."""
        old, self._limits = self._limits, limits
        if (old.samples, old.window_ms) != (limits.samples, limits.window_ms):
            self._broker = None
            self._listeners.clear()
            self._addresses.clear()
        if not limits.rate.limited:
            self._broker = None
        elif self._broker is None:
            self._broker = self._new()
        for name, listener in limits.listeners.items():
            if not listener.rate.limited:
                self._listeners.pop(name, None)
            elif name not in self._listeners:
                self._listeners[name] = self._new()

    def quota_of(self, address: str) -> Quota:
        """Return the rate limit of ``address``: its own, or the default one."""
        return self._limits.ip_rate(address)

    def record(self, listener: str, value: int, now: int) -> None:
        """Count a connection of ``listener``, or take one back with −1."""
        sensor = self._listeners.get(listener)
        if sensor is not None:
            sensor.record(value, now)
        if self._broker is not None and not self._limits.listeners[listener].protected:
            self._broker.record(value, now)

    def excesses(self, listener: str, now: int) -> list[Excess]:
        """Return which rates that concern ``listener`` are over their limit; the wait is at most one window."""
        limits = self._limits.listeners[listener]
        found = []
        if self._broker is not None and not limits.protected:
            found += self._excess("broker", self._broker, self._limits.rate, now)
        sensor = self._listeners.get(listener)
        if sensor is not None:
            found += self._excess("listener", sensor, limits.rate, now)
        return found

    def arrive(self, address: str, now: int) -> Excess | None:
        """Count a connection of ``address``; return what it exceeds, where that is one too many.

        It is taken back where the limit is enforced: else nobody would ever be let in again while the address goes on
        trying.
        """
        quota = self.quota_of(address)
        if not quota.limited:
            return None
        addresses = self._addresses
        sensor = addresses.get(address)
        if sensor is None:
            if len(addresses) >= MAX_ADDRESSES:
                addresses.popitem(last=False)
            sensor = addresses[address] = self._new()
        else:
            addresses.move_to_end(address)
        sensor.record(1, now)
        count, window = sensor.look(now)
        if not is_over(count, window, quota.limit):
            return None
        if quota.enforced:
            sensor.record(-1, now)
        return Excess("ip", quota, count * 1000 / window, min(wait_at_least(count, window, quota.limit), MAX_HOLD_MS))

    def expire(self, now: int) -> None:
        """Forget addresses that have been idle for the whole window; for them that changes nothing."""
        for address in list(islice(self._addresses, EXPIRE_AT_ONCE)):
            if not self._addresses[address].expired(now):
                return
            del self._addresses[address]
        if not self._addresses:
            self._addresses.clear()  # gives back the memory of its table, too

    def rate(self, listener: str | None, now: int) -> float:
        """Return connections per second of ``listener``, or broker-wide for None; NaN where it is not measured."""
        sensor = self._broker if listener is None else self._listeners.get(listener)
        return float("nan") if sensor is None else sensor.per_second(now)

    def address_rate(self, address: str, now: int) -> float:
        """Return connections per second of ``address``; NaN where it is not measured."""
        sensor = self._addresses.get(address)
        return float("nan") if sensor is None else sensor.per_second(now)

    def recent(self) -> list[str]:
        """Return some of the addresses, those used last."""
        return list(islice(reversed(self._addresses), RECENT))

    def _new(self) -> Rate:
        return Rate(self._limits.samples, self._limits.window_ms)

    def _excess(self, scope: Scope, sensor: Rate, quota: Quota, now: int) -> list[Excess]:
        count, window = sensor.look(now)
        if not is_over(count, window, quota.limit):
            return []
        bounded = min(wait(count, window, quota.limit), self._limits.window_ms)
        return [Excess(scope, quota, count * 1000 / window, bounded)]
