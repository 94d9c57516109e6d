"""``action: observe``: everything enters at once, and what would have been throttled is counted and reported."""

from __future__ import annotations

import pytest

from proxy.limits.model import Limits, ListenerLimits, Quota, QuotaKind, QuotaScope
from tests.unit.limits.simulation import A, Simulation, admitted

RATE = Quota(20, "observe")
FULL = Quota(200, "observe")
ONE = {"CLIENT": ListenerLimits()}

CASES: list[tuple[Limits, QuotaScope, QuotaKind, int]] = [
    (Limits(listeners=ONE, rate=RATE), "broker", "connection_creation_rate", 10),
    (Limits(listeners={"CLIENT": ListenerLimits(rate=RATE)}), "listener", "connection_creation_rate", 10),
    (Limits(listeners=ONE, ip_rates={A: RATE}), "ip", "connection_creation_rate", 10),
    (Limits(listeners=ONE, connections=FULL), "broker", "connections", 10),
    (Limits(listeners={"CLIENT": ListenerLimits(connections=FULL)}), "listener", "connections", 10),
    (Limits(listeners=ONE, ip_connections=FULL), "ip", "connections", 10),
    (Limits(listeners=ONE, ip_connections=FULL, ip_connections_overrides={A: 190}), "ip", "connections", 20),
]


@pytest.mark.promise(
    "limits-operation.md",
    "With `action: observe` a limit counts and reports what it would have throttled, and does nothing.",
)
def test_all_enter_at_once_and_what_is_too_many_is_reported() -> None:
    for limits, scope, what, count in CASES:
        simulation = Simulation(limits)
        clients = simulation.connect([0] * 210)
        simulation.run()
        assert admitted(clients) == [0] * 210, (limits, scope, what, count)
        assert simulation.quotas.throttled == {("CLIENT", scope, what, "observe"): count}, (limits, scope, what, count)
        assert len(simulation.throttles) == count, (limits, scope, what, count)
        assert simulation.quotas.total_blocked("CLIENT", 0) == 0, (limits, scope, what, count)
        assert simulation.quotas.held == [], (limits, scope, what, count)
        assert simulation.evictions == [], (limits, scope, what, count)


def test_one_quota_observes_while_another_is_enforced() -> None:
    own = ListenerLimits(rate=Quota(5))
    simulation = Simulation(Limits(listeners={"CLIENT": own}, rate=Quota(2, "observe"), samples=2))
    clients = simulation.connect([0] * 6)
    simulation.run()
    assert admitted(clients) == [0, 0, 0, 0, 0, 200]
    assert simulation.quotas.throttled == {
        ("CLIENT", "broker", "connection_creation_rate", "observe"): 4,
        ("CLIENT", "listener", "connection_creation_rate", "delay"): 1,
    }
