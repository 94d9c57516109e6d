"""A successor takes over from a running sidecar: no connection is refused, limits continue; failures change nothing."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from proxy import admin_client
from proxy.config import Endpoint
from proxy.local import process
from proxy.local.ports import HOST, free_ports
from proxy.local.process import Process
from tests.faults.site import PATIENCE, Peer, Site, asks, ended
from tests.frames import API_VERSIONS, request, response
from tests.integration.peer import read_frame
from tests.tools.conformance.crowd import Plan

CONNECTS = 200
"""Connects per second while the sidecar is replaced."""


class Successor:
    """A sidecar that takes over. ``settings``: what differs in its configuration."""

    def __init__(self, site: Site, **settings: Any) -> None:
        self.log = site.folder / f"successor-{len(list(site.folder.glob('successor-*.log')))}.log"
        config = self.log.with_suffix(".yaml")
        config.write_text(json.dumps(site.config(site.quotas) | settings))
        command = [sys.executable, "-m", "proxy", "run", "--takeover", "-c", str(config)]
        self.process = process.spawn(command, self.log)

    def events(self) -> list[dict[str, Any]]:
        """What it has logged, and ``text`` for lines that are no events."""
        lines = self.log.read_text().splitlines()
        return [json.loads(line) if line.startswith("{") else {"event": "text", "text": line} for line in lines]

    def said(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.events() if line["event"] == event]

    async def runs(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while not self.said("started"):
                assert self.process.alive(), self.log.read_text()
                await asyncio.sleep(0.02)

    async def fails(self) -> str:
        """Wait until it has exited, and return what it has said last."""
        await ended(self.process)
        assert not self.said("started")
        return self.log.read_text().splitlines()[-1]


class TakeoverSite(Site):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.quotas: Mapping[str, Any] = {}
        self.settings |= {"takeover.socket.path": str(folder / "takeover.sock"), "drain.timeout.ms": 1500}
        self.successors: list[Successor] = []

    async def start(self, quotas: Mapping[str, Any]) -> None:
        self.quotas = quotas
        await super().start(quotas)

    def succeed(self, **settings: Any) -> Successor:
        self.successors.append(Successor(self, **settings))
        return self.successors[-1]

    async def stop(self) -> None:
        await asyncio.to_thread(process.stop, [one.process for one in self.successors], 15)
        await super().stop()

    @property
    def predecessor(self) -> Process:
        assert self.sidecar is not None
        return self.sidecar.process

    async def open_connections(self) -> float:
        """What counts in the limit of all connections."""
        host, _, port = self.admin.rpartition(":")
        found = await asyncio.to_thread(admin_client.get_quotas, Endpoint(host, int(port)))
        return next(one.used for one in found.limits if (one.scope, one.quota) == ("broker", "connections"))


@pytest.fixture
async def site(tmp_path: Path):
    site = TakeoverSite(tmp_path)
    yield site
    await site.stop()


@pytest.mark.promise("README.md", "A successor takes over from a running sidecar without refusing a connection.")
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_no_connection_is_refused_while_a_successor_takes_over(site: TakeoverSite, workers: int) -> None:
    site.settings["workers"] = workers
    await site.start({})
    crowd = await site.crowd_process(Plan(site.port, 5 * CONNECTS, rate=CONNECTS, leave="answered", watch=PATIENCE))
    await asyncio.sleep(1)
    successor = site.succeed()
    await successor.runs()
    await ended(site.predecessor)
    visits = await site.finished(crowd)

    assert visits.refused() == []
    assert len(visits.accepted()) == 5 * CONNECTS
    assert [line["sockets"] for line in successor.said("took_over")] == [["CLIENT", "admin"]]
    await asks(await site.dial())  # on a busy machine all others may have come before
    assert await site.metric("connections_accepted_total") > 0, "the successor answers at the admin endpoint"
    assert "ok" in await site.get("readyz")


@pytest.mark.promise("restart.md", "Rate limits go on in the successor exactly where the predecessor was.")
@pytest.mark.slow
async def test_a_rate_limit_goes_on_exactly_where_the_predecessor_was(site: TakeoverSite) -> None:
    """A window of 11 s with 20/s lets 200 in; a fresh process would let as many in again."""
    await site.start({"listener.name.client.max.connection.creation.rate": 20})
    first = await site.crowd(Plan(site.port, 150, leave="answered", watch=PATIENCE))
    assert len(first.accepted()) == 150
    crowd = await site.crowd_process(Plan(site.port, 400, leave="never", watch=12))
    successor = site.succeed()
    await successor.runs()
    visits = await site.finished(crowd)

    assert visits.refused() == []
    answered = [first.began + at for at in first.answered]
    answered += [visits.began + at for at in visits.answered if at >= 0]
    early = sum(at < min(answered) + 10 for at in answered)
    assert 200 <= early <= 240, "as many as without a change of the process; with a fresh window 350"


@pytest.mark.promise("restart.md", "Connections of a predecessor count in limits until they end.")
async def test_connections_of_the_predecessor_count_until_they_end(site: TakeoverSite) -> None:
    site.settings["drain.timeout.ms"] = 20_000  # none of them is cut before the test has looked
    await site.start({"max.connections": 10})
    clients = [await site.dial() for _ in range(10)]
    for number, client in enumerate(clients):
        await asks(client, number)
        client[1].write(request(API_VERSIONS, 0, 100 + number)[:6])  # a request that is incomplete keeps it open
    await asyncio.sleep(0.2)
    successor = site.succeed()
    await successor.runs()
    assert await site.open_connections() == 10
    assert await site.metric("predecessor_connections") == 10
    waiting = await site.dial()
    waiting[1].write(request(API_VERSIONS, 0, 7))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(read_frame(waiting[0]), 0.5)

    clients[0][1].close()
    assert await asyncio.wait_for(read_frame(waiting[0]), PATIENCE) == response(7)
    for _, writer in clients:
        writer.close()
    await ended(site.predecessor)
    async with asyncio.timeout(PATIENCE):
        while await site.open_connections() > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        while not successor.said("predecessor_ended"):  # noqa: ASYNC110  # a log has no event, and is written last
            await asyncio.sleep(0.02)


@pytest.mark.promise("restart.md", "Clients that wait for a limit wait in the successor, and are served there.")
async def test_clients_that_wait_for_a_limit_wait_in_the_successor(site: TakeoverSite) -> None:
    await site.start({"max.connections": 1})
    held, waiting = await site.dial(), await site.dial()
    await asks(held)
    waiting[1].write(request(API_VERSIONS, 0, 7))
    await site.until(lambda text: "brokerside_connections_waiting" in text and 'waiting{listener="CLIENT"} 1' in text)
    await site.succeed().runs()
    assert await asyncio.wait_for(read_frame(waiting[0]), PATIENCE) == response(7)


@pytest.mark.slow
@pytest.mark.promise("restart.md", "A successor that fails before it accepts changes nothing: the old sidecar goes on.")
async def test_a_successor_that_fails_changes_nothing(site: TakeoverSite) -> None:
    await site.start({})
    taken = Peer(1)
    await taken.start()
    listener = site.config({})["listeners"][0]
    more = {"name": "OTHER", "bind": f"{HOST}:{taken.port}", "upstream": listener["upstream"]}
    client = await site.dial()
    pid = site.pid
    for settings, says in (
        ({"broker.id": 2}, "broker.id is 1 here, and 2 in the successor"),
        ({"listeners": [listener, more]}, "Address already in use"),
        ({"observer.class.names": ["no.such:Thing"], "internal.bootstrap.servers": "127.0.0.1:1"}, "no.such"),
    ):
        said = await site.succeed(**settings).fails()
        assert says in said, said
        await asks(client)
        await asks(await site.dial(), 3)
        assert "ok" in await site.get("readyz")
        assert (site.predecessor.alive(), site.pid) == (True, pid)
    taken.close()
    await site.succeed().runs()


@pytest.mark.slow
async def test_without_a_sidecar_a_successor_starts_as_any_other_and_its_own_may_have_other_listeners(
    site: TakeoverSite,
) -> None:
    await site.peer.start()
    first = site.succeed()
    await first.runs()
    assert first.said("no_predecessor")
    await asks(await site.dial())
    (port,) = free_ports(1)
    listener = site.config({})["listeners"][0]
    more = listener | {"name": "MORE", "bind": f"{HOST}:{port}", "advertised": listener["bind"]}
    await site.succeed(listeners=[listener | {"name": "RENAMED"}, more]).runs()
    for where in (site.port, port):
        await asks(await site.dial(where))


@pytest.mark.slow
@pytest.mark.promise("security.md", "The socket of takeover.socket.path has mode 0600, and none is left at the end.")
async def test_sidecars_take_over_one_after_the_other_and_leave_no_socket(site: TakeoverSite) -> None:
    await site.start({})
    path = site.settings["takeover.socket.path"]
    assert os.stat(path).st_mode & 0o777 == 0o600
    before = site.predecessor
    for _ in range(2):
        successor = site.succeed()
        await successor.runs()
        await ended(before)
        assert os.stat(path).st_mode & 0o777 == 0o600
        before = successor.process
        await asks(await site.dial())
    assert await asyncio.to_thread(process.stop, [before], 15)
    assert [name for name in os.listdir(site.folder) if name.startswith("takeover.sock")] == []


def running(config: Path) -> dict[int, list[str]]:
    """Return the processes, but for workers, that run a sidecar with this configuration or DETACH, which starts one.

    By process id, each with its command. A process that was just forked has that of its parent.
    """
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_text().split("\0")
            if str(config) in words:
                found[int(path.parent.name)] = words
    return found


async def own_successor(config: Path) -> int:
    """Wait for the successor that the sidecar starts, and return its process id."""
    async with asyncio.timeout(PATIENCE):
        while True:
            for pid, words in running(config).items():
                if "--takeover" in words and "-S" not in words:
                    return pid
            await asyncio.sleep(0.01)


@pytest.mark.promise("restart.md", "A stop before the successor accepts leaves no sidecar.")
@pytest.mark.slow
@pytest.mark.parametrize("passed", [False, True])
async def test_a_stop_soon_after_sigusr2_leaves_no_sidecar(site: TakeoverSite, passed: bool) -> None:
    """``passed``: once the successor has got the sockets. It waits for a broker that does not answer."""
    await site.start({})
    assert site.sidecar is not None
    log = site.sidecar.log
    site.peer.close()
    os.kill(site.pid, signal.SIGUSR2)
    await own_successor(site.path)
    async with asyncio.timeout(PATIENCE):
        while passed and "takeover_requested" not in log.read_text():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    os.kill(site.pid, signal.SIGTERM)
    reasons: list[str] = []
    try:
        async with asyncio.timeout(PATIENCE):
            while running(site.path) or not reasons:
                await asyncio.sleep(0.01)
                reasons = [line for line in log.read_text().splitlines() if line.startswith("brokerside: ")]
    finally:
        for pid in running(site.path):
            os.kill(pid, signal.SIGKILL)
    assert "took_over" not in log.read_text()
    [reason] = reasons
    assert ("the sidecar drains" in reason) or ("has ended" in reason and not passed)
