"""Updates of features that the clients of a worker ask for: each gets its own result, and none waits for ever."""

import asyncio

import pytest

from proxy.features.records import FeatureUpdate
from proxy.features.updates import ENDED, ENDING, UpdateRequest, UpdateResult
from proxy.net.feature_update_calls import FeatureUpdateCalls
from proxy.net.worker_ipc import FeatureUpdateAnswered, FeatureUpdateAsked

REQUEST = UpdateRequest(2, 1000, (FeatureUpdate("brokerside.quota.ip", 1),))


async def asked(
    calls: FeatureUpdateCalls, sent: list[FeatureUpdateAsked], count: int
) -> list[asyncio.Task[UpdateResult]]:
    tasks = [asyncio.create_task(calls.call(REQUEST)) for _ in range(count)]
    await asyncio.sleep(0)
    assert len(sent) == count
    return tasks


async def test_results_that_come_in_another_order_reach_those_who_asked() -> None:
    sent: list[FeatureUpdateAsked] = []
    calls = FeatureUpdateCalls(sent.append)
    tasks = await asked(calls, sent, 3)
    assert len({one.request_id for one in sent}) == 3
    assert {one.request for one in sent} == {REQUEST}
    calls.on_answered(FeatureUpdateAnswered(77, UpdateResult(0)))  # for which nobody waits
    for one in reversed(sent):
        calls.on_answered(FeatureUpdateAnswered(one.request_id, UpdateResult(0, str(one.request_id))))
    assert [(await task).message for task in tasks] == [str(one.request_id) for one in sent]


@pytest.mark.promise(
    "features.md",
    "Updates of features that wait at a worker fail once its main process is gone.",
)
async def test_all_fail_once_the_main_process_is_gone() -> None:
    sent: list[FeatureUpdateAsked] = []
    calls = FeatureUpdateCalls(sent.append)
    tasks = await asked(calls, sent, 2)
    calls.on_main_gone()
    assert [await task for task in tasks] == [ENDED] * 2
    assert await calls.call(REQUEST) == ENDING
    assert len(sent) == 2
