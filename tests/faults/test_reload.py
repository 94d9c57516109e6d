"""Reloads of a running sidecar by SIGHUP: good ones act and close nothing, bad ones change nothing."""

import asyncio
import json
import os
import re
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.local.ports import HOST, free_ports
from tests.faults.site import PATIENCE, PATIENT, Peer, Site, asks
from tests.frames import API_VERSIONS, request
from tests.integration.metrics import sample
from tests.tools.conformance.crowd import Plan
from tests.tools.mutations import mutations

QUOTAS = {"max.connections.per.ip": 20, "listener.name.client.max.connection.creation.rate": 5_000}
MANY_QUOTAS = {
    **QUOTAS,
    "quota.window.num": 11,
    "quota.window.size.seconds": 1,
    "max.connection.creation.rate": 5_000,
    "max.connection.creation.rate.action": "enforce",
    "max.connections": 1_000,
    "max.connections.action": "observe",
    "max.connections.per.ip.overrides": "10.0.0.7:5",
    "listener.name.client.max.connections": 1_000,
    "ips": {"<default>": {"connection_creation_rate": 500}, "10.0.0.7": {"connection_creation_rate": 5}},
    "ip.throttle.recheck": True,
    "ip.throttle.max.delayed": 500,
    "ip.store": "file",
}
MUTATIONS = 200
SIGNALS = 100
LOCATED = r" at lines? \d+(, column \d+| and \d+)?$|: a change needs a restart|^(broker.id|listeners): is missing"


class Log:
    """Events of the sidecar's log, each given out once."""

    def __init__(self, site: Site) -> None:
        assert site.sidecar is not None
        self._path = site.sidecar.log
        self._read = len(self._path.read_bytes())

    def new(self) -> list[dict[str, Any]]:
        """Whole lines since the last call."""
        whole, _, _ = self._path.read_bytes()[self._read :].rpartition(b"\n")
        self._read += len(whole) + 1 if whole else 0
        return [json.loads(line) for line in whole.splitlines()]

    async def next(self, prefix: str) -> dict[str, Any]:
        """Wait for exactly one event whose name begins so."""
        async with asyncio.timeout(PATIENCE):
            while not (found := [line for line in self.new() if line["event"].startswith(prefix)]):  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        assert len(found) == 1, found
        return found[0]


def hang_up(site: Site) -> None:
    os.kill(site.pid, signal.SIGHUP)


async def running_hash(site: Site) -> str:
    return str(json.loads(await site.get("config"))["hash"])


@pytest.mark.promise("restart.md", "A reload of a limit acts at once and closes no connection.")
@pytest.mark.promise("limits.md", "A reload applies new limits, and closes no connection that is open.")
async def test_a_changed_limit_acts_and_closes_no_connection(site: Site) -> None:
    site.settings |= PATIENT
    await site.start(QUOTAS)
    log = Log(site)
    old = await running_hash(site)
    clients = [await site.dial() for _ in range(20)]
    await site.until(lambda text: sample(text, "brokerside_connections_active") == 20)
    for limit in (25, 5):
        site.write({**QUOTAS, "max.connections.per.ip": limit})
        hang_up(site)
        done = await log.next("config_")
        assert (done["event"], done["keys"]) == ("config_reloaded", ["quotas.max.connections.per.ip"])
        room = max(0, limit - 20)
        visits = await site.crowd(Plan(site.port, room + 10, watch=PATIENCE))
        assert (len(visits.accepted()), len(visits.refused())) == (room, 10)
        await site.until(lambda text: sample(text, "brokerside_connections_active") == 20)
    for number, client in enumerate(clients):
        await asks(client, number)
    assert await running_hash(site) not in ("", old)


@pytest.mark.promise("restart.md", "A changed configuration file is read without a signal.")
async def test_a_changed_file_acts_without_a_signal(site: Site) -> None:
    await site.start(QUOTAS)
    log = Log(site)
    site.write({**QUOTAS, "max.connections.per.ip": 3})
    assert (await log.next("config_"))["reason"] == "file"
    visits = await site.crowd(Plan(site.port, 5, watch=PATIENCE))
    assert len(visits.refused()) == 2


