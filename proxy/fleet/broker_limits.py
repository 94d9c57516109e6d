"""The broker's own limits of connections: those that the sidecar applies, and those that would limit the sidecar."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from proxy.limits.model import UNLIMITED, Limits, Quota

RATE = "max.connection.creation.rate"
CONNECTIONS = "max.connections"
PER_IP = "max.connections.per.ip"
OVERRIDES = "max.connections.per.ip.overrides"


class TighterLimit(NamedTuple):
    """A limit of the broker that is lower than what the sidecar lets through."""

    key: str
    value: int
    advice: str


def config_keys(listeners: Iterable[str]) -> list[str]:
    """Return the configuration keys to request. ``listeners``: names; Kafka's keys have them in lower case."""
    prefixed = [_prefixed(listener, key) for listener in listeners for key in (RATE, CONNECTIONS)]
    return [RATE, CONNECTIONS, PER_IP, OVERRIDES, *prefixed]


def parse_rates(configs: Mapping[str, str], listeners: Iterable[str]) -> tuple[int | None, dict[str, int]]:
    """Return the rate of all listeners together (None: no limit), and the rates of single ones by lower-case name."""
    by_listener = {name.lower(): _number(configs, _prefixed(name, RATE)) for name in listeners}
    limited = {name: rate for name, rate in by_listener.items() if rate < UNLIMITED}
    rate = _number(configs, RATE)
    return (rate if rate < UNLIMITED else None), limited


def find_tighter(configs: Mapping[str, str], sources: Collection[str], limits: Limits) -> list[TighterLimit]:
    """Return the limits of the broker that are lower than ``limits``, which the sidecar applies."""
    listeners = limits.listeners.values()
    let_rate = min(_allowed(limits.rate), sum(_allowed(listener.rate) for listener in listeners))
    let_open = min(_allowed(limits.connections), sum(_allowed(listener.connections) for listener in listeners))
    own = [(RATE, _number(configs, RATE), let_rate), (CONNECTIONS, _number(configs, CONNECTIONS), let_open)]
    for name, listener in limits.listeners.items():
        for key, quota in ((RATE, listener.rate), (CONNECTIONS, listener.connections)):
            own.append((_prefixed(name, key), _number(configs, _prefixed(name, key)), _allowed(quota)))
    found = [
        TighterLimit(
            key, value, f"the broker sees all clients as one, this sidecar; set quotas: {key} to {value} or less"
        )
        for key, value, allowed in own
        if value < allowed
    ]
    per_ip = _per_ip(configs, sources)
    if per_ip < let_open:
        advice = (
            "the broker sees all clients come from one address, this sidecar's; remove it there and set it under quotas"
        )
        found.append(TighterLimit(PER_IP, per_ip, advice))
    return found


def _per_ip(configs: Mapping[str, str], sources: Collection[str]) -> int:
    overrides = dict(part.strip().rpartition(":")[::2] for part in configs.get(OVERRIDES, "").split(",") if part)
    general = _number(configs, PER_IP)
    return min((_number(overrides, source, general) for source in sources), default=general)


def _allowed(quota: Quota) -> int:
    return quota.limit if quota.enforced else UNLIMITED


def _prefixed(listener: str, key: str) -> str:
    return f"listener.name.{listener.lower()}.{key}"


def _number(values: Mapping[str, str], key: str, default: int = UNLIMITED) -> int:
    try:
        return int(values[key])
    except (KeyError, ValueError):
        return default
