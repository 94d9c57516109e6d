"""Who follows the levels, before a registry and a topic that only this process knows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy.config import Config
from proxy.features.catalog import AUDIT_EVENT_SCHEMA, SUPPORTED
from proxy.features.controller import FeatureController
from proxy.features.records import (
    FEATURES_KEY,
    FeatureUpdate,
    FinalizedFeatures,
    SupportedRange,
    UpdateOutcome,
    encode,
)
from proxy.features.updates import UpdateRequest
from proxy.fleet import feature_poller
from proxy.fleet.applied_epoch import AuditLevels
from proxy.fleet.feature_poller import FeaturePoller
from proxy.fleet.membership import Member, RegistryContent
from proxy.fleet.registered_features import HOLD
from proxy.fleet.sidecar_record import SidecarRecord
from proxy.fleet.suspicion import LateSidecar, Suspicion
from proxy.fleet.topic_spec import TopicRecord
from proxy.fleet.view import OwnFeatures

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


class Topic:
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
        monkeypatch.setattr(feature_poller, "FeaturesThread", Topic)
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
        result = await one.poller.update(UpdateRequest(1, 1, (FeatureUpdate(AUDIT_EVENT_SCHEMA, 1),)))
    assert (result.message or "").endswith("not applied yet by sidecar 2 (does not run)")


async def test_a_mistake_does_not_end_the_ticks(monkeypatch):
    async with polling(monkeypatch) as one:
        with capture_logs() as logs:

            def fail(self: FeatureController, now: int) -> None:
                monkeypatch.setattr(FeatureController, "tick", one._tick)
                raise RuntimeError

            monkeypatch.setattr(FeatureController, "tick", fail)
            await one.turns()
    assert [one["event"] for one in logs] == ["features_poller_failed"]
