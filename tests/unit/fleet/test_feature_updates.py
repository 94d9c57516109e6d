"""Updates that clients ask a sidecar for: what is proposed, what they wait for, and what they get for an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from proxy.features.catalog import AUDIT_EVENT_SCHEMA
from proxy.features.controller import FeatureController
from proxy.features.records import (
    FEATURES_KEY,
    FeatureUpdate,
    FinalizedFeatures,
    UpdateOutcome,
    UpdateProposal,
    decode,
    encode,
)
from proxy.features.topic_state import MAX_OPEN_PROPOSALS
from proxy.features.updates import (
    ENDED,
    ENDING,
    FEATURE_UPDATE_FAILED,
    INVALID_UPDATE_VERSION,
    MAY_BE_MADE,
    NONE,
    UpdateRequest,
    UpdateResult,
)
from proxy.fleet.feature_updates import FeatureUpdates
from proxy.fleet.membership import Member, RegistryContent
from proxy.fleet.sidecar_record import SidecarRecord

REQUEST = UpdateRequest(1, 20_000, (FeatureUpdate(AUDIT_EVENT_SCHEMA, 2),), principal="User:a", client_ip="::1")


class Topic:
    """The topic, and the registry, as one sidecar reads them."""

    def __init__(self) -> None:
        self.controller = FeatureController(1, "boot")
        self.updates = FeatureUpdates(1, "boot", self.controller, self.propose)
        self.proposed: list[tuple[bytes, UpdateProposal, Callable[[str | None], None]]] = []
        self.seconds = 0.0

    def propose(self, key: bytes, value: bytes, seconds: float, done: Callable[[str | None], None]) -> None:
        proposal = decode(key, value)
        assert isinstance(proposal, UpdateProposal)
        self.proposed.append((key, proposal, done))
        self.seconds = seconds

    async def ask(self, request: UpdateRequest = REQUEST) -> asyncio.Task[UpdateResult]:
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
    topic.answer(NONE)
    assert await task == UpdateResult(NONE)
    [(_, proposal, _)] = topic.proposed
    assert (proposal.asked_by, proposal.boot_id, proposal.updates) == (1, "boot", REQUEST.updates)
    assert (proposal.timeout_ms, proposal.api_version, proposal.validate_only) == (2**31 - 1, 1, False)
    assert (proposal.principal, proposal.client_ip) == ("User:a", "::1")
    assert topic.seconds == 20, "a longer time than the longest is cut"
    task = await topic.ask()
    topic.answer(INVALID_UPDATE_VERSION, "no such feature")
    assert await task == UpdateResult(INVALID_UPDATE_VERSION, "no such feature")
    assert topic.updates.results == {"ok": 1, "refused": 1, "failed": 0}
    task = await topic.ask()
    topic.proposed[-1][2]("Topic authorization failed")
    assert await task == UpdateResult(
        FEATURE_UPDATE_FAILED, f"the update could not be written: Topic authorization failed{MAY_BE_MADE}"
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
        topic.answer(NONE, epoch=epoch, waits_for=(1, 2))
        topic.register(1, applied_epoch=8)
        await asyncio.sleep(0)
        assert not task.done(), read
        topic.finalize(8)
        topic.register(1, 2, applied_epoch=8)
        assert await task == UpdateResult(NONE), read


@pytest.mark.promise(
    "features.md", "An update that is not applied in its time is answered with code 96, and the levels have changed."
)
async def test_after_its_time_the_answer_names_who_has_not_applied_it():
    class Answering(Topic):
        """It is finalized with the proposal: the time cannot be over before."""

        def propose(self, key: bytes, value: bytes, seconds: float, done: Callable[[str | None], None]) -> None:
            super().propose(key, value, seconds, done)
            self.answer(NONE, epoch=8, waits_for=tuple(range(1, 13)))

    topic = Answering()
    topic.register(*range(1, 13), applied_epoch=7)
    task = await topic.ask(UpdateRequest(1, 50, REQUEST.updates))
    assert await task == UpdateResult(
        FEATURE_UPDATE_FAILED,
        f"{AUDIT_EVENT_SCHEMA} is finalized at epoch 8; not applied yet by "
        + ", ".join(f"sidecar {node_id}" for node_id in range(1, 11))
        + " and 2 more",
    )


@pytest.mark.promise("features.md", "An update that no controller answers fails, and says that it may still be made.")
async def test_no_controller_answers_and_one_too_many_or_without_time_is_not_proposed():
    topic = Topic()
    for timeout_ms in (0, -1, -(2**31)):
        task = await topic.ask(UpdateRequest(1, timeout_ms, REQUEST.updates))
        assert (await task).message == f"timeoutMs is {timeout_ms}; an update takes longer"
    assert topic.proposed == []
    tasks = [await topic.ask() for _ in range(MAX_OPEN_PROPOSALS + 1)]
    assert len(topic.proposed) == MAX_OPEN_PROPOSALS
    assert (await tasks[-1]).message == "FEATURE_UPDATE_IN_PROGRESS: 32 updates wait at this sidecar"
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert await (await topic.ask(UpdateRequest(1, 10, REQUEST.updates))) == UpdateResult(
        FEATURE_UPDATE_FAILED,
        "no feature controller answers; the update may still be made: brokerside features describe shows the levels",
    )


async def test_who_ends_answers_at_once():
    topic = Topic()
    proposed, finalized = await topic.ask(), await topic.ask()
    topic.register(1, applied_epoch=7)
    topic.answer(NONE, epoch=8, waits_for=(1,))
    await asyncio.sleep(0)
    topic.updates.close()
    assert await asyncio.wait_for(proposed, 60) == ENDED
    assert (await asyncio.wait_for(finalized, 60)).message == (
        f"{AUDIT_EVENT_SCHEMA} is finalized at epoch 8; not applied yet by sidecar 1"
    )
    assert await (await topic.ask()) == ENDING
    assert len(topic.proposed) == 2
