"""Processes that go on when this one ends, known by pid and start time, so that a reused pid is never taken for one."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """A started process. ``started``: clock ticks since the machine's boot, field 22 of ``/proc/<pid>/stat``."""

    pid: int
    started: int

    def alive(self) -> bool:
        """Whether it still runs: a process of that pid and start time that is not a zombie."""
        _reap(self.pid)
        return _start_time(self.pid) == self.started


def spawn(command: list[str], output: Path) -> Process:
    """Start ``command`` in a session of its own, so that Ctrl-C here does not reach it; its output goes to a new file.

    Raises OSError if it cannot be started.
    """
    write = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    # Not subprocess.Popen, which warns about every process it does not see end.
    pid = os.posix_spawn(
        command[0],
        command,
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(output), write, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    return Process(pid, _start_time(pid) or 0)


def stop(processes: Sequence[Process], timeout: float, *, kill: bool = False) -> bool:
    """End all of them: SIGTERM (SIGKILL if ``kill``), and SIGKILL for those that still run after ``timeout`` seconds.

    Those that do not run any more are left alone, whatever has their pid now. Returns whether none had to be killed.
    """
    gently = not kill
    handles = [handle for process in processes if (handle := _open(process)) is not None]
    try:
        for handle in handles:
            _signal(handle, signal.SIGKILL if kill else signal.SIGTERM)
        deadline = time.monotonic() + timeout
        for handle in handles:
            if not _ended(handle, deadline - time.monotonic()):
                gently = False
                _signal(handle, signal.SIGKILL)
                _ended(handle, timeout)
    finally:
        for handle in handles:
            os.close(handle)
    for process in processes:
        _reap(process.pid)
    return gently


def _open(process: Process) -> int | None:
    """Return a descriptor that means this very process for as long as it is open; None if it does not run."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    if process.alive():
        return handle
    os.close(handle)
    return None


def _signal(handle: int, number: signal.Signals) -> None:
    try:
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return


def _ended(handle: int, timeout: float) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout) * 1000))


def _reap(pid: int) -> None:
    """Take leave of it if it is a child of this process that has ended."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def _start_time(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the command in parentheses, and may hold anything.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])
