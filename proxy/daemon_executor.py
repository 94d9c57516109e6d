"""Runs blocking functions outside of the event loop's thread, even those that may never return."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


class DaemonExecutor:
    """Runs functions in a daemon thread called ``name``, one at a time. Belongs to the event loop's thread.

    A function that never returns blocks neither the event loop nor the exit of the process.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._busy: asyncio.Future[None] | None = None

    async def run(self, function: Callable[[], Result], timeout_s: float | None) -> Result:
        """Return the result of ``function``. Raises TimeoutError after ``timeout_s`` seconds (None: never), also if the
        last one still runs."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout_s):
            while self._busy is not None:
                await asyncio.shield(self._busy)
            busy = loop.create_future()
            done: asyncio.Future[Result] = loop.create_future()

            def finish(result: Result | None, error: BaseException | None) -> None:
                self._busy = None
                busy.set_result(None)
                if done.cancelled():
                    return
                if error is not None:
                    done.set_exception(error)
                else:
                    done.set_result(result)  # type: ignore[arg-type]

            def run_function() -> None:
                result, failure = None, None
                try:
                    result = function()
                except BaseException as error:
                    failure = error
                with contextlib.suppress(RuntimeError):  # the event loop is closed
                    loop.call_soon_threadsafe(finish, result, failure)

            threading.Thread(target=run_function, name=self._name, daemon=True).start()
            self._busy = busy  # not before: no thread may be left to start
            return await done
