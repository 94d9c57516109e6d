"""Observers that raise, exit, hang, hoard and vandalise: clients get what the broker sent, byte by byte, and every
exchange is accounted for."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from observers.observer_thread import MAX_QUEUED_WEIGHT
from tests.faults.site import FULL, PATIENCE, Site
from tests.frames import API_VERSIONS, METADATA, batch, produce, produced, request, response
from tests.integration.metrics import sample
from tests.integration.peer import read_frame

SCALE = 10 if FULL else 1
CLIENTS = 4
IN_FLIGHT = 50
HARMFUL = "tests.faults.harmful"
NOBODY = "127.0.0.1:1"

Traffic = Sequence[tuple[bytes, bytes]]
"""Requests of one connection, each with its response."""


class Observed(Site):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.observers: Sequence[str] = ()
        self.patience_ms = 10_000

    def config(self, quotas: Any) -> dict[str, Any]:
        more = {
            "observer.class.names": [f"{HARMFUL}:{name}" for name in self.observers],
            "observer.shutdown.timeout.ms": self.patience_ms,
            "internal.bootstrap.servers": NOBODY,
        }
        return {**super().config(quotas), **more}

    async def run(self, *observers: str) -> None:
        self.observers = observers
        await self.start({})

    async def carry(self, traffic: Traffic, clients: int = CLIENTS) -> int:
        """Have each of some clients do all of it; what passes is what was sent. Returns how many exchanges it was."""
        self.peer.answers = {asked[8:12]: answer for asked, answer in traffic}
        await asyncio.wait_for(asyncio.gather(*(self._client(traffic) for _ in range(clients))), 2 * PATIENCE)
        sent = hashlib.sha256(b"".join(asked for asked, _ in traffic)).hexdigest()
        assert [digest.hexdigest() for digest in self.peer.digests].count(sent) == clients
        return clients * len(traffic)

    async def _client(self, traffic: Traffic) -> None:
        reader, writer = await self.dial()
        window = asyncio.Semaphore(IN_FLIGHT)

        async def ask() -> None:
            for asked, _ in traffic:
                await window.acquire()
                writer.write(asked)
                await writer.drain()

        asking = asyncio.create_task(ask())
        expected, received = hashlib.sha256(), hashlib.sha256()
        for _, answer in traffic:
            expected.update(answer)
            received.update(await read_frame(reader))
            window.release()
        await asking
        assert received.hexdigest() == expected.hexdigest()
        writer.close()

    async def accounted(self, count: int, stuck: Sequence[str] = ()) -> dict[str, dict[str, float]]:
        """Wait until each observer but ``stuck`` has nothing in its queue; return what became of the exchanges by
        observer, which are ``count`` in sum."""

        def numbers(text: str, name: str) -> dict[str, float]:
            kinds = ("delivered_total", "dropped_total", "failed_total", "queued")
            return {kind: sample(text, f"brokerside_observer_{kind}", observer=f"{HARMFUL}:{name}") for kind in kinds}

        def settled(text: str) -> bool:
            found = {name: numbers(text, name) for name in self.observers}
            waiting = [one for one, its in found.items() if its["queued"] and one not in stuck]
            return not waiting and all(sum(its.values()) == count for its in found.values())

        text = await self.until(settled)
        return {name: numbers(text, name) for name in self.observers}

    async def ends(self) -> list[dict[str, Any]]:
        """End the sidecar by SIGTERM, which must be enough; return the lines of its log."""
        assert self.sidecar is not None
        assert self.sidecar.process.alive()
        assert await asyncio.to_thread(self.sidecar.stop)
        lines = self.sidecar.log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Observed]:
    site = Observed(tmp_path)
    yield site
    await site.stop()


def mixed(count: int, size: int = 100) -> list[tuple[bytes, bytes]]:
    """Requests of several kinds, one of no Kafka, and their responses."""
    traffic = []
    for number in range(count):
        match number % 4:
            case 0:
                traffic.append((produce(number, 1, batch(3, bytes(size))), produced(number)))
            case 1:
                traffic.append((request(METADATA, 1, number, bytes(4)), response(number, bytes(8))))
            case 2:
                traffic.append((request(API_VERSIONS, 0, number), response(number, bytes(6))))
            case _:
                traffic.append((request(20_000, 7, number, b"private"), response(number, b"answer")))
    return traffic


@pytest.mark.promise("README.md", "An observer that raises changes nothing for clients and other observers.")
@pytest.mark.slow
async def test_an_observer_that_raises_in_each_call_changes_nothing_for_the_others(site: Observed) -> None:
    """F1, F4: whatever it raises, SystemExit and an empty stack included. F6: VandalReader finds nothing to change."""
    await site.run("Raiser", "VandalReader", "Witness")
    count = await site.carry(mixed(300 * SCALE))
    numbers = await site.accounted(count)
    raiser = numbers["Raiser"]
    assert raiser["delivered_total"] == 0
    assert raiser["dropped_total"] + raiser["failed_total"] == count
    errors = await site.metric("observer_errors_total", observer=f"{HARMFUL}:Raiser")
    assert 100 <= errors < 120  # then the breaker; one more in ten seconds
    assert await site.metric("observer_breaker_open", observer=f"{HARMFUL}:Raiser") == 1
    for name in ("VandalReader", "Witness"):
        assert numbers[name]["delivered_total"] == count
    lines = await site.ends()
    assert any(line["event"] == "observer_failed" for line in lines)
    assert not [line for line in lines if line["event"] == "observer_abandoned"]


@pytest.mark.promise("README.md", "An observer that never returns costs clients and others nothing.")
@pytest.mark.parametrize("stuck", [("Sleeper",), pytest.param(("Sleeper", "Burner"), marks=pytest.mark.slow)])
async def test_observers_that_never_return_lose_their_own_and_are_left_behind(
    site: Observed, stuck: tuple[str, ...]
) -> None:
    """F2: what does not fit into their queues is counted, and the end of the sidecar does not wait for them."""
    site.patience_ms = 1_500
    await site.run(*stuck, "Witness")
    many = MAX_QUEUED_WEIGHT // 10 * SCALE  # of weight 3, by each of four clients
    count = await site.carry([(produce(n, 1, batch(1)), produced(n)) for n in range(many)])
    numbers = await site.accounted(count, stuck)
    for name in stuck:
        full = await site.metric("observer_dropped_total", observer=f"{HARMFUL}:{name}", reason="queue_full")
        assert (numbers[name]["delivered_total"], full) == (0, numbers[name]["dropped_total"])
        assert full > 0
    assert numbers["Witness"] == {"delivered_total": count, "dropped_total": 0, "failed_total": 0, "queued": 0}
    lines = await site.ends()
    left = [line["observer"] for line in lines if line["event"] == "observer_abandoned"]
    assert {f"{HARMFUL}:{name}" for name in stuck} <= set(left)
    assert lines[-1]["event"] == "stopped"


@pytest.mark.slow
@pytest.mark.promise("observers.md", "An observer may keep the bytes it gets: it never holds a buffer of the network.")
async def test_an_observer_that_keeps_or_spoils_what_it_gets_does_so_for_observers_alone(site: Observed) -> None:
    """F3: views of bodies that it holds on to hold no buffer that is read or written into. F6: exchanges are shared by
    observers and may be changed, but none of them travels. Every thread works on."""
    await site.run("Hoarder", "Vandal", "Witness")
    count = await site.carry(mixed(40 * SCALE, 50_000))
    await site.accounted(count)
    numbers = await site.accounted(count + await site.carry(mixed(40)))
    assert numbers["Witness"]["dropped_total"] == numbers["Hoarder"]["dropped_total"] == 0
    assert await site.metric("sessions_abandoned_total") == 0
    await site.ends()
