"""Calls an observer at once, on the caller's thread, and keeps what it raised: for those who write one."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any

from observers.observer_thread import SLOW_CALL, ObserverBatch, ObserverThread

MAX_TRACEBACKS = 10
"""Errors of different places that are kept with their traceback; of others only the number is known."""


class TrialThread(ObserverThread):
    """Delivers as in production, but without a queue and without a circuit breaker, so that nothing is left out.

    ``seconds``: in the observer's methods, without ``close``. ``tracebacks``: of the first error of each place.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.seconds = 0.0
        self.tracebacks: dict[tuple[str, str, int], str] = {}

    def start(self) -> None:
        """Do nothing."""

    def enqueue(self, batch: ObserverBatch, count: int) -> None:
        """Deliver ``batch``."""
        if batch.topic_ids is not None:
            batch.topic_ids.learn()
        if count:
            self._deliver(batch, count)

    def request_close(self, deadline: float) -> None:
        """Close the observer."""
        self._call("close", self._loaded.close, max(0.0, deadline - time.monotonic()))

    def join(self, deadline: float) -> None:
        """Do nothing."""

    def _reason_to_skip(self) -> str | None:
        return None

    def _call(self, method: str, function: Callable[..., Any], *args: Any, slow_after: float = SLOW_CALL) -> bool:
        began = time.perf_counter()
        try:
            return super()._call(method, function, *args, slow_after=slow_after)
        finally:
            if method != "close":
                self.seconds += time.perf_counter() - began

    def _record_failure(self, method: str, error: BaseException) -> None:
        if isinstance(error, KeyboardInterrupt):
            raise error
        self._errors[method] = self._errors.get(method, 0) + 1
        frames = traceback.extract_tb(error.__traceback__)
        where = method, frames[-1].filename, frames[-1].lineno or 0
        if where not in self.tracebacks and len(self.tracebacks) < MAX_TRACEBACKS:
            self.tracebacks[where] = "".join(traceback.format_exception(error))
