"""The processes of a run: found by a mark in their environment, paused on request, ended with it."""

import faulthandler
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from proxy.local import ports, process

MARK = "TEST_RUN_OF_BROKERSIDE"
"""Pid and start time of the process that began the run. All that it starts inherits it: workers, brokers, sidecars,
Spark and its Python workers, also those in a session of their own."""

PORT_RANGES = 8
"""Test processes that can run at once on one machine; each has a range of ports to itself."""

INTERRUPT_SECONDS = 10.0
"""After Ctrl-C, what still runs so long later is killed, with the workers that wait for it."""

OVERDUE_SECONDS = 120
"""A process whose test has not ended so long after its timeout exits, with the stacks of its threads on stderr. That
timeout is an exception, which has to wait for a call that does not return, into librdkafka for example. So does a
process that neither gets another test nor ends."""

SILENT_SECONDS = 1200
"""The process that waits for the others exits, with its stacks, if none has reported a test for so long."""

STDERR = pytest.StashKey[int]()
"""The process's own, which pytest does not capture."""

LONGEST_PAUSE = 5.0
MEAN_GAP = 8.0
"""Seconds that a process is stopped at most, and between two pauses on average."""


def begin(config: pytest.Config) -> None:
    """Mark this run, and kill what runs of earlier ones left behind when they were killed."""
    own = f"{os.getpid()}:{process.start_time(os.getpid())}"
    if os.environ.setdefault(MARK, own) != own:
        return  # a run that a test of another run started belongs to it
    left = [pid for pid, mark in _marked() if not process.Process(*map(int, mark.split(":"))).alive()]
    _kill(left)
    if left:
        print(f"[tests] killed {len(left)} processes of a run that had been killed")
    config.pluginmanager.register(Ending(config))


class Ending:
    """Nothing that a run has started outlives it, however it ends."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self) -> None:
        if self._config.option.dist != "no":
            exit_when_overdue(self._config, SILENT_SECONDS)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: object) -> None:
        """End the run where a process has: xdist would begin its test again, and wait for that again."""
        session = self._config.pluginmanager.get_plugin("dsession")
        if error and session is not None:
            session.shouldstop = "a process that ran tests has ended"

    def pytest_keyboard_interrupt(self) -> None:
        timer = threading.Timer(INTERRUPT_SECONDS, lambda: _kill(_of_this_run()))
        timer.daemon = True
        timer.start()

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        _kill(_of_this_run())


def exit_when_overdue(config: pytest.Config, timeout: float = 0) -> None:
    faulthandler.dump_traceback_later(timeout + OVERDUE_SECONDS, exit=True, file=config.stash[STDERR])


class Pauses(threading.Thread):
    """Stops one process of the run at a time, as a busy host does: the same moments for the same seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(daemon=True)
        self._random = random.Random(seed)

    def run(self) -> None:
        while True:
            time.sleep(self._random.expovariate(1 / MEAN_GAP))
            seconds, choice = self._random.uniform(0, LONGEST_PAUSE), self._random.random()
            running = [pid for pid in _of_this_run() if not _is_stopped(pid)]
            if running:
                _pause(running[int(choice * len(running))], seconds)


def _pause(pid: int, seconds: float) -> None:
    with suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(handle, signal.SIGSTOP)
            time.sleep(seconds)
            signal.pidfd_send_signal(handle, signal.SIGCONT)
        finally:
            os.close(handle)


def take_port_range() -> None:
    """A server whose port was chosen a while ago, or that a test has stopped and will start again, finds it free: no
    other test process of this machine chooses from the same range."""
    share = (ports.LAST - ports.FIRST + 1) // PORT_RANGES
    for number in range(PORT_RANGES):
        claim = socket.socket(socket.AF_UNIX)
        with suppress(OSError):
            claim.bind(f"\0brokerside-test-ports-{number}")
            claim.detach()  # it is the kernel's until this process ends
            ports.FIRST += number * share
            ports.LAST = ports.FIRST + share - 1
            return
        claim.close()
    pytest.exit(f"{PORT_RANGES} test processes run already: end one, their ports would collide", 3)


def _of_this_run() -> list[int]:
    own = os.environ[MARK]
    return sorted(pid for pid, mark in _marked() if mark == own and pid != os.getpid())


def _marked() -> Iterator[tuple[int, str]]:
    prefix = f"{MARK}=".encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                for entry in (folder / "environ").read_bytes().split(b"\0"):
                    if entry.startswith(prefix):
                        yield int(folder.name), entry[len(prefix) :].decode()


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _is_stopped(pid: int) -> bool:
    """Whether it is stopped, or gone. The second field of ``/proc/PID/stat`` may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "TtZ"
    except OSError:
        return True
