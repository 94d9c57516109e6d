"""Threads that let the event loop have the CPU: which there are, and what is left as it was."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from observers.background import BackgroundThreads
from observers.dispatch import Dispatcher
from tests.unit.observers.samples import exchange


def policy() -> int:
    return os.sched_getscheduler(0)


def in_thread(function: Callable[[], Any]) -> Any:
    """What ``function`` returns in a thread of its own."""
    returned: list[Any] = []
    thread = threading.Thread(target=lambda: returned.append(function()))
    thread.start()
    thread.join()
    return returned[0]


class Noting:
    """An observer that notes the policies of its thread, and of one that it starts when it is configured."""

    def configure(self, configs: Mapping[str, Any]) -> None:
        self.policies = [in_thread(policy)]

    def record_exchanges(self, exchanges: Sequence[Any], dropped: int) -> None:
        self.policies += [policy(), in_thread(policy)]

    def close(self, timeout: float) -> None:
        """Nothing is left to do."""


@pytest.mark.promise("architecture.md", "Threads of observers yield the CPU to the event loop.")
def test_observers_and_what_they_start_run_as_background_threads() -> None:
    dispatcher = Dispatcher([f"{__name__}:Noting"], {})
    dispatcher.start()
    dispatcher.record_exchange(exchange())
    dispatcher.close(60)
    (observer,) = dispatcher.observers.values()
    assert isinstance(observer, Noting)
    assert observer.policies == [os.SCHED_BATCH] * 3
    assert (policy(), in_thread(policy)) == (os.SCHED_OTHER, os.SCHED_OTHER)


def test_the_thread_itself_is_afterwards_what_it_was() -> None:
    def inside() -> None:
        with BackgroundThreads():
            assert policy() == os.SCHED_BATCH
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        inside()
    assert policy() == os.SCHED_OTHER

    def idle() -> tuple[int, int]:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        with BackgroundThreads():
            found = policy()
        return found, policy()

    assert in_thread(idle) == (os.SCHED_IDLE, os.SCHED_IDLE), "another policy is left alone"
