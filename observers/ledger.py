"""What one run of a sidecar has counted, kept where a killed one leaves it: so the next can say what was lost.

Two files. The counter of what was observed lies in shared memory, for the event loop itself counts there: a page of a
file on disk would make it wait whenever the disk does. The entry lies in the folder of the spool, and is written with
ordinary writes, in turn into two places, so that one of them is always whole.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
import zlib
from array import array
from contextlib import suppress
from pathlib import Path
from struct import Struct as Layout
from struct import error as LayoutError
from typing import Self

import msgspec

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - names are of random boot ids, and files are never followed nor taken over
"""Where the counter lies: it is there after a kill, and in memory for all that."""

_COUNTER_PREFIX = "brokerside-"

LEDGER_FILE = "ledger"

SLOT_BYTES = 512
"""Bytes between the two slots of the ledger."""

_COUNTER_BYTES = 8192
"""Bytes of the file: the number, and the path of the folder of its run."""

_PATH = 8
_HEAD = Layout("<4sI")
_BODY = Layout("<qqqqqqqq?32s")
_MAGIC = b"BSL1"


class LedgerEntry(msgspec.Struct, frozen=True, gc=False):
    """What one run has done so far."""

    broker_id: int
    sidecar_version: str
    observed: int = 0
    """Requests, changes of connections and throttle reports that the sidecar has seen."""
    taken: int = 0
    """Those of them that were given a number or are hidden."""
    hidden: int = 0
    """Those that give no event."""
    given: int = 0
    """The last number given."""
    lost: int = 0
    """Numbers lost, for whatever reason."""
    settled: int = 0
    """Every number up to this one is on the topic, or lost and counted."""
    closed: bool = False
    """Whether the run has ended in order."""


class LedgerLocked(Exception):
    """The ledger belongs to a living process."""


class Ledger:
    """The ledger of one folder, locked as long as it is open. Methods raise OSError where the disk fails."""

    def __init__(self, folder: Path, descriptor: int, generation: int = 0) -> None:
        self.folder = folder
        self._descriptor = descriptor
        self._generation = generation

    @classmethod
    def create(cls, folder: Path, entry: LedgerEntry) -> Self:
        """Make ``folder`` and its ledger, which nobody finds before it is locked."""
        folder.mkdir(mode=0o700)
        new = folder / f"{LEDGER_FILE}.new"
        descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ledger = cls(folder, descriptor)
            ledger.write_entry(entry)
            new.rename(folder / LEDGER_FILE)
        except BaseException:
            os.close(descriptor)
            raise
        return ledger

    @classmethod
    def adopt(cls, folder: Path) -> tuple[Self, LedgerEntry]:
        """Lock the ledger that a dead process left, and read it. Raises LedgerLocked, or ValueError where it cannot be read."""
        descriptor = os.open(folder / LEDGER_FILE, os.O_RDWR | os.O_NOFOLLOW)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise LedgerLocked from error
            if os.fstat(descriptor).st_nlink == 0:
                raise LedgerLocked  # another one has just finished with it
            found = [_decode_slot(os.pread(descriptor, SLOT_BYTES, at)) for at in (0, SLOT_BYTES)]
            whole = [one for one in found if one is not None]
            if not whole:
                raise ValueError("is not a ledger that this version can read")
            generation, entry = max(whole, key=lambda one: one[0])
        except BaseException:
            os.close(descriptor)
            raise
        return cls(folder, descriptor, generation), entry

    @property
    def is_gone(self) -> bool:
        """Whether it is not where it was made any more: its folder was deleted, or its file system replaced."""
        try:
            found = os.stat(self.folder / LEDGER_FILE)
        except (FileNotFoundError, NotADirectoryError):
            return True
        return not os.path.samestat(found, os.fstat(self._descriptor))

    def write_entry(self, entry: LedgerEntry) -> None:
        """Keep ``entry``; it outlives this process, and the machine once ``sync`` returned."""
        self._generation += 1
        os.pwrite(self._descriptor, _encode_slot(self._generation, entry), self._generation % 2 * SLOT_BYTES)

    def sync(self) -> None:
        """Wait until the disk has it."""
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._descriptor)


def create_counter(boot_id: str, folder: Path) -> memoryview:
    """One number of 64 bits that outlives this process, or plain memory where there is no shared one.

    ``folder``: of the run in the spool, be it there yet or not. The file is locked as long as the memory is in use.
    """
    try:
        descriptor = os.open(_counter_path(boot_id), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except OSError:
        return memoryview(array("q", [0]))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # mmap keeps a duplicate of the descriptor, and the lock with it
        os.posix_fallocate(
            descriptor, 0, _COUNTER_BYTES
        )  # a page that is not there when it is written to kills the process
        os.pwrite(descriptor, os.fsencode(folder.absolute()), _PATH)
        return memoryview(mmap.mmap(descriptor, _COUNTER_BYTES)).cast("q")[:1]
    except OSError:
        delete_counter(boot_id)
        return memoryview(array("q", [0]))
    finally:
        os.close(descriptor)


def read_counter(boot_id: str) -> int:
    """What a dead process has counted; 0 where its counter is gone."""
    try:
        descriptor = os.open(_counter_path(boot_id), os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return 0
    with os.fdopen(descriptor, "rb") as file:
        owned = os.fstat(file.fileno()).st_uid == os.geteuid()
        return int.from_bytes(file.read(8), sys.byteorder) if owned else 0


def delete_counter(boot_id: str) -> None:
    """Delete the counter of a run."""
    with suppress(OSError):
        _counter_path(boot_id).unlink()


def delete_orphaned_counters() -> None:
    """Delete the counters of this user's dead processes whose folder is gone: nobody will ever ask for them."""
    for path in SHARED_MEMORY.glob(f"{_COUNTER_PREFIX}*"):
        with suppress(OSError):  # of another user, of a living process, or just deleted
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                folder = os.pread(descriptor, _COUNTER_BYTES, _PATH).rstrip(b"\0")
                # Without a folder in it, somebody has made the file just now.
                if folder and os.fstat(descriptor).st_uid == os.geteuid() and _is_gone(folder):
                    path.unlink()
            finally:
                os.close(descriptor)


def _is_gone(folder: bytes) -> bool:
    try:
        os.stat(folder)
    except (FileNotFoundError, NotADirectoryError):
        return True
    return False


def _counter_path(boot_id: str) -> Path:
    return SHARED_MEMORY / f"{_COUNTER_PREFIX}{boot_id}"


def _encode_slot(generation: int, one: LedgerEntry) -> bytes:
    version = one.sidecar_version.encode()[:32]
    numbers = (generation, one.broker_id, one.observed, one.taken, one.hidden, one.given, one.lost, one.settled)
    body = _BODY.pack(*numbers, one.closed, version)
    return _HEAD.pack(_MAGIC, zlib.crc32(body)) + body


def _decode_slot(place: bytes) -> tuple[int, LedgerEntry] | None:
    """Return the entry of one place and when it was written, or None for one that is not whole."""
    body = place[_HEAD.size : _HEAD.size + _BODY.size]
    try:
        magic, check = _HEAD.unpack_from(place)
        generation, broker_id, observed, taken, hidden, given, lost, settled, closed, version = _BODY.unpack(body)
    except LayoutError:
        return None
    if magic != _MAGIC or check != zlib.crc32(body):
        return None
    name = version.rstrip(b"\0").decode(errors="replace")
    return generation, LedgerEntry(broker_id, name, observed, taken, hidden, given, lost, settled, closed)
