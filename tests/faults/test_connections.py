"""Connections opened, dropped and left silent in great numbers: counts come back to nothing, refusals are exact."""

from __future__ import annotations

import time

import pytest

from tests.faults.site import FULL, PATIENCE, PATIENT, Site
from tests.integration.metrics import sample
from tests.tools.conformance.crowd import Plan

SCALE = 10 if FULL else 1
PER_ADDRESS = 20


@pytest.mark.promise("limits.md", "The slot of a connection that ended is free for the next one, and never for two.")
async def test_one_slot_serves_thousands_of_connections_one_after_the_other(site: Site) -> None:
    """D5: the slot of one is free for the next, and never for two."""
    await site.start({"max.connections": 1, "max.connections.per.ip": 5})
    count = 1_000 * SCALE
    visits = await site.crowd(Plan(site.port, count, in_turn=True, leave="answered", watch=PATIENCE))
    assert len(visits.accepted()) == count
    text = await site.quiet()
    assert sample(text, "brokerside_connections_admitted_total") == count
    assert sample(text, "brokerside_connections_closed_total") == count
    assert site.peer.seen == count


@pytest.mark.slow
@pytest.mark.promise("limits.md", "Every connection beyond those of an address is refused, and no other.")
async def test_of_an_address_that_has_all_its_connections_every_further_one_is_refused(site: Site) -> None:
    """D5: exactly those, each at once, and the others keep theirs."""
    site.settings |= PATIENT
    await site.start({"max.connections.per.ip": PER_ADDRESS})
    count = 1_000 * SCALE
    stay = await site.crowd_process(Plan(site.port, PER_ADDRESS, ask=False, watch=PATIENCE))
    await site.until(lambda text: sample(text, "brokerside_connections_active") == PER_ADDRESS)
    visits = await site.crowd(Plan(site.port, count, rate=2_000, watch=PATIENCE))
    assert len(visits.refused()) == count
    text = await site.get("metrics")
    dropped = {"scope": "ip", "quota": "connections", "action": "drop"}
    assert sample(text, "brokerside_connections_throttled_total", **dropped) == count
    assert sample(text, "brokerside_connections_active") == PER_ADDRESS
    assert set((await site.left(stay)).how) == {"open"}
    await site.quiet()
    assert site.peer.seen == PER_ADDRESS
    again = await site.crowd(Plan(site.port, PER_ADDRESS, watch=PATIENCE))
    assert len(again.accepted()) == PER_ADDRESS


@pytest.mark.slow
@pytest.mark.promise("limits.md", "Connections that are reset at once leave no slot, count or descriptor behind.")
async def test_connections_that_are_reset_at_once_leave_nothing_behind(site: Site) -> None:
    """D8."""
    await site.start({"max.connections": 1_000, "max.connections.per.ip": 1_000})
    before = site.descriptors()
    count = 1_000 * SCALE
    visits = await site.crowd(Plan(site.port, count, leave="connected", watch=10))
    assert visits.how == ["left"] * count
    text = await site.quiet()
    accepted = sample(text, "brokerside_connections_accepted_total")
    assert 0 < accepted <= count  # what is reset while the kernel's queue is full, nobody ever sees
    assert sample(text, "brokerside_connections_closed_total") == accepted
    assert site.peer.seen <= sample(text, "brokerside_connections_admitted_total") <= count
    await site.gives_back(before)
    await _slots_are_free(site)


@pytest.mark.slow
@pytest.mark.parametrize("recheck", [True, False])
async def test_held_connections_that_are_reset_leave_nothing_behind(site: Site, recheck: bool) -> None:
    """D8, in the one place where nobody reads a connection."""
    await site.start({"ips": {"<default>": {"connection_creation_rate": 1}}, "ip.throttle.recheck": recheck})
    before = site.descriptors()
    count = 500 * SCALE
    await site.crowd(Plan(site.port, count, leave="connected", rate=1_000, watch=10))
    await site.until(lambda text: sample(text, "brokerside_connections_accepted_total") == count)
    text = await site.quiet()
    assert sample(text, "brokerside_connections_closed_total") == count
    assert sample(text, "brokerside_connections_throttled_total", action="hold") > 0
    await site.gives_back(before)


@pytest.mark.promise("README.md", "A storm of connections costs the broker only those that the limits let through.")
@pytest.mark.slow
async def test_a_storm_costs_the_broker_what_is_let_through_and_nothing_more(site: Site) -> None:
    """S2-01: connections to the broker are counted where they arrive."""
    limit = 500
    await site.start({"listener.name.client.max.connection.creation.rate": limit, "quota.window.num": 2})
    count = 40_000 if FULL else 4_000
    plan = Plan(site.port, count, "127.0.2.1", 100, 2_000, leave="answered", patience=1, watch=1)
    visits = await site.crowd(plan)
    admitted = await site.metric("connections_admitted_total")
    passed = time.monotonic() - visits.began
    assert len(visits.accepted()) <= site.peer.seen
    assert admitted <= limit * (passed + 1) + 1
    await site.quiet()
    assert site.peer.seen == await site.metric("connections_admitted_total")


async def _slots_are_free(site: Site) -> None:
    """All of them, at the same time."""
    visits = await site.crowd(Plan(site.port, 1_000, watch=PATIENCE))
    assert len(visits.accepted()) == 1_000