@pytest.mark.promise("README.md", "A bad configuration changes nothing in a running sidecar.")
@pytest.mark.parametrize("count", [20, pytest.param(MUTATIONS, marks=pytest.mark.slow)])
async def test_bad_files_change_nothing_and_each_is_one_error_with_its_place(site: Site, count: int) -> None:
    await site.start(MANY_QUOTAS)
    log = Log(site)
    good = site.path.read_text()
    old = await running_hash(site)
    client = await site.dial()
    await asks(client, 0)
    for mutation in mutations(good, MUTATIONS)[:: MUTATIONS // count]:
        site.write_text(mutation.text)
        hang_up(site)
        done = await log.next("config_")
        assert done["event"] == "config_rejected", mutation.what
        assert done["file"] == str(site.path)
        assert len(done["errors"]) == 1, (mutation.what, done["errors"])
        assert re.search(LOCATED, done["errors"][0]), (mutation.what, done["errors"])
        assert await running_hash(site) == old, mutation.what
    await asks(client, 1)
    text = await site.get("metrics")
    assert sample(text, "brokerside_config_reloads_total", result="rejected") == count
    site.write_text(good)
    hang_up(site)
    assert (await log.next("config_"))["event"] == "config_unchanged"


@pytest.mark.slow
@pytest.mark.promise("restart.md", "Signals that come in hundreds are few reloads, and the last file wins.")
async def test_signals_that_come_in_hundreds_are_few_reloads_and_the_last_file_wins(site: Site) -> None:
    await site.start(QUOTAS)
    before = site.descriptors()
    for number in range(SIGNALS):
        site.write({**QUOTAS, "max.connections.per.ip": 1_000 + number})
        hang_up(site)
        await asyncio.sleep(0.005)
    last = {**QUOTAS, "max.connections.per.ip": 7}
    site.write(last)
    hang_up(site)
    async with asyncio.timeout(PATIENCE):
        while json.loads(await site.get("config"))["config"]["quotas"]["max.connections.per.ip"] != 7:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    reloads = await site.metric("config_reloads_total")
    assert 1 <= reloads <= SIGNALS + 2  # the file's watch may have asked too
    await site.gives_back(before)
    assert yaml.safe_load(site.path.read_text())["quotas"] == last


async def test_a_signal_during_a_drain_is_ignored(site: Site) -> None:
    await site.start(QUOTAS)
    log = Log(site)
    await asks(await site.dial())
    os.kill(site.pid, signal.SIGTERM)
    site.write({**QUOTAS, "max.connections.per.ip": 1})
    for _ in range(20):
        hang_up(site)
    assert site.sidecar is not None
    assert await asyncio.to_thread(site.sidecar.stop)
    assert not [line for line in log.new() if line["event"].startswith("config_")]


@pytest.mark.promise("security.md", "A configuration that is no regular file holds nothing up.")
async def test_a_fifo_in_place_of_the_file_is_a_mistake_and_holds_nothing_up(site: Site) -> None:
    """Whoever opens a FIFO waits until somebody writes to it: neither a reload nor the end of the process does."""
    await site.start(QUOTAS)
    log = Log(site)
    fifo = site.path.with_suffix(".fifo")
    os.mkfifo(fifo)
    fifo.replace(site.path)
    assert site.sidecar is not None
    os.kill(site.pid, signal.SIGHUP)
    rejected = await log.next("config_")
    got = (rejected["event"], rejected["errors"])
    assert got == ("config_rejected", ["is not a regular file (allowed: a regular file, or a link to one)"])
    client = await site.dial()
    await asks(client)
    client[1].close()
    assert await asyncio.to_thread(site.sidecar.stop)


# ---- listeners and observers: all of a reload or nothing, and no connection is lost ----------------------------------

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
async def reloading(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[ReloadSite]:
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
async def test_a_listener_comes_and_goes(reloading: ReloadSite) -> None:
    await reloading.start({})
    (port,) = free_ports(1)
    first = await reloading.dial()
    await asks(first)
    more = reloading.listener | {"name": "MORE", "bind": f"{HOST}:{port}", "advertised": reloading.listener["bind"]}
    done = await reloading.reload(listeners=[reloading.listener, more])
    assert (done["event"], done["changes"]) == ("config_reloaded", ["listeners[1]: nothing -> MORE"])
    second, half = await reloading.dial(port), await reloading.dial(port)
    await asks(second)
    await asks(half)
    half[1].write(request(API_VERSIONS, 0, 2)[:7])
    of_clients = {"listener": "MORE", "direction": "client_to_broker"}
    whole = len(request(API_VERSIONS, 0, 1))
    await reloading.until(lambda text: sample(text, "brokerside_bytes_total", **of_clients) == 2 * whole + 7)

    done = await reloading.reload(listeners=[reloading.listener])
    assert done["changes"] == ["listeners[1]: MORE -> nothing"]
    assert await refused(port)
    assert await asyncio.wait_for(second[0].read(), PATIENCE) == b"", "an idle one ends at once"
    assert await asyncio.wait_for(half[0].read(), PATIENCE) == b"", "one with half a request after drain.timeout.ms"
    for cause in ("drain_completed", "drain_timeout"):
        ended = {"listener": "MORE", "cause": cause}
        await reloading.until(lambda text: sample(text, "brokerside_connections_closed_total", **ended) == 1)  # noqa: B023
    await asks(first, 3)

    await reloading.reload(listeners=[reloading.listener, more])
    third = await reloading.dial(port)
    await asks(third)
    await reloading.until(lambda text: sample(text, "brokerside_requests_total", listener="MORE") == 3)


@pytest.mark.slow
@pytest.mark.promise("restart.md", "Listeners exchange their addresses by a reload without refusing a connection.")
async def test_listeners_may_change_their_addresses_among_each_other_under_load(reloading: ReloadSite) -> None:
    """The sockets go from one to the other open, so nobody is refused."""
    (port,) = free_ports(1)
    await reloading.start({})
    mine = reloading.listener
    other = mine | {"name": "OTHER", "bind": f"{HOST}:{port}", "advertised": mine["bind"]}
    await reloading.reload(listeners=[mine, other])
    crowd = await reloading.crowd_process(Plan(reloading.port, 400, rate=200, leave="answered", watch=PATIENCE))
    await asyncio.sleep(1)
    swapped = [mine | {"bind": other["bind"], "advertised": mine["bind"]}, other | {"bind": mine["bind"]}]
    assert (await reloading.reload(listeners=swapped))["event"] == "config_reloaded"
    visits = await reloading.finished(crowd)
    assert visits.refused() == []
    assert len(visits.accepted()) == 400
    await asks(await reloading.dial())  # on a busy machine all others may have come before
    text = await reloading.get("metrics")
    assert sample(text, "brokerside_connections_accepted_total", listener="OTHER") > 0


@pytest.mark.promise("restart.md", "A reload of upstream acts on new connections, and open ones stay.")
async def test_another_upstream_serves_new_connections_and_open_ones_stay(reloading: ReloadSite) -> None:
    await reloading.start({})
    first = await reloading.dial()
    await asks(first)
    other = Peer(reloading.port)
    await other.start()
    before = reloading.peer.requests
    await reloading.reload(listeners=[reloading.listener | {"upstream": f"{HOST}:{other.port}"}])
    second = await reloading.dial()
    await asks(second)
    await asks(first, 2)
    assert (reloading.peer.requests, other.requests) == (before + 1, 1)
    assert "ok" in await reloading.get("readyz"), "the new upstream is the one that is checked"
    other.close()


@pytest.mark.promise("restart.md", "A reload of which any part cannot be applied changes nothing at all.")
async def test_what_cannot_be_applied_changes_nothing_at_all(reloading: ReloadSite) -> None:
    reloading.settings |= {"observer.class.names": [OBSERVER, REFUSES], "internal.bootstrap.servers": f"{HOST}:1"}
    await reloading.start({})
    client = await reloading.dial()
    await asks(client)
    good = dict(reloading.settings)
    before, descriptors = await running_hash(reloading), reloading.descriptors()
    (free,) = free_ports(1)
    mine = reloading.listener
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
        reloading.settings = dict(good)
        done = await reloading.reload(**changes, **{"log.level": "debug"})
        assert done["event"] == "config_rejected", done
        assert says in done["errors"][0], done
        assert await refused(free), changes
        assert await running_hash(reloading) == before, changes
        assert json.loads(await reloading.get("config"))["config"]["log.level"] == "info"
        assert await reloading.metric("config_last_reload_successful") == 0
        await asks(client, 2)
    somebody.close()
    await reloading.gives_back(descriptors)


@pytest.mark.slow
@pytest.mark.promise("restart.md", "A reload of an observer's settings loses no exchange, and its counts go on.")
async def test_an_observer_with_other_settings_takes_over_and_its_counts_go_on(reloading: ReloadSite) -> None:
    reloading.settings |= {"observer.class.names": [OBSERVER], "internal.bootstrap.servers": f"{HOST}:1"}
    await reloading.start({})
    client = await reloading.dial()
    for number in range(20):
        await asks(client, number)
    done = await reloading.reload(observers={OBSERVER: {"top": 7}})
    assert done["changes"] == [f"observers.{OBSERVER}.top: nothing -> 7"]
    for number in range(30):
        await asks(client, number)
    text = await reloading.until(
        lambda text: sample(text, "brokerside_observer_delivered_total", observer=OBSERVER) >= 50
    )
    requests = sample(text, "brokerside_requests_total")
    assert sample(text, "brokerside_observer_delivered_total", observer=OBSERVER) >= requests
    assert sample(text, "brokerside_observer_dropped_total", observer=OBSERVER) == 0
