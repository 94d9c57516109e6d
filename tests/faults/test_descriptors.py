"""A sidecar without a descriptor left: nobody is turned away, whoever is there is served, and the rest follow."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from proxy.net.http import MAX_CONNECTIONS
from tests.faults.site import PATIENCE, PATIENT, Site, asks
from tests.integration.metrics import sample
from tests.tools.conformance.crowd import Plan

CLIENTS = 100
LEFT = 40


@contextmanager
def few_descriptors(site: Site) -> Iterator[None]:
    """Leave the running sidecar so many more than it uses."""
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
    """Lines of the log that say so."""
    assert site.sidecar is not None
    lines = [json.loads(line) for line in site.sidecar.log.read_text().splitlines() if line.startswith("{")]
    return sum(line["event"] == "accept_out_of_capacity" for line in lines)


def site_errors(text: str) -> Iterator[str]:
    """Names of the errnos that accepting failed with."""
    for line in text.splitlines():
        if line.startswith("brokerside_accept_errors_total{"):
            yield line.partition('error="')[2].partition('"')[0]
