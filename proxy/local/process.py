"""Processes that survive this one, known by pid and start time, so that a reused pid is never taken for one."""

from __future__ import annotations

import errno
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
        """Return whether it still runs. After its end, its ports and files are free."""
        handle = _open(self)
        if handle is None:
            return False
        try:
            ended = _ended(handle, 0)
        finally:
            os.close(handle)
        if ended:
            _reap(self.pid)
        return not ended


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
    return Process(pid, start_time(pid) or 0)


def stop(processes: Sequence[Process], timeout: float, *, kill: bool = False) -> bool:
    """End all of them: SIGTERM (SIGKILL if ``kill``), and SIGKILL for those that still run after ``timeout`` seconds.

    Those that do not run any more are left alone, whatever has their pid now. Returns whether none had to be killed.
    """
    gently = not kill
    handles = {process: handle for process in processes if (handle := _open(process)) is not None}
    try:
        for handle in handles.values():
            _signal(handle, signal.SIGKILL if kill else signal.SIGTERM)
        deadline = time.monotonic() + timeout
        for handle in handles.values():
            if not _ended(handle, deadline - time.monotonic()):
                gently = False
                _signal(handle, signal.SIGKILL)
                _ended(handle, timeout)
    finally:
        for handle in handles.values():
            os.close(handle)
    for process in handles:
        _reap(process.pid)
    return gently


def _open(process: Process) -> int | None:
    """Return a descriptor that means this very process for as long as it is open; None if it is gone."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError as error:
        # The last two: the number is a thread's now, to older and newer kernels.
        if error.errno in (errno.ESRCH, errno.EINVAL, errno.ENOENT):
            return None
        raise
    if start_time(process.pid) == process.started:
        return handle
    os.close(handle)
    return None


def _signal(handle: int, number: signal.Signals) -> None:
    try:
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return


def _ended(handle: int, timeout: float) -> bool:
    """Whether all of its threads end within ``timeout`` seconds; ``/proc`` has the state of the first one only."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout) * 1000))


def _reap(pid: int) -> None:
    """Reap ``pid`` if it is a child of this process that has ended."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def start_time(pid: int) -> int | None:
    """Return when the process of ``pid`` started, as ``Process`` has it; None if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the command in parentheses, and may hold anything.
    return int(stat.rpartition(")")[2].split()[19])
