"""The count of the items that a process has observed. The event loop increments it; a killed process leaves it behind.

With a spool it lies in shared memory: a page of a file on disk could block the event loop. Next to the number stand
the folders of the run, one in the spool of each observer that has one; the file is deleted once all of them are gone.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
from array import array
from contextlib import suppress
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - names are of random boot ids, and files are never followed nor taken over
"""Folder of the file. It is in memory, and outlives the process."""

_FILE_PREFIX = "brokerside-"

_FILE_BYTES = 16_384
"""Bytes of the file: the number, and the paths of the folders, each with a zero byte behind it."""

_PATHS_OFFSET = 8


class ObservedCounter:
    """The counter of one process. ``keep`` is called before the data path takes ``memory``."""

    def __init__(self, boot_id: str) -> None:
        self.memory = memoryview(array("q", [0]))
        """One number of 64 bits: requests, changes of connections and throttle reports."""
        self._boot_id = boot_id
        self._paths = b""
        self._file: memoryview | None = None

    def keep(self, folder: Path) -> None:
        """Let the number outlive this process as long as ``folder`` exists, which need not exist yet.

        Where there is no shared memory, it does not.
        """
        first = not self._paths
        self._paths += os.fsencode(folder.absolute()) + b"\0"
        if first:
            self._create()
        else:
            self._write_paths()

    def _create(self) -> None:
        """Create the file. It is locked as long as the counter is in use."""
        try:
            descriptor = os.open(_path_of(self._boot_id), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except OSError:
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # mmap keeps a duplicate of the descriptor, and the lock with it
            os.posix_fallocate(
                descriptor, 0, _FILE_BYTES
            )  # a page that is not there when it is written to kills the process
            os.pwrite(descriptor, self._paths, _PATHS_OFFSET)
            self._file = memoryview(mmap.mmap(descriptor, _FILE_BYTES))
            self.memory = self._file[:_PATHS_OFFSET].cast("q")
        except OSError:
            _path_of(self._boot_id).unlink(missing_ok=True)
        finally:
            os.close(descriptor)

    def _write_paths(self) -> None:
        end = _PATHS_OFFSET + len(self._paths)
        if self._file is not None and end <= _FILE_BYTES:
            self._file[_PATHS_OFFSET:end] = self._paths


def read_counter(boot_id: str) -> int:
    """Return the count of a dead process, or 0 if its file is gone."""
    try:
        descriptor = os.open(_path_of(boot_id), os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return 0
    with os.fdopen(descriptor, "rb") as file:
        owned = os.fstat(file.fileno()).st_uid == os.geteuid()
        return int.from_bytes(file.read(8), sys.byteorder) if owned else 0


def delete_counter(boot_id: str) -> None:
    """Delete the file of a run, unless another observer's folder of this run still needs it."""
    with suppress(OSError):
        descriptor = os.open(_path_of(boot_id), os.O_RDONLY | os.O_NOFOLLOW)
        try:
            if all(map(_is_gone, _paths_in(descriptor))):
                _path_of(boot_id).unlink()
        finally:
            os.close(descriptor)


def delete_orphaned_counters() -> None:
    """Delete the files of this user's dead processes whose folders are gone: no process will read them."""
    for path in SHARED_MEMORY.glob(f"{_FILE_PREFIX}*"):
        with suppress(OSError):  # of another user, of a living process, or just deleted
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                paths = _paths_in(descriptor)  # a file without any was just created
                if paths and os.fstat(descriptor).st_uid == os.geteuid() and all(map(_is_gone, paths)):
                    path.unlink()
            finally:
                os.close(descriptor)


def _paths_in(descriptor: int) -> list[bytes]:
    return [path for path in os.pread(descriptor, _FILE_BYTES, _PATHS_OFFSET).split(b"\0") if path]


def _is_gone(folder: bytes) -> bool:
    try:
        os.stat(folder)
    except (FileNotFoundError, NotADirectoryError):
        return True
    return False


def _path_of(boot_id: str) -> Path:
    return SHARED_MEMORY / f"{_FILE_PREFIX}{boot_id}"
