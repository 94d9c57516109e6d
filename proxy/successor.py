"""Starts the process that takes over from this one, as SIGUSR2 requests it.

What this process starts stays in its control group, user and sandbox. So systemd accepts the successor as the main
process of the same service.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial

from proxy.daemon_executor import DaemonExecutor

DETACH = "import subprocess, sys; subprocess.Popen(sys.argv[1:], close_fds=False)"
"""A program that starts another one and exits. The other one is then a child of systemd, which notices its end while
this process still drains."""


class SuccessorStarter:
    """Starts one successor at a time. Belongs to the event loop's thread.

    ``environment``: variables that it gets in addition to those of this process. ``on_failed(problem)`` is called if it
    could not be started, or has ended; ``problem`` is one sentence.
    """

    def __init__(self, environment: Mapping[str, str], on_failed: Callable[[str], None]) -> None:
        self._environment = environment
        self._on_failed = on_failed
        self._executor = DaemonExecutor("successor")
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start a successor, unless the last one still runs."""
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        problem = "the successor has ended; its log says why"
        try:
            await self._executor.run(partial(_run_to_its_end, self._environment), None)
        except OSError as error:
            problem = f"the successor could not be started: {error.strerror or error}"
        finally:
            self._running = None
        self._on_failed(problem)


def _run_to_its_end(environment: Mapping[str, str]) -> None:
    end, inherited = os.pipe()  # it is at its end when the successor, which has the other side, has ended
    with open(end, "rb") as pipe:
        try:
            subprocess.run(
                [sys.executable, "-I", "-S", "-c", DETACH, *_command()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **environment},
                pass_fds=[inherited],
                check=False,
            )
        finally:
            os.close(inherited)
        pipe.read()


def _command() -> list[str]:
    """Return the command of this process with ``--takeover``.

    A script is run by its path again, not by the interpreter of this process: after an upgrade it names another one.
    """
    command = sys.argv if os.access(sys.argv[0], os.X_OK) else sys.orig_argv
    return [*command, "--takeover"]
