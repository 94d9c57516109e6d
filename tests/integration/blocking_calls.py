"""Which calls of a process's main thread may wait for a disk, a pipe, a name server or another process."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

WATCHED, NOTES = 16, 1024
NOTE = struct.Struct("@i28s224s")
HEAD = struct.Struct(f"@{WATCHED}ii")


class Call(NamedTuple):
    """``subject``: a path or a name, where there is one."""

    pid: int
    name: str
    subject: str


class BlockingCalls:
    """What ``blocking_calls.c`` notes in the processes that are started with ``environment``."""

    def __init__(self, folder: Path) -> None:
        """Skips the test where there is no C compiler."""
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("there is no C compiler, which makes the library that notes calls")
        library = folder / "blocking_calls.so"
        source = Path(__file__).with_name("blocking_calls.c")
        subprocess.run([compiler, "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, source], check=True)
        notes = folder / "blocking_calls"
        notes.write_bytes(bytes(HEAD.size + NOTES * NOTE.size))
        self.environment = {"LD_PRELOAD": str(library), "BLOCKING_CALLS": str(notes)}
        with notes.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 0)

    def watch(self, pids: Iterable[int]) -> None:
        """Note the calls of these processes from now on; without any: of none."""
        pids = list(pids)
        struct.pack_into(f"@{WATCHED}i", self._shared, 0, *pids, *[0] * (WATCHED - len(pids)))

    def calls(self) -> list[Call]:
        """What was noted; the first ``NOTES`` of it."""
        *_, count = HEAD.unpack_from(self._shared)
        noted = (NOTE.unpack_from(self._shared, HEAD.size + at * NOTE.size) for at in range(min(count, NOTES)))
        return [Call(pid, *(text.rstrip(b"\0").decode() for text in texts)) for pid, *texts in noted]
