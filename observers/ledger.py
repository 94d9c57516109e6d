"""The counts of one run of a sidecar, kept so that the next run knows what a killed one lost.

There are two files. The counter of observed items lies in shared memory, since the event loop itself increments it: a
page of a file on disk could block it. The entry lies in the folder of the spool, and is written with
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
"""Folder of the counter. It is in memory, and outlives the process."""

_COUNTER_PREFIX = "brokerside-"

LEDGER_FILE = "ledger"

SLOT_BYTES = 512
"""Bytes between the two slots of the ledger."""

_COUNTER_BYTES = 8192
"""Bytes of the file: the number, and the path of the folder of its run."""

_COUNTER_PATH_OFFSET = 8
_SLOT_HEAD = Layout("<4sI")
_SLOT_BODY = Layout("<qqqqqqqq?32s")
_SLOT_MAGIC = b"BSL1"


class LedgerEntry(msgspec.Struct, frozen=True, gc=False):
    """The counts of one run."""

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
    """Whether the run was closed, not killed."""


class LedgerLocked(Exception):
    """Another process has locked the ledger."""


class Ledger:
    """The ledger of one folder, locked as long as it is open. Methods raise OSError where the disk fails."""

    def __init__(self, folder: Path, descriptor: int, generation: int = 0) -> None:
        self.folder = folder
        self._descriptor = descriptor
        self._generation = generation

    @classmethod
    def create(cls, folder: Path, entry: LedgerEntry) -> Self:
        """Create ``folder`` and its ledger. The ledger gets its name after it is locked."""
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
        """Lock the ledger of a dead process, and read it. Raises LedgerLocked, or ValueError if it cannot be read."""
        descriptor = os.open(folder / LEDGER_FILE, os.O_RDWR | os.O_NOFOLLOW)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise LedgerLocked from error
            if os.fstat(descriptor).st_nlink == 0:
                raise LedgerLocked  # another process has just deleted it
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
        """Whether its folder was deleted, or another file system was mounted over it."""
        try:
            found = os.stat(self.folder / LEDGER_FILE)
        except (FileNotFoundError, NotADirectoryError):
            return True
        return not os.path.samestat(found, os.fstat(self._descriptor))

    def write_entry(self, entry: LedgerEntry) -> None:
        """Write ``entry``. It survives this process, and a crash of the machine after ``sync``."""
        self._generation += 1
        os.pwrite(self._descriptor, _encode_slot(self._generation, entry), self._generation % 2 * SLOT_BYTES)

    def sync(self) -> None:
        """Wait until the last entry is on the disk."""
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Close the file, which unlocks it."""
        os.close(self._descriptor)


def create_counter(boot_id: str, folder: Path) -> memoryview:
    """Return a counter of 64 bits that outlives this process, or one in plain memory if there is no shared memory.

    ``folder``: folder of the run in the spool, which need not exist yet. The file is locked as long as the counter
    is in use.
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
        os.pwrite(descriptor, os.fsencode(folder.absolute()), _COUNTER_PATH_OFFSET)
        return memoryview(mmap.mmap(descriptor, _COUNTER_BYTES)).cast("q")[:1]
    except OSError:
        delete_counter(boot_id)
        return memoryview(array("q", [0]))
    finally:
        os.close(descriptor)


def read_counter(boot_id: str) -> int:
    """Return the count of a dead process, or 0 if its counter is gone."""
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
    """Delete the counters of this user's dead processes whose folders are gone: no process will read them."""
    for path in SHARED_MEMORY.glob(f"{_COUNTER_PREFIX}*"):
        # Of another user, of a living process, just deleted; or a file that is none of ours.
        with suppress(OSError, ValueError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                folder = os.pread(descriptor, _COUNTER_BYTES, _COUNTER_PATH_OFFSET).rstrip(b"\0")
                # A file without a folder in it was just created.
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
    body = _SLOT_BODY.pack(*numbers, one.closed, version)
    return _SLOT_HEAD.pack(_SLOT_MAGIC, zlib.crc32(body)) + body


def _decode_slot(place: bytes) -> tuple[int, LedgerEntry] | None:
    """Return the generation and the entry of one slot, or None if the slot is not whole."""
    body = place[_SLOT_HEAD.size : _SLOT_HEAD.size + _SLOT_BODY.size]
    try:
        magic, check = _SLOT_HEAD.unpack_from(place)
        generation, broker_id, observed, taken, hidden, given, lost, settled, closed, version = _SLOT_BODY.unpack(body)
    except LayoutError:
        return None
    if magic != _SLOT_MAGIC or check != zlib.crc32(body):
        return None
    name = version.rstrip(b"\0").decode(errors="replace")
    return generation, LedgerEntry(broker_id, name, observed, taken, hidden, given, lost, settled, closed)
