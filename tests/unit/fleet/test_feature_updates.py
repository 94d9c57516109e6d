"""Updates that clients ask a sidecar for, and who follows the levels, before topics that only this process knows."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import structs

from proxy.config import Config
from proxy.features import updates
from proxy.features.catalog import AUDIT_EVENT_SCHEMA, SUPPORTED
from proxy.features.controller import FeatureController
from proxy.features.records import (
    FEATURES_KEY,
    FeatureUpdate,
    FinalizedFeatures,
    SupportedRange,
    UpdateOutcome,
    UpdateProposal,
    decode,
    encode,
)
from proxy.features.topic_state import MAX_OPEN_PROPOSALS
from proxy.fleet import feature_poller
from proxy.fleet.applied_epoch import AuditLevels
from proxy.fleet.feature_poller import FeaturePoller
from proxy.fleet.feature_updates import FeatureUpdates
from proxy.fleet.membership import Member, RegistryContent
from proxy.fleet.registered_features import HOLD
from proxy.fleet.sidecar_record import SidecarRecord
from proxy.fleet.suspicion import LateSidecar, Suspicion
from proxy.fleet.topic_spec import TopicRecord
from proxy.fleet.view import OwnFeatures

REQUEST = updates.UpdateRequest(1, 20_000, (FeatureUpdate(AUDIT_EVENT_SCHEMA, 2),), principal="User:a", client_ip="::1")


class Topic:
    """The topic, and the registry, as one sidecar reads them."""

    def __init__(self) -> None:
        self.controller = FeatureController(1, "boot")
        self.updates = FeatureUpdates(1, "boot", self.controller, self.propose)
        self.proposed: list[tuple[bytes, UpdateProposal, Callable[[str | None], None]]] = []
        self.seconds = 0.0

    def propose(self, key: bytes, value: bytes, seconds: float, done: Callable[[str | None], None]) -> None:
        proposal = decode(key, value)
        self.proposed.append((key, proposal, done))
        self.seconds = seconds

    async def ask(self, request: updates.UpdateRequest = REQUEST) -> asyncio.Task[updates.UpdateResult]:
        task = asyncio.create_task(self.updates.update(request))
        await asyncio.sleep(0)
        return task

    def answer(self, code: int, message: str | None = None, **values: Any) -> None:
        key, _, _ = self.proposed[-1]
        self.controller.records([(key, encode(UpdateOutcome(code, message, **values)), 1000)], 0)
        self.updates.topic_changed()

    def finalize(self, epoch: int) -> None:
        self.controller.records([(FEATURES_KEY, encode(FinalizedFeatures(epoch, {})), 1000)], 0)

    def register(self, *sidecars: int, applied_epoch: int) -> None:
        record = SidecarRecord({}, (), None, -1, "1", applied_epoch=applied_epoch)
        members = {node_id: Member(record, alive=True) for node_id in sidecars}
        self.updates.registry_changed(RegistryContent(members, {}, {f"sidecar/{one}": 1 for one in sidecars}))


async def test_it_is_proposed_as_it_was_asked_for_and_the_outcome_is_passed_on():
    topic = Topic()
    task = await topic.ask(structs.replace(REQUEST, timeout_ms=2**31 - 1))
    topic.answer(updates.NONE)
    assert await task == updates.UpdateResult(updates.NONE)
    [(_, proposal, _)] = topic.proposed
    assert (proposal.asked_by, proposal.boot_id, proposal.updates) == (1, "boot", REQUEST.updates)
    assert (proposal.timeout_ms, proposal.api_version, proposal.validate_only) == (2**31 - 1, 1, False)
    assert (proposal.principal, proposal.client_ip) == ("User:a", "::1")
    assert topic.seconds == 20, "a longer time than the longest is cut"
    task = await topic.ask()
    topic.answer(updates.INVALID_UPDATE_VERSION, "no such feature")
    assert await task == updates.UpdateResult(updates.INVALID_UPDATE_VERSION, "no such feature")
    assert topic.updates.results == {"ok": 1, "refused": 1, "failed": 0}
    task = await topic.ask()
    topic.proposed[-1][2]("Topic authorization failed")
    assert await task == updates.UpdateResult(
        updates.FEATURE_UPDATE_FAILED,
        f"the update could not be written: Topic authorization failed{updates.MAY_BE_MADE}",
    )


async def test_it_waits_until_all_sidecars_that_ran_apply_what_this_one_has_read():
    """Not an epoch from before the topic was deleted: after 7 it ignores 5 itself."""
    for read, epoch in (((), 8), ((5,), 5), ((7, 5), 5)):
        topic = Topic()
        task = await topic.ask()
        for one in read:
            topic.finalize(one)
        topic.register(1, 2, applied_epoch=7)
        if not read:
            topic.finalize(8)
        topic.answer(updates.NONE, epoch=epoch, waits_for=(1, 2))
        topic.register(1, applied_epoch=8)
        await asyncio.sleep(0)
        assert not task.done(), read
        topic.finalize(8)
        topic.register(1, 2, applied_epoch=8)
        assert await task == updates.UpdateResult(updates.NONE), read


@pytest.mark.promise(
    "features.md", "An update that is not applied in its time is answered with code 96, and the levels have changed."
)
async def test_after_its_time_the_answer_names_who_has_not_applied_it():
    class Answering(Topic):
        """It is finalized with the proposal: the time cannot be over before."""

        def propose(self, key: bytes, value: bytes, seconds: float, done: Callable[[str | None], None]) -> None:
            super().propose(key, value, seconds, done)
            self.answer(updates.NONE, epoch=8, waits_for=tuple(range(1, 13)))

    topic = Answering()
    topic.register(*range(1, 13), applied_epoch=7)
    task = await topic.ask(updates.UpdateRequest(1, 50, REQUEST.updates))
    assert await task == updates.UpdateResult(
        updates.FEATURE_UPDATE_FAILED,
        f"{AUDIT_EVENT_SCHEMA} is finalized at epoch 8; not applied yet by "
        + ", ".join(f"sidecar {node_id}" for node_id in range(1, 11))
        + " and 2 more",
    )


@pytest.mark.promise("features.md", "An update that no controller answers fails, and says that it may still be made.")
async def test_no_controller_answers_and_one_too_many_or_without_time_is_not_proposed():
    topic = Topic()
    for timeout_ms in (0, -1, -(2**31)):
        task = await topic.ask(updates.UpdateRequest(1, timeout_ms, REQUEST.updates))
        assert (await task).message == f"timeoutMs is {timeout_ms}; an update takes longer"
    assert topic.proposed == []
    tasks = [await topic.ask() for _ in range(MAX_OPEN_PROPOSALS + 1)]
    assert len(topic.proposed) == MAX_OPEN_PROPOSALS
    assert (await tasks[-1]).message == "FEATURE_UPDATE_IN_PROGRESS: 32 updates wait at this sidecar"
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert await (await topic.ask(updates.UpdateRequest(1, 10, REQUEST.updates))) == updates.UpdateResult(
        updates.FEATURE_UPDATE_FAILED,
        "no feature controller answers; the update may still be made: brokerside features describe shows the levels",
    )


async def test_who_ends_answers_at_once():
    topic = Topic()
    proposed, finalized = await topic.ask(), await topic.ask()
    topic.register(1, applied_epoch=7)
    topic.answer(updates.NONE, epoch=8, waits_for=(1,))
    await asyncio.sleep(0)
    topic.updates.close()
    assert await asyncio.wait_for(proposed, 60) == updates.ENDED
    assert (await asyncio.wait_for(finalized, 60)).message == (
        f"{AUDIT_EVENT_SCHEMA} is finalized at epoch 8; not applied yet by sidecar 1"
    )
    assert await (await topic.ask()) == updates.ENDING
    assert len(topic.proposed) == 2


LATE = LateSidecar(2, "kafka-2", 9092, 1000)
LEVELS = {name: SupportedRange(*levels) for name, levels in SUPPORTED.items()}


class Registry:
    """``report``: what the poller wants to be called with."""

    boot_id = "own"
    features_leader: int | None = 2
    group_leaders: Sequence[int | None] = ()
    report: Callable[[RegistryContent, bool], None]

    def on_registry(self, callback: Callable[[RegistryContent, bool], None]) -> None:
        self.report = callback

    def read_registry(self, done: Callable[[], None]) -> None:
        return

    def update_features(self, features: OwnFeatures) -> None:
        return


class OwnTopic:
    """The thread of the topic of features. What is proposed is finalized at once, and sidecar 2 has to apply it."""

    def __init__(self, *args: Any) -> None:
        self._on_records: Callable[[Sequence[TopicRecord]], None] = args[3]

    def start(self) -> None:
        return

    def read_to_end(self, done: Callable[[], None]) -> None:
        done()

    def propose(self, key: bytes, value: bytes, seconds: float, done: Callable[[str | None], None]) -> None:
        records = {FEATURES_KEY: FinalizedFeatures(8, {}), key: UpdateOutcome(0, None, 8, (2,))}
        self._on_records([TopicRecord(each, encode(record), 1000) for each, record in records.items()])

    async def close(self) -> None:
        return


def content(*, registered: bool) -> RegistryContent:
    """The sidecar itself, with its own record or that of an earlier run, and the controller."""
    own = SidecarRecord({}, (), "kafka-1", 9092, "1", features=LEVELS, boot_id="own" if registered else "before")
    other = SidecarRecord({}, (), "kafka-2", 9092, "1", features=LEVELS, holds={HOLD: 4}, applied_epoch=7)
    members = {1: Member(own, alive=True), 2: Member(other, alive=True)}
    return RegistryContent(members, {}, {"sidecar/1": 1000, "sidecar/2": LATE.seen})


class Polling:
    """A poller, in the eyes of which the record of sidecar 2 is always late. ``dialled``: has one item for each dial,
    all of which are refused."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dialled = asyncio.Queue[str]()
        self.ticks = asyncio.Queue[int]()
        monkeypatch.setattr(feature_poller, "TICK_INTERVAL", 0.001)
        monkeypatch.setattr(feature_poller, "FeaturesThread", OwnTopic)
        monkeypatch.setattr(Suspicion, "late", lambda *args: [LATE])
        monkeypatch.setattr("proxy.fleet.suspicion.refuses_connections", self._refuse)
        monkeypatch.setattr(FeatureController, "tick", self._tick)
        listener = {"name": "CLIENT", "bind": "127.0.0.1:9092", "upstream": "127.0.0.1:1"}
        values = {"broker.id": 1, "internal.bootstrap.servers": "127.0.0.1:1", "listeners": [listener]}
        config = Config.model_validate(values)
        self.registry = Registry()
        self.poller = FeaturePoller(config, self.registry, lambda view: None, lambda problem: None, self._audit)

    async def _refuse(self, host: str, port: int) -> bool:
        self.dialled.put_nowait(host)
        return True

    def _tick(self, now: int) -> list[Any]:
        self.ticks.put_nowait(now)
        return []

    async def _audit(self) -> AuditLevels:
        return AuditLevels()

    async def turns(self) -> None:
        """Wait until the poller has looked at the time, and all that this has started is done."""
        while not self.ticks.empty():
            self.ticks.get_nowait()
        async with asyncio.timeout(60):
            for _ in range(3):
                await self.ticks.get()


