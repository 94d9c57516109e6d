"""Reads small regular files, and refuses other kinds of files."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from proxy.config.values import FileState


def file_state(path: Path) -> FileState:
    """Return the present state of a file. It calls the file system, which may block."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_regular(path: Path, size: int) -> bytes:
    """Return up to ``size`` bytes of a regular file. A FIFO or a device is refused: reading it may block, or never end.

    Raises OSError if the file cannot be read, and ValueError if it is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO would be waited for
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise ValueError("is not a regular file (allowed: a regular file, or a link to one)")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(size)
    finally:
        os.close(descriptor)
