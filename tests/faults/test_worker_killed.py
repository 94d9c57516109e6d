"""kill -9 of one of two workers: connections of the other continue, and a second later clients notice nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from tests.faults.site import FULL, PATIENCE, Site
from tests.frames import API_VERSIONS, request, response
from tests.integration.metrics import sample
from tests.integration.peer import read_frame
from tests.integration.test_workers import workers_of
from tests.tools.conformance.crowd import Plan

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
