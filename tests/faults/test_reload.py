"""Reloads of a running sidecar by SIGHUP: good ones act and close nothing, bad ones change nothing."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from typing import Any

import pytest
import yaml

from tests.faults.site import PATIENCE, PATIENT, Site, asks
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
