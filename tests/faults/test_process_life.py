"""A sidecar is killed, ended and ended again: who gets which answers, and when it is gone.

The times are those of RELIABILITY.md, C1 to C4. A busy machine gets ``BUSY`` times as long, but with FAULTS_FULL=1.
"""

import asyncio
import contextlib
import os
import signal
import time

import pytest

from proxy.local.process import Process
from proxy.local.sidecars import SidecarProcess
from tests.faults.site import FULL, PATIENCE, Site, asks, ended
from tests.faults.test_reload import Log
from tests.frames import API_VERSIONS, request, response
from tests.integration.metrics import sample
from tests.integration.peer import read_frame
from tests.integration.test_workers import workers_of
from tests.tools.conformance.crowd import Plan

BUSY = 1 if FULL else 30

FETCH = 1

CLIENTS = 50


async def rest(reader: asyncio.StreamReader) -> bytes:
    """All up to the end, be it a reset: the sidecar may not have read everything."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := await reader.read(65_536):
            received += chunk
    return received


def process_of(site: Site) -> Process:
    assert site.sidecar is not None
    return site.sidecar.process


@pytest.mark.promise("limits.md", "A killed sidecar that starts again holds to its limits from the first connection.")
async def test_a_killed_sidecar_that_starts_again_serves_its_clients_within_its_limits(site: Site) -> None:
    """C1: listening within 2 s, 50 clients back within 10 s, quotas in force from the first accept."""
    quotas = {"max.connections.per.ip": CLIENTS}
    await site.start(quotas)
    clients = [await site.dial() for _ in range(CLIENTS)]
    for number, client in enumerate(clients):
        await asks(client, number)
    os.kill(site.pid, signal.SIGKILL)
    await ended(process_of(site), PATIENCE)
    for reader, _ in clients:
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
    began = time.monotonic()
    starting = asyncio.create_task(
        asyncio.to_thread(SidecarProcess.start, site.path, site.folder / "again.log", site.admin)
    )
    while True:
        try:
            clients = [await site.dial()]
            break
        except ConnectionRefusedError:
            await asyncio.sleep(0.01)
    assert time.monotonic() - began <= 2 * BUSY
    clients += [await site.dial() for _ in range(CLIENTS - 1)]
    for number, client in enumerate(clients):
        await asks(client, number)
    assert time.monotonic() - began <= 10 * BUSY
    reader, _ = await site.dial()
    assert await asyncio.wait_for(reader.read(), PATIENCE) == b"", "one more than the limit"
    site.sidecar = await starting


@pytest.mark.promise("restart.md", "A drain accepts nobody, answers what was read, and cuts no frame.")
async def test_a_drain_answers_what_was_read_and_then_exits(site: Site) -> None:
    """C2: no accept after 50 ms, no frame is cut, exit within 12 s with code 0."""
    await site.start({})
    log = Log(site)
    clients = [await site.dial() for _ in range(20)]
    for number, (_, writer) in enumerate(clients):
        writer.write(b"".join(request(API_VERSIONS, 0, number * 100 + one) for one in range(50)))
    await asyncio.sleep(0.05)
    os.kill(site.pid, signal.SIGTERM)
    began = time.monotonic()
    received = await asyncio.gather(*(rest(reader) for reader, _ in clients))
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await site.dial()
            except ConnectionRefusedError:
                break
    assert time.monotonic() - began <= 0.05 * BUSY + 12
    for number, data in enumerate(received):
        whole = b"".join(response(number * 100 + one) for one in range(50))
        assert len(data) % len(response(0)) == 0, "a frame was cut"
        assert whole.startswith(data)
    await ended(process_of(site), 11 + BUSY)
    events = [line["event"] for line in log.new()]
    assert events[-1] == "stopped", events
    assert "exit_forced" not in events


@pytest.mark.slow
@pytest.mark.promise("restart.md", "A drain ends after drain.timeout.ms though a fetch still waits.")
async def test_a_drain_with_a_waiting_fetch_ends_after_its_time(site: Site) -> None:
    """C4, with a drain of 1 s."""
    site.settings["drain.timeout.ms"] = 1_000
    await site.start({})
    log = Log(site)
    site.peer.unanswered.add(FETCH.to_bytes(2, "big"))
    client, idle = await site.dial(), await site.dial()
    await asks(client, 1)
    await asks(idle, 1)
    client[1].write(request(FETCH, 4, 2))
    await site.until(lambda text: "Fetch" in text)
    began = time.monotonic()
    os.kill(site.pid, signal.SIGTERM)
    assert await asyncio.wait_for(idle[0].read(), PATIENCE) == b""
    await ended(process_of(site), 1 + 2 * BUSY)
    assert time.monotonic() - began >= 0.9
    lines = {line["event"]: line for line in log.new()}
    assert lines["drained"]["cut"] == 1
    assert lines["stopped"]


@pytest.mark.promise("restart.md", "A second SIGTERM ends a drain at once.")
async def test_a_second_signal_ends_a_drain_at_once(site: Site) -> None:
    site.settings["drain.timeout.ms"] = 600_000
    await site.start({})
    site.peer.unanswered.add(FETCH.to_bytes(2, "big"))
    client = await site.dial()
    await asks(client, 1)
    client[1].write(request(FETCH, 4, 2))
    await site.until(lambda text: "Fetch" in text)
    log = Log(site)
    began = time.monotonic()
    for _ in range(3):  # within a tenth of a second they are one, as of a shell and its terminal
        os.kill(site.pid, signal.SIGTERM)
    were_one = time.monotonic() - began < 0.05  # and not sent by a test that was paused meanwhile
    await log.next("draining")
    await asyncio.sleep(0.2)
    assert not were_one or process_of(site).alive()
    os.kill(site.pid, signal.SIGTERM)
    await ended(process_of(site), 1 * BUSY)


NOTICED = 1 if FULL else 3
"""Seconds until the others serve all; a busy machine gets more."""


async def works(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> bool:
    try:
        writer.write(request(API_VERSIONS, 0, number))
        return await asyncio.wait_for(read_frame(reader), PATIENCE) == response(number)
    except (OSError, EOFError):
        return False


@pytest.mark.promise("README.md", "A killed worker takes only its own connections with it.")
async def test_a_killed_worker_takes_its_own_connections_alone_and_new_ones_are_served_within_a_second(
    site: Site,
) -> None:
    site.settings["workers"] = 2
    await site.start({})
    assert site.sidecar is not None
    clients = [await site.dial() for _ in range(10)]
    assert all([await works(*client, 1) for client in clients])
    crowd = await site.crowd_process(Plan(site.port, 1_000, rate=200, leave="answered", watch=PATIENCE))
    await site.until(lambda text: sample(text, "brokerside_connections_accepted_total") > 60)
    killed = time.monotonic()
    os.kill(workers_of(site.sidecar)[0], signal.SIGKILL)
    visits = await site.finished(crowd)

    assert sum([await works(*client, 2) for client in clients]) == 5
    late = [number for number, at in enumerate(visits.dialled) if visits.began + at > killed + NOTICED]
    assert len(late) > 20
    assert [number for number in late if number in visits.refused() or visits.answered[number] < 0] == []
    await site.until(lambda text: sample(text, "brokerside_worker_restarts_total") == 1)
    assert len(workers_of(site.sidecar)) == 2
