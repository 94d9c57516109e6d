"""The broker's own limits on connections: those that can be taken over, and those that would throttle the sidecar."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from proxy.limits.model import UNLIMITED, Limits, Quota

RATE = "max.connection.creation.rate"
CONNECTIONS = "max.connections"
PER_IP = "max.connections.per.ip"
OVERRIDES = "max.connections.per.ip.overrides"


class Tight(NamedTuple):
    """A limit of the broker's that the sidecar itself would run into."""

    key: str
    value: int
    advice: str


def keys(listeners: Iterable[str]) -> list[str]:
    """Return the keys to ask for. ``listeners``: names, which Kafka has in lower case in its keys."""
    prefixed = [_prefixed(listener, key) for listener in listeners for key in (RATE, CONNECTIONS)]
    return [RATE, CONNECTIONS, PER_IP, OVERRIDES, *prefixed]


def rates(configs: Mapping[str, str], listeners: Iterable[str]) -> tuple[int | None, dict[str, int]]:
    """Return the rate of all listeners (None: not limited) and those of single ones, by lower-cased name."""
    by_listener = {name.lower(): _number(configs, _prefixed(name, RATE)) for name in listeners}
    limited = {name: rate for name, rate in by_listener.items() if rate < UNLIMITED}
    rate = _number(configs, RATE)
    return (rate if rate < UNLIMITED else None), limited


def tight(configs: Mapping[str, str], sources: Collection[str], limits: Limits) -> list[Tight]:
    """Return what is lower on the broker than here, where ``limits`` is what the sidecar lets through."""
    listeners = limits.listeners.values()
    let_rate = min(_allowed(limits.rate), sum(_allowed(listener.rate) for listener in listeners))
    let_open = min(_allowed(limits.connections), sum(_allowed(listener.connections) for listener in listeners))
    own = [(RATE, _number(configs, RATE), let_rate), (CONNECTIONS, _number(configs, CONNECTIONS), let_open)]
    for name, listener in limits.listeners.items():
        for key, quota in ((RATE, listener.rate), (CONNECTIONS, listener.connections)):
            own.append((_prefixed(name, key), _number(configs, _prefixed(name, key)), _allowed(quota)))
    found = [
        Tight(key, value, f"the broker sees all clients as one, this sidecar; set quotas: {key} to {value} or less")
        for key, value, allowed in own
        if value < allowed
    ]
    per_ip = _per_ip(configs, sources)
    if per_ip < let_open:
        advice = (
            "the broker sees all clients come from one address, this sidecar's; remove it there and set it under quotas"
        )
        found.append(Tight(PER_IP, per_ip, advice))
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
