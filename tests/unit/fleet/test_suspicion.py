"""Which sidecars are dialled, and which count as ended when they refuse."""

import asyncio
import socket
from typing import Any

import pytest

from proxy.features.records import SupportedRange
from proxy.fleet.membership import Member, RegistryContent
from proxy.fleet.registered_features import HOLD
from proxy.fleet.sidecar_record import SidecarRecord
from proxy.fleet.suspicion import RECORD_LATE_AFTER_MS, Dialler, LateSidecar, Suspicion, refuses_connections

SEEN, NEWER = 5_000_000, 5_001_000
"""Times of records, by the broker's clock."""

START = 1_000
FEATURES = {"brokerside.quota.ip": SupportedRange(1, 1)}

LATE = START + RECORD_LATE_AFTER_MS
"""By the clock of the sidecar that reads."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a refusal may come late."""
    monkeypatch.setattr("proxy.fleet.suspicion.DIAL_TIMEOUT", 60.0)


def member(*, alive: bool = True, **values: Any) -> Member:
    holder = {"host": "kafka-2", "port": 9092, "features": FEATURES, "holds": {HOLD: 4}}
    return Member(SidecarRecord({}, (), timestamp="1", **{**holder, **values}), alive)


def content(other: Member, seen: int = SEEN, own: int = NEWER) -> RegistryContent:
    """Sidecar 1, and another one, the last record of which is from ``seen``."""
    return RegistryContent({1: member(holds={}), 2: other}, {}, {"sidecar/1": own, "sidecar/2": seen})


def waiting(other: Member, own: int = 1) -> tuple[Suspicion, RegistryContent]:
    """A sidecar that has read a record of another one at ``START``, and only its own since, at ``LATE``."""
    suspicion = Suspicion(own, "features")
    suspicion.read(content(other, own=SEEN), START)
    suspicion.read(now := content(other), LATE)
    return suspicion, now


@pytest.mark.promise(
    "features.md", "When the record of the controller is half a second late, the other sidecars dial it."
)
def test_the_holder_of_the_features_is_dialled_when_its_record_is_late():
    suspicion, now = waiting(member())
    assert suspicion.late(now, LATE - 1) == []
    assert suspicion.late(now, LATE) == [LateSidecar(2, "kafka-2", 9092, SEEN)]
    assert suspicion.late(now, LATE + RECORD_LATE_AFTER_MS - 1) != []
    assert suspicion.late(now, LATE + RECORD_LATE_AFTER_MS) == [], "the cluster is away, or this sidecar was paused"
    for why, other, own in (
        ("holds nothing", member(holds={}), 1),
        ("holds something else", member(holds={"x": 1}), 1),
        ("has no features", member(features={}), 1),
        ("known to have ended", member(alive=False), 1),
        ("no address", member(host=None, port=-1), 1),
        ("itself", member(), 2),
    ):
        suspicion, now = waiting(other, own)
        assert suspicion.late(now, LATE) == [], why


def test_one_that_refuses_has_ended_until_a_newer_record_of_it_is_read():
    suspicion, before = waiting(member())
    assert suspicion.judge(before) is before
    [late] = suspicion.late(before, LATE)
    suspicion.refused(late)
    assert [one.alive for one in suspicion.judge(before).sidecars.values()] == [True, False]
    assert suspicion.judge(before).sidecars[2].record == before.sidecars[2].record
    assert suspicion.late(before, LATE) == []
    back = content(member(), seen=NEWER)
    suspicion.read(back, LATE)
    assert suspicion.judge(back) is back
    suspicion.read(again := content(member(), seen=NEWER, own=NEWER + 1), LATE + RECORD_LATE_AFTER_MS)
    assert suspicion.late(again, LATE + RECORD_LATE_AFTER_MS) != [], "it can be suspected again"


async def test_a_port_without_a_listener_refuses():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        assert await refuses_connections("127.0.0.1", port)
        for host in ("no-such-host.invalid", "a" * 300, "[::"):
            assert not await refuses_connections(host, port), host
        bound.listen(1)
        assert not await refuses_connections("127.0.0.1", port)


@pytest.mark.promise(
    "features.md", "A process that is paused does not refuse connections, and is not suspected for that."
)
async def test_a_process_that_is_paused_does_not_refuse(monkeypatch: pytest.MonkeyPatch):
    """Its kernel accepts connections, or drops them when the queue is full."""
    monkeypatch.setattr("proxy.fleet.suspicion.DIAL_TIMEOUT", 0.2)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        waiting = []
        for _ in range(8):
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(("127.0.0.1", port))
        await asyncio.sleep(0)
        assert not await refuses_connections("127.0.0.1", port)
        for one in waiting:
            one.close()


async def test_a_slow_name_delays_no_other_and_is_asked_for_once(monkeypatch: pytest.MonkeyPatch):
    asked, refused = [], asyncio.Queue[LateSidecar]()

    async def resolve(host: str) -> list[str]:
        asked.append(host)
        if host == "slow":
            await asyncio.Event().wait()
        return ["127.0.0.1"]

    monkeypatch.setattr("proxy.fleet.suspicion.resolve_host", resolve)
    dialler = Dialler(refused.put_nowait)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        killed = LateSidecar(3, "killed", bound.getsockname()[1], SEEN)
        slow = killed._replace(node_id=2, host="slow")
        for _ in range(3):
            dialler.dial(slow)
            dialler.dial(killed)
            async with asyncio.timeout(60):
                assert await refused.get() == killed
            await asyncio.sleep(0)
    assert asked.count("slow") == 1
    await dialler.close()
    assert refused.empty()
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
