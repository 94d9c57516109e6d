"""Passes updates of features from a worker process to the main process, which alone knows the feature controller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from proxy.features.updates import ENDED, ENDING, FEATURE_UPDATE_FAILED, UpdateRequest, UpdateResult
from proxy.net.worker_ipc import FeatureUpdateAnswered, FeatureUpdateAsked

NO_CONTROLLER = UpdateResult(FEATURE_UPDATE_FAILED, "this sidecar does not know the feature controller yet; ask again")


async def fail_update(request: UpdateRequest) -> UpdateResult:
    """Answer an update before there is a controller to ask."""
    return NO_CONTROLLER


class FeatureUpdateCalls:
    """The updates that a worker is asking the main process for. ``send``: sends a message to it.

    One that is not answered, because the main process is gone, fails.
    """

    def __init__(self, send: Callable[[FeatureUpdateAsked], None]) -> None:
        self._send = send
        self._open: dict[int, asyncio.Future[UpdateResult]] = {}
        self._last_request_id = 0
        self._is_main_gone = False

    async def call(self, request: UpdateRequest) -> UpdateResult:
        """Ask the main process for an update, and wait for its result."""
        if self._is_main_gone:
            return ENDING
        self._last_request_id += 1
        request_id = self._last_request_id
        result: asyncio.Future[UpdateResult] = asyncio.get_running_loop().create_future()
        self._open[request_id] = result
        try:
            self._send(FeatureUpdateAsked(request_id, request))
            return await result
        finally:
            del self._open[request_id]

    def on_answered(self, message: FeatureUpdateAnswered) -> None:
        """Take a result. Nobody may wait for it any more."""
        result = self._open.get(message.request_id)
        if result is not None and not result.done():
            result.set_result(message.result)

    def on_main_gone(self) -> None:
        """Let all open calls fail, and all later ones."""
        self._is_main_gone = True
        for result in self._open.values():
            if not result.done():
                result.set_result(ENDED)
