"""Listeners and observers of a running sidecar change by reload: all of it or nothing, and no connection is lost."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from proxy.local.ports import HOST, free_ports
from tests.faults.site import PATIENCE, Peer, Site, asks
from tests.faults.test_reload import Log, hang_up, running_hash
from tests.frames import API_VERSIONS, request
from tests.integration.metrics import sample
from tests.tools.conformance.crowd import Plan

OBSERVER = "observers.request_metrics:RequestMetricsObserver"

REFUSES = "tests.unit.observers.fakes:RefusesSettings"


class ReloadSite(Site):
    """A sidecar whose configuration changes. ``listener``: that of ``config``."""

    @property
    def listener(self) -> dict[str, Any]:
        return dict(self.config({})["listeners"][0])

    async def reload(self, **settings: Any) -> dict[str, Any]:
        """Write other settings, and return the log line of their reload."""
        self.settings |= settings
        log = Log(self)
        self.write({})
        hang_up(self)
        return await log.next("config_")


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.slow)])
async def site(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[ReloadSite]:
    site = ReloadSite(tmp_path)
    site.settings |= {"workers": request.param, "drain.timeout.ms": 1000}
    yield site
    await site.stop()


async def refused(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(HOST, port)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


@pytest.mark.promise("restart.md", "A reload opens a new listener, and drains the connections of one that it removes.")
async def test_a_listener_comes_and_goes(site: ReloadSite) -> None:
    await site.start({})
    (port,) = free_ports(1)
    first = await site.dial()
    await asks(first)
    more = site.listener | {"name": "MORE", "bind": f"{HOST}:{port}", "advertised": site.listener["bind"]}
    done = await site.reload(listeners=[site.listener, more])
    assert (done["event"], done["changes"]) == ("config_reloaded", ["listeners[1]: nothing -> MORE"])
    second, half = await site.dial(port), await site.dial(port)
    await asks(second)
    await asks(half)
    half[1].write(request(API_VERSIONS, 0, 2)[:7])
    of_clients = {"listener": "MORE", "direction": "client_to_broker"}
    whole = len(request(API_VERSIONS, 0, 1))
    await site.until(lambda text: sample(text, "brokerside_bytes_total", **of_clients) == 2 * whole + 7)

    done = await site.reload(listeners=[site.listener])
    assert done["changes"] == ["listeners[1]: MORE -> nothing"]
    assert await refused(port)
    assert await asyncio.wait_for(second[0].read(), PATIENCE) == b"", "an idle one ends at once"
    assert await asyncio.wait_for(half[0].read(), PATIENCE) == b"", "one with half a request after drain.timeout.ms"
    for cause in ("drain_completed", "drain_timeout"):
        ended = {"listener": "MORE", "cause": cause}
        await site.until(lambda text: sample(text, "brokerside_connections_closed_total", **ended) == 1)  # noqa: B023
    await asks(first, 3)

    await site.reload(listeners=[site.listener, more])
    third = await site.dial(port)
    await asks(third)
    await site.until(lambda text: sample(text, "brokerside_requests_total", listener="MORE") == 3)


@pytest.mark.slow
@pytest.mark.promise("restart.md", "Listeners exchange their addresses by a reload without refusing a connection.")
async def test_listeners_may_change_their_addresses_among_each_other_under_load(site: ReloadSite) -> None:
    """The sockets go from one to the other open, so nobody is refused."""
    (port,) = free_ports(1)
    await site.start({})
    mine = site.listener
    other = mine | {"name": "OTHER", "bind": f"{HOST}:{port}", "advertised": mine["bind"]}
    await site.reload(listeners=[mine, other])
    crowd = await site.crowd_process(Plan(site.port, 400, rate=200, leave="answered", watch=PATIENCE))
    await asyncio.sleep(1)
    swapped = [mine | {"bind": other["bind"], "advertised": mine["bind"]}, other | {"bind": mine["bind"]}]
    assert (await site.reload(listeners=swapped))["event"] == "config_reloaded"
    visits = await site.finished(crowd)
    assert visits.refused() == []
    assert len(visits.accepted()) == 400
    await asks(await site.dial())  # on a busy machine all others may have come before
    text = await site.get("metrics")
    assert sample(text, "brokerside_connections_accepted_total", listener="OTHER") > 0


@pytest.mark.promise("restart.md", "A reload of upstream acts on new connections, and open ones stay.")
async def test_another_upstream_serves_new_connections_and_open_ones_stay(site: ReloadSite) -> None:
    await site.start({})
    first = await site.dial()
    await asks(first)
    other = Peer(site.port)
    await other.start()
    before = site.peer.requests
    await site.reload(listeners=[site.listener | {"upstream": f"{HOST}:{other.port}"}])
    second = await site.dial()
    await asks(second)
    await asks(first, 2)
    assert (site.peer.requests, other.requests) == (before + 1, 1)
    assert "ok" in await site.get("readyz"), "the new upstream is the one that is checked"
    other.close()


@pytest.mark.promise("restart.md", "A reload of which any part cannot be applied changes nothing at all.")
async def test_what_cannot_be_applied_changes_nothing_at_all(site: ReloadSite) -> None:
    site.settings |= {"observer.class.names": [OBSERVER, REFUSES], "internal.bootstrap.servers": f"{HOST}:1"}
    await site.start({})
    client = await site.dial()
    await asks(client)
    good = dict(site.settings)
    before, descriptors = await running_hash(site), site.descriptors()
    (free,) = free_ports(1)
    mine = site.listener
    more = mine | {"name": "FREE", "bind": f"{HOST}:{free}", "advertised": mine["bind"]}
    somebody = socket.create_server((HOST, 0))
    taken = more | {"name": "TAKEN", "bind": f"{HOST}:{somebody.getsockname()[1]}"}
    settings = {REFUSES: {"top": 1}, OBSERVER: {"top": 1}}
    for changes, says in (
        ({"listeners": [mine, more, taken]}, f"cannot listen on {taken['bind']}: Address already in use"),
        (
            {"listeners": [mine, more], "observers": settings},
            f"observers: observer '{REFUSES}' refused its configuration: ValueError: top is 1",
        ),
    ):
        site.settings = dict(good)
        done = await site.reload(**changes, **{"log.level": "debug"})
        assert done["event"] == "config_rejected", done
        assert says in done["errors"][0], done
        assert await refused(free), changes
        assert await running_hash(site) == before, changes
        assert json.loads(await site.get("config"))["config"]["log.level"] == "info"
        assert await site.metric("config_last_reload_successful") == 0
        await asks(client, 2)
    somebody.close()
    await site.gives_back(descriptors)


@pytest.mark.slow
@pytest.mark.promise("restart.md", "A reload of an observer's settings loses no exchange, and its counts go on.")
async def test_an_observer_with_other_settings_takes_over_and_its_counts_go_on(site: ReloadSite) -> None:
    site.settings |= {"observer.class.names": [OBSERVER], "internal.bootstrap.servers": f"{HOST}:1"}
    await site.start({})
    client = await site.dial()
    for number in range(20):
        await asks(client, number)
    done = await site.reload(observers={OBSERVER: {"top": 7}})
    assert done["changes"] == [f"observers.{OBSERVER}.top: nothing -> 7"]
    for number in range(30):
        await asks(client, number)
    text = await site.until(lambda text: sample(text, "brokerside_observer_delivered_total", observer=OBSERVER) >= 50)
    requests = sample(text, "brokerside_requests_total")
    assert sample(text, "brokerside_observer_delivered_total", observer=OBSERVER) >= requests
    assert sample(text, "brokerside_observer_dropped_total", observer=OBSERVER) == 0
