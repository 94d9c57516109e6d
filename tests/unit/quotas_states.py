"""States of the limits, as the quotas would report them, for what shows them."""

import math

from proxy.limits.model import UNLIMITED, AddressState, Limits, LimitState, ListenerLimits, PrincipalState, QuotasState
from tests.unit.limits.simulation import Simulation

RATE, CONNECTIONS = "connection_creation_rate", "connections"


def unlimited(*listeners: str) -> QuotasState:
    """Of a sidecar without limits, to which nobody has connected yet."""
    state = Simulation(Limits({name: ListenerLimits() for name in listeners})).state(0)
    state.queued = dict.fromkeys(listeners, 0)
    return state


def busy() -> QuotasState:
    """Of a sidecar in a storm; ``REPLICATION`` has no limits of its own, the rate of ``CLIENT`` is only tried."""
    state = unlimited("CLIENT", "REPLICATION")
    state.limits = (
        LimitState("broker", "", RATE, 200, "enforce", 187.25),
        LimitState("broker", "", CONNECTIONS, 5000, "enforce", 1234),
        LimitState("listener", "CLIENT", RATE, 100, "observe", 150.5),
        LimitState("listener", "CLIENT", CONNECTIONS, UNLIMITED, "enforce", 1200),
        LimitState("listener", "REPLICATION", RATE, UNLIMITED, "enforce", 1.5),
        LimitState("listener", "REPLICATION", CONNECTIONS, UNLIMITED, "enforce", 34),
        LimitState("ip", "", RATE, 20, "enforce", math.nan),
        LimitState("ip", "", CONNECTIONS, 500, "observe", math.nan),
        LimitState("principal", "", RATE, 10, "enforce", math.nan),
        LimitState("principal", "", CONNECTIONS, 100, "enforce", math.nan),
    )
    state.addresses = (
        AddressState("10.1.2.3", 22.9, 20, 40, 500, 7),
        AddressState("2001:db8::7", math.nan, UNLIMITED, 12, 500, 0),
    )
    state.addresses_tracked = 41
    state.addresses_connected = 57
    state.principals = (
        PrincipalState("User:alice", 10.4, 10, 100, 100),
        PrincipalState("User:bob", math.nan, UNLIMITED, 3, 20),
    )
    state.principals_tracked = 1
    state.principals_connected = 2
    state.principal_held["CLIENT"] = 4
    state.principal_held_seconds["CLIENT"] = 1.5
    state.waiting["CLIENT"] = 1
    state.queued["CLIENT"] = 213
    state.held["CLIENT"] = 7
    state.throttled = {
        ("CLIENT", "broker", RATE, "delay"): 12,
        ("CLIENT", "listener", RATE, "observe"): 800,
        ("CLIENT", "ip", RATE, "hold"): 90,
        ("CLIENT", "ip", RATE, "drop"): 60,
        ("CLIENT", "principal", RATE, "hold"): 4,
        ("CLIENT", "principal", CONNECTIONS, "drop"): 2,
    }
    state.delayed["CLIENT"] = 12
    state.delayed_seconds["CLIENT"] = 0.6
    state.held_before["CLIENT"] = 90
    state.held_seconds["CLIENT"] = 40.5
    state.blocked_seconds["CLIENT"] = 2.5
    state.admitted["CLIENT"] = 4321
    return state