@asynccontextmanager
async def polling(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Polling]:
    one = Polling(monkeypatch)
    one.poller.start()
    try:
        yield one
    finally:
        await one.poller.close()


async def test_nobody_is_dialled_before_the_levels_are_loaded_or_after_it_has_resigned(monkeypatch):
    async with polling(monkeypatch) as one:
        one.registry.report(content(registered=False), True)
        await one.turns()
        assert one.dialled.empty()
        one.registry.report(content(registered=True), True)
        async with asyncio.timeout(60):
            assert await one.dialled.get() == "kafka-2"
        one.poller.resign()
        await one.turns()
        while not one.dialled.empty():
            one.dialled.get_nowait()
        await one.turns()
        assert one.dialled.empty()


@pytest.mark.promise(
    "features.md", "The answer to an update names sidecars that have not applied it, and says which of them do not run."
)
async def test_an_update_names_a_suspected_sidecar_as_one_that_does_not_run(monkeypatch):
    async with polling(monkeypatch) as one:
        one.registry.report(content(registered=True), True)
        await one.turns()
        assert not one.dialled.empty()
        result = await one.poller.update(updates.UpdateRequest(1, 1, (FeatureUpdate(AUDIT_EVENT_SCHEMA, 1),)))
    assert (result.message or "").endswith("not applied yet by sidecar 2 (does not run)")
