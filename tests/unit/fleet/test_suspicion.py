"""What the registry says of other sidecars: who takes part, who is dialled, and who counts as ended when it refuses."""

import asyncio
import socket
from typing import Any

import pytest

from proxy.features.catalog import AUDIT_EVENT_SCHEMA, LevelRange
from proxy.features.records import ReaderRecord, SupportedRange
from proxy.fleet.membership import Member, ReaderMember, RegistryContent
from proxy.fleet.registered_features import HOLD, claims_of, participants_of, unapplied
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


LEVELS = {AUDIT_EVENT_SCHEMA: SupportedRange(1, 2)}


def sidecar(*, alive: bool = True, **values: Any) -> Member:
    return Member(SidecarRecord({}, (), None, -1, "1", **{"features": LEVELS, "boot_id": "b", **values}), alive)


def reader(*, alive: bool = True, durable: bool = True) -> ReaderMember:
    return ReaderMember(ReaderRecord({AUDIT_EVENT_SCHEMA: SupportedRange(1, 1)}, durable=durable), alive)


def registry_of(sidecars: dict[int, Member], readers: dict[str, ReaderMember] | None = None) -> RegistryContent:
    names = [*(f"sidecar/{one}" for one in sidecars), *(f"reader/{one}" for one in readers or {})]
    return RegistryContent(sidecars, readers or {}, {name: 1000 + n for n, name in enumerate(names)})


def test_all_sidecars_and_the_readers_that_count_take_part():
    sidecars = {1: sidecar(applied_epoch=7, sidecar_version="0.3.0"), 2: sidecar(alive=False, features={})}
    readers = {
        "gone": reader(alive=False, durable=False),
        "tables": reader(alive=False),
        "one-off": reader(durable=False),
    }
    found = participants_of(registry_of(sidecars, readers))
    assert [(one.name, one.running, one.applied_epoch) for one in found] == [
        ("sidecar/1", True, 7),
        ("sidecar/2", False, -1),
        ("reader/one-off", True, -1),
        ("reader/tables", False, -1),
    ]
    levels = {AUDIT_EVENT_SCHEMA: LevelRange(1, 2)}
    assert (found[0].release, found[0].supported, found[0].last_seen_ms) == ("0.3.0", levels, 1000)
    assert found[1].supported == {}


def test_claims_are_of_sidecars_that_run_and_keep_features():
    sidecars = {1: sidecar(), 2: sidecar(holds={HOLD: 4}), 3: sidecar(alive=False), 4: sidecar(features={})}
    assert claims_of(registry_of(sidecars), 1, "b") == {1: 0, 2: 4}
    assert claims_of(registry_of({1: sidecar(holds={HOLD: 9})}), 1, "another") == {}


@pytest.mark.promise(
    "features.md",
    "Of a sidecar that has not applied an update, the message says how many events or groups are at a higher level.",
)
def test_sidecars_that_have_not_applied_an_epoch_are_named_with_what_is_known():
    sidecars = {
        1: sidecar(applied_epoch=8),
        2: sidecar(applied_epoch=7),
        3: sidecar(applied_epoch=7, undelivered_above=12),
        4: sidecar(applied_epoch=7, alive=False),
        5: sidecar(applied_epoch=9, alive=False),
        7: sidecar(applied_epoch=10),
        8: sidecar(applied_epoch=7, groups_above=2),
    }
    assert unapplied(registry_of(sidecars), (1, 2, 3, 4, 5, 6, 7, 8), 8, 9) == [
        "sidecar 2",
        "sidecar 3 (12 events of a higher level to deliver)",
        "sidecar 4 (does not run)",
        "sidecar 6 (does not run)",
        "sidecar 7",
        "sidecar 8 (2 groups of consumers still at a higher level)",
    ]
