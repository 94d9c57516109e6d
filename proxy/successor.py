"""Starts the process that takes over from this one, as SIGUSR2 requests it.

What this process starts stays in its control group, user and sandbox. So systemd accepts the successor as the main
process of the same service.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import structlog

from proxy.daemon_executor import DaemonExecutor

TAKEOVER_REQUIRED = "TAKEOVER_REQUIRED"
"""The environment variable of a successor that may only take over: without a predecessor it exits. Its value is the
process id of the predecessor. It is no ``BROKERSIDE_`` variable, since those are keys of the configuration, and other
versions refuse what they do not know."""

IGNORED_AT_START = (signal.SIGHUP, signal.SIGUSR2)
"""Signals that a process of the service may get before it can handle them. By default they would end it."""

DETACH = f"""\
import signal, subprocess, sys
for number in {[int(number) for number in IGNORED_AT_START]}:
    signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
subprocess.Popen(sys.argv[1:], close_fds=False)
"""
"""A program that starts another one and exits. The other one is then a child of systemd, which notices its end while
this process still drains."""

log = structlog.get_logger(__name__)


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

    @staticmethod
    def has_started(pid: int) -> bool:
        """Return whether the process ``pid`` is a successor that this process has started, by its environment.

        That one runs says nothing: it may be late, and another one may have taken over. Its pid says nothing either:
        what was started may be a script.
        """
        try:
            # On the event loop, as it waits for no file: the kernel copies memory of a process that has started seconds
            # ago, and that waits for an answer of this one.
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:  # it has ended, or is of another user
            return False
        return f"{TAKEOVER_REQUIRED}={os.getpid()}".encode() in environment.split(b"\0")

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
        except subprocess.CalledProcessError as error:
            problem = f"the successor could not be started: status {error.returncode}; the log says why"
        except Exception as error:  # a mistake of ours, or no thread could be started
            log.exception("successor_not_started")
            problem = f"the successor could not be started: {type(error).__name__}"
        finally:
            self._running = None
        self._on_failed(problem)


def _run_to_its_end(environment: Mapping[str, str]) -> None:
    # Until DETACH ignores them. This thread ends with the function.
    signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_AT_START)
    end, inherited = os.pipe()  # it is at its end when the successor, which has the other side, has ended
    with open(end, "rb") as pipe:
        try:
            subprocess.run(
                [sys.executable, "-I", "-S", "-c", DETACH, *_command()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **environment, TAKEOVER_REQUIRED: str(os.getpid())},
                pass_fds=[inherited],
                check=True,
            )
        finally:
            os.close(inherited)
        pipe.read()


def _command() -> list[str]:
    """Return the command of this process with ``--takeover``.

    A script is run by its path again, not by the interpreter of this process: after an upgrade it names another one.
    """
    command = sys.argv if os.access(sys.argv[0], os.X_OK) else sys.orig_argv
    return [*command] if "--takeover" in command else [*command, "--takeover"]
