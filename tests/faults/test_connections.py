"""Connections opened, dropped and left silent in great numbers: counts come back to nothing, refusals are exact."""

import asyncio
import json
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from proxy.net.http import MAX_CONNECTIONS
from tests.faults.site import FULL, PATIENCE, PATIENT, Site, asks
from tests.integration.metrics import sample
from tests.tools.conformance.crowd import Plan

SCALE = 10 if FULL else 1
PER_ADDRESS = 20


@pytest.mark.promise("limits.md", "The slot of a connection that ended is free for the next one, and never for two.")
async def test_one_slot_serves_thousands_of_connections_one_after_the_other(site: Site) -> None:
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


CLIENTS = 100
LEFT = 40


@contextmanager
def few_descriptors(site: Site) -> Iterator[None]:
    limits = resource.prlimit(site.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(site.pid, resource.RLIMIT_NOFILE, (site.descriptors() + LEFT, limits[1]))
    try:
        yield
    finally:
        resource.prlimit(site.pid, resource.RLIMIT_NOFILE, limits)


@pytest.mark.promise("security.md", "Without free descriptors clients wait, and are served later.")
async def test_without_descriptors_clients_wait_and_are_served_later(site: Site) -> None:
    """D6: fds + 40, 100 clients."""
    await site.start({"max.connections": 1_000, "max.connections.per.ip": CLIENTS + 1})
    client = await site.dial()
    await asks(client)
    await site.metric("connections_active")  # the admin connection has its descriptors from now on
    loop = asyncio.get_running_loop()
    began = loop.time()
    with few_descriptors(site):
        crowd = await site.crowd_process(Plan(site.port, CLIENTS, watch=2 * PATIENCE))
        while out_of_capacity(site) < 2:  # noqa: ASYNC110  # a line of a log has no event to wait for
            await asyncio.sleep(0.05)
        await asks(client)
    passed = loop.time() - began
    visits = await site.finished(crowd)
    assert len(visits.accepted()) == CLIENTS
    assert out_of_capacity(site) <= passed + 2  # a line a second
    client[1].close()
    text = await site.quiet()
    assert set(site_errors(text)) == {"EMFILE"}
    assert sample(text, "brokerside_connections_accepted_total") == CLIENTS + 1
    assert sample(text, "brokerside_upstream_connect_failures_total") == 0


@pytest.mark.slow
@pytest.mark.promise("security.md", "Descriptors stay free for the admin endpoint and the sidecar itself.")
async def test_probes_and_clients_are_served_with_all_descriptors_taken(site: Site) -> None:
    """400 clients that say nothing, at a limit of 200 descriptors: each that was accepted reaches the broker, and the
    endpoint answers as before, although silent peers take all of its connections, too."""
    site.settings |= PATIENT
    await site.start({})
    assert site.sidecar is not None
    resource.prlimit(site.pid, resource.RLIMIT_NOFILE, (200, 200))
    crowd = await site.crowd_process(Plan(site.port, 400, ask=False, watch=PATIENCE))
    while out_of_capacity(site) < 1:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    host, _, port = site.admin.rpartition(":")
    silent = [await asyncio.open_connection(host, int(port)) for _ in range(2 * MAX_CONNECTIONS)]
    for _ in range(10):
        assert await site.get("livez") == "ok\n"
    active = await site.metric("connections_active")
    assert site.descriptors() <= 200 - MAX_CONNECTIONS
    assert active > 40
    for _, writer in silent:
        writer.close()
    visits = await site.left(crowd)
    assert not visits.refused()
    text = await site.quiet()
    assert sample(text, "brokerside_upstream_connect_failures_total") == 0
    assert sample(text, "brokerside_connections_accepted_total") == 400


def out_of_capacity(site: Site) -> int:
    assert site.sidecar is not None
    lines = [json.loads(line) for line in site.sidecar.log.read_text().splitlines() if line.startswith("{")]
    return sum(line["event"] == "accept_out_of_capacity" for line in lines)


def site_errors(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if line.startswith("brokerside_accept_errors_total{"):
            yield line.partition('error="')[2].partition('"')[0]
