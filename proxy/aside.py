"""Calls that may never return, off the event loop's thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


class Aside:
    """Calls functions in a daemon thread called ``name``, one at a time. One that never returns holds up neither the
    loop nor the end of the process. Belongs to the loop's thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._busy: asyncio.Future[None] | None = None

    async def call(self, function: Callable[[], Result], patience: float) -> Result:
        """Return what ``function`` returns. Raises TimeoutError where it, or the one before, does not within
        ``patience`` seconds."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(patience):
            while self._busy is not None:
                await asyncio.shield(self._busy)
            self._busy = busy = loop.create_future()
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

            def run() -> None:
                result, failure = None, None
                try:
                    result = function()
                except BaseException as error:
                    failure = error
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(finish, result, failure)

            threading.Thread(target=run, name=self._name, daemon=True).start()
            return await done
