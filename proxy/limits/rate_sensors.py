# cython: language_level=3, annotation_typing=False
"""The rates of connections: broker-wide, per listener, and per address or principal.

As in Kafka, those of the broker and of listeners are always measured, and that of an address only if it has a limit.

Times are milliseconds of one monotonic clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import cython
from msgspec import Struct

from proxy.limits.model import Limits, Quota, QuotaScope
from proxy.limits.sampled_rate import SampledRate, exceeds, throttle_time, throttle_time_rounded_up

MAX_MEASURED_ADDRESSES = 100_000
"""Addresses whose rate is measured, about 0.7 KiB each. Beyond it the least recently used one is dropped."""

MAX_HOLD_MS = 1000
"""Longest hold of a connection for the rate of its address or principal, in ms (KIP-612)."""

MAX_FORGOTTEN_AT_ONCE = 1_000
"""Idle addresses or principals dropped in one call. More would delay traffic."""

MAX_RECENT = 500
"""The most recently used addresses or principals, among which the busiest ones are searched."""


class MeasuredRate(Struct, array_like=True):
    """The samples of one rate. ``key``: name of the listener, address or principal; empty for the broker-wide rate."""

    scope: QuotaScope
    key: str
    samples: list[int]
    """As ``SampledRate.samples`` returns them."""


class RateViolation(NamedTuple):
    """A rate above its limit. ``wait_ms``: until it is below the limit if no connection follows; bounded."""

    scope: QuotaScope
    quota: Quota
    observed: float
    wait_ms: int


@cython.cclass
class KeyedRates:
    """The rates of addresses or principals that have a limit, at most ``most`` of them."""

    def __init__(self, scope: QuotaScope, most: int, limits: Limits) -> None:
        self._scope = scope
        self._most = most
        self._window = limits.samples, limits.window_ms
        self._rates: OrderedDict[str, SampledRate] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        """Return how many rates are measured."""
        return len(self._rates)

    def update_limits(self, limits: Limits) -> None:
        """If the window has changed, all rates start again."""
        if self._window != (limits.samples, limits.window_ms):
            self._window = limits.samples, limits.window_ms
            self._rates.clear()

    def count(self, key: str, quota: Quota, now: int) -> RateViolation | None:
        """Count a connection of ``key`` if ``quota`` is a limit; return the violation if its rate is now above it."""
        if not quota.limited:
            return None
        rates = self._rates
        sensor = rates.get(key)
        if sensor is None:
            if len(rates) >= self._most:
                rates.popitem(last=False)
            sensor = rates[key] = SampledRate(*self._window)
        else:
            rates.move_to_end(key)
        sensor.record(1, now)
        count, window = sensor.measure(now)
        if not exceeds(count, window, quota.limit):
            return None
        wait = min(throttle_time_rounded_up(count, window, quota.limit), MAX_HOLD_MS)
        return RateViolation(self._scope, quota, count * 1000 / window, wait)

    def take_back(self, key: str, now: int) -> None:
        """Take back the connection of ``key`` that was counted last."""
        self._rates[key].record(-1, now)

    def forget_idle(self, now: int) -> None:
        """Drop those without a connection during the whole window. Their rate would be 0 all the same."""
        for key in list(islice(self._rates, MAX_FORGOTTEN_AT_ONCE)):
            if not self._rates[key].is_idle(now):
                return
            del self._rates[key]
        if not self._rates:
            self._rates.clear()  # also frees the hash table

    def per_second(self, key: str, now: int) -> float:
        """Return the connections per second of ``key``; NaN if the rate is not measured."""
        sensor = self._rates.get(key)
        return float("nan") if sensor is None else sensor.per_second(now)

    def recent(self) -> list[str]:
        """Return the most recently used ones, at most ``MAX_RECENT``."""
        return list(islice(reversed(self._rates), MAX_RECENT))

    def measured(self) -> Iterator[MeasuredRate]:
        """Yield all rates, the least recently used ones first, for ``restore`` of another process.

        Other methods may be called in between.
        """
        for key in list(self._rates):
            if (sensor := self._rates.get(key)) is not None:
                yield MeasuredRate(self._scope, key, sensor.samples)

    def restore(self, rate: MeasuredRate) -> None:
        """Continue with a rate that another process has measured with the same windows."""
        if len(self._rates) < self._most:
            sensor = self._rates[rate.key] = SampledRate(*self._window)
            sensor.restore(rate.samples)


@cython.cclass
class RateSensors:
    """All rates of one sidecar."""

    def __init__(self, limits: Limits) -> None:
        self._set_limits(limits)
        self._broker = self._new_rate()
        self._listeners = {name: self._new_rate() for name in limits.listeners}
        self.addresses = KeyedRates("ip", MAX_MEASURED_ADDRESSES, limits)

    def update_limits(self, limits: Limits) -> None:
        """Apply new limits and keep what was measured. If the window has changed, all rates start again."""
        old = self._limits
        self._set_limits(limits)
        self.addresses.update_limits(limits)
        if (old.samples, old.window_ms) != (limits.samples, limits.window_ms):
            self._broker = self._new_rate()
            self._listeners.clear()
        self._listeners = {name: self._listeners.get(name) or self._new_rate() for name in limits.listeners}

    def rate_quota(self, address: str) -> Quota:
        """Return the rate limit of ``address``: its own or the default one."""
        return self._limits.ip_rate(address)

    def record(self, listener: str, value: int, now: int) -> None:
        """Count a connection of ``listener``, or with −1 take one back."""
        sensor = self._listeners[listener]
        sensor.record(value, now)
        if listener not in self._protected:
            self._broker.record(value, now)

    def violations(self, listener: str, now: int) -> list[RateViolation]:
        """Return which rates that apply to ``listener`` are above their limit. The wait is at most one window."""
        found: list[RateViolation] = []
        if not self._limits_rates:
            return found
        limits = self._limits.listeners[listener]
        if not limits.protected and self._limits.rate.limited:
            self._add_violation(found, "broker", self._broker, self._limits.rate, now)
        if limits.rate.limited:
            self._add_violation(found, "listener", self._listeners[listener], limits.rate, now)
        return found

    def count_address(self, address: str, now: int) -> RateViolation | None:
        """Count a connection of ``address``; return the violation if its rate is now above its limit.

        If the limit is enforced, the connection is taken back then. Otherwise an address that keeps connecting would
        never be admitted again.
        """
        if not (self._limits.ip_rates or self._limits.stored_ip_rates):
            return None
        violation = self.addresses.count(address, self.rate_quota(address), now)
        if violation is not None and violation.quota.enforced:
            self.addresses.take_back(address, now)
        return violation

    def rate(self, listener: str | None, now: int) -> float:
        """Return the connections per second of ``listener``, or broker-wide for None."""
        sensor = self._broker if listener is None else self._listeners[listener]
        return sensor.per_second(now)

    def measured(self) -> Iterator[MeasuredRate]:
        """Yield all rates, for ``restore`` of another process."""
        yield MeasuredRate("broker", "", self._broker.samples)
        for name, sensor in self._listeners.items():
            yield MeasuredRate("listener", name, sensor.samples)
        yield from self.addresses.measured()

    def restore(self, rate: MeasuredRate) -> None:
        """Continue with a rate that another process has measured with the same windows; not with that of an unknown
        listener."""
        if rate.scope == "broker":
            self._broker.restore(rate.samples)
        elif rate.scope == "listener" and rate.key in self._listeners:
            self._listeners[rate.key].restore(rate.samples)
        elif rate.scope == "ip":
            self.addresses.restore(rate)

    def _set_limits(self, limits: Limits) -> None:
        self._limits = limits
        self._protected = {name for name, listener in limits.listeners.items() if listener.protected}
        self._limits_rates = limits.rate.limited or any(each.rate.limited for each in limits.listeners.values())

    def _new_rate(self) -> SampledRate:
        return SampledRate(self._limits.samples, self._limits.window_ms)

    def _add_violation(
        self, found: list[RateViolation], scope: QuotaScope, sensor: SampledRate, quota: Quota, now: int
    ) -> None:
        count, window = sensor.measure(now)
        if exceeds(count, window, quota.limit):
            bounded = min(throttle_time(count, window, quota.limit), self._limits.window_ms)
            found.append(RateViolation(scope, quota, count * 1000 / window, bounded))
