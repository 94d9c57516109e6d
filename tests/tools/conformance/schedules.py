"""The schedules of connects, and the limits they meet: the same ones for the broker and for the sidecar."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from proxy.limits.model import DEFAULT_ADDRESS, UNLIMITED
from tests.tools.conformance.crowd import Plan
from tests.tools.conformance.stage import Limits

FREE, STRANGER, STORMER, NEIGHBOUR = "127.0.0.1", "127.0.0.12", "127.0.0.13", "127.0.0.14"
"""Addresses: without a rate of its own; under the default one; under one of its own; limited in number only."""

SLOTS = 10
PER_ADDRESS = 20
DEFAULT_RATE = 2
STORMER_RATE = 20

LIMITS = Limits(
    broker={
        "listener.name.rate20.max.connection.creation.rate": 20,
        "listener.name.rate5.max.connection.creation.rate": 5,
        "listener.name.slots.max.connections": SLOTS,
        "max.connections.per.ip.overrides": f"{NEIGHBOUR}:{PER_ADDRESS}",
    },
    # What has no limit has to say so: the broker's default is for its sidecar and for kafka-configs too.
    ips={DEFAULT_ADDRESS: DEFAULT_RATE, FREE: UNLIMITED, NEIGHBOUR: UNLIMITED, STORMER: STORMER_RATE},
)

AS_KAFKA = Limits(LIMITS.broker, LIMITS.ips, {"ip.throttle.recheck": False})
"""Held connections are closed without a second look, as the broker does."""


@dataclass(frozen=True)
class Sizes:
    """``rate20``: connects against the limit of 20/s. ``storm``: connects from one address, 400 each second."""

    rate20: int
    storm: int


FULL = Sizes(rate20=300, storm=10_000)
QUICK = Sizes(rate20=240, storm=1_000)
WARM_UP = 3_000
"""Connects; a JVM compiles what it does often."""

ONE_AFTER_ANOTHER = 4_000.0
"""Connects per second, more than any limit, that keep their order and wait in the kernel for their turn."""

STORM_RATE, BYSTANDER_RATE = 400.0, 20.0
"""Connects per second."""


def warm_up(ports: Mapping[str, int]) -> dict[str, Plan]:
    """Connects before those that count, so that a JVM that has just started is not what is measured."""
    return {"warm_up": Plan(ports["CLIENT"], WARM_UP, FREE, rate=1_500, leave="answered", watch=10)}


def light(ports: Mapping[str, int], sizes: Sizes) -> dict[str, Plan]:
    """Those that do not load the machine: they overlap, but no burst falls into another one."""
    rates = Plan(0, 60, FREE, rate=ONE_AFTER_ANOTHER, leave="answered", watch=30)
    return {
        "rate20": replace(rates, port=ports["RATE20"], count=sizes.rate20, begin_after=0.5),
        "rate5": replace(rates, port=ports["RATE5"], begin_after=1.5),
        "default": default(ports),
        "slots": Plan(ports["SLOTS"], SLOTS + 1, FREE, free_after=1.5, watch=10, begin_after=3.5),
        "per_address": Plan(ports["CLIENT"], PER_ADDRESS + 1, NEIGHBOUR, ask=False, watch=1.5, begin_after=4.5),
    }


def default(ports: Mapping[str, int]) -> Plan:
    """30 at once from an address under the default rate of 2/s."""
    return Plan(ports["CLIENT"], 30, STRANGER, ask=False, watch=2.5, begin_after=2.5)


def storm(ports: Mapping[str, int], sizes: Sizes, begin_after: float = 0.0) -> dict[str, Plan]:
    """One address far above its limit, and another one that connects meanwhile."""
    storm = Plan(ports["CLIENT"], sizes.storm, STORMER, rate=STORM_RATE, watch=12, begin_after=begin_after)
    some = int(sizes.storm / STORM_RATE * BYSTANDER_RATE)
    bystander = replace(storm, count=some, source=NEIGHBOUR, rate=BYSTANDER_RATE, leave="answered")
    return {"storm": storm, "bystander": bystander}
