"""The spool on disk, its ledger, and the count of what a process has observed, which its next run finds."""

import errno
import os
import random
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from observers import observed_counter as module
from observers.ledger import LEDGER_FILE, SLOT_BYTES, Ledger, LedgerEntry, LedgerLocked
from observers.observed_counter import SHARED_MEMORY, ObservedCounter, delete_orphaned_counters, read_counter
from observers.spool import SEGMENT_SUFFIX, Spool, StoredBlock, TornRange

BLOCK = 10
"""Events of a block here."""

SMALL = 1000
"""Bytes of a segment here: a few blocks."""


def spool(folder: Path, **settings: Any) -> Spool:
    return Spool(folder, **{"segment": SMALL, **settings})


def json_of(first: int) -> bytes:
    return random.Random(first).randbytes(150)


def put(spool: Spool, first: int, *, direct: bool = False) -> StoredBlock | None:
    return spool.append(first, first + BLOCK - 1, 1, json_of(first), 5.0, direct=direct)


def fill(spool: Spool, blocks: int, first: int = 1) -> None:
    for n in range(blocks):
        put(spool, first + n * BLOCK)


def taken(spool: Spool) -> list[StoredBlock]:
    """Everything that is left, each with the events it was put with."""
    stored_blocks = []
    while (found := spool.read_next()) is not None:
        stored, json = found
        assert json == json_of(stored.first)
        assert (len(stored), stored.level) == (BLOCK, 1)
        stored_blocks.append(stored)
    return stored_blocks


def firsts(stored_blocks: Sequence[StoredBlock]) -> list[int]:
    return [stored.first for stored in stored_blocks]


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{SEGMENT_SUFFIX}"))


def descriptors(folder: Path) -> int:
    """How many this process has of files in ``folder``, deleted ones too; others come and go."""
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(folder))
    return found


def test_damage_and_what_is_no_segment_are_passed_over_and_counted(tmp_path: Path) -> None:
    fill(spool(tmp_path), 20)
    (tmp_path / f"notes{SEGMENT_SUFFIX}").write_text("somebody's")
    one = spool(tmp_path, after=95)
    assert one.read_to == 95
    put(one, 201)
    assert firsts(taken(one)) == list(range(91, 211, BLOCK))
    # Damage to what this process wrote is counted.
    one = spool(tmp_path / "cut", segment=10_000)
    (tmp_path / "cut").mkdir()
    fill(one, 5)
    assert one.read_next() is not None
    (file,) = files(tmp_path / "cut")
    os.truncate(file, 300)
    assert one.read_next() is None
    assert one.torn == [TornRange(11, 50, 40, 1)]
    (tmp_path / "gone").mkdir()
    one = spool(tmp_path / "gone")
    fill(one, 20)
    files(tmp_path / "gone")[0].unlink()
    read = firsts(taken(one))
    assert one.torn == [TornRange(1, read[0] - 1, read[0] - 1, 1)], "a file that somebody deleted"
    assert read[-1] == 191


@pytest.mark.promise("audit-delivery.md", "Checksums find what was damaged on disk.")
def test_a_damaged_frame_costs_the_rest_of_its_segment(tmp_path: Path) -> None:
    fill(spool(tmp_path), 20)
    first, second, *_ = files(tmp_path)
    whole = first.read_bytes()
    frame = len(json_of(1)) + 32 + 11  # zlib's own
    for at in (0, 4, 8, 16, 24, 31, 32, 100):
        damaged = bytearray(whole)
        damaged[frame + at] ^= 0x40
        first.write_bytes(damaged)
        one = spool(tmp_path)
        read = firsts(taken(one))
        assert read[0] == 1, at
        assert read[1:] == list(range(read[1], 201, BLOCK)), at
        assert one.torn == [TornRange(11, read[1] - 1, 0, 1)], at
        one.close()
        assert second.exists()


@pytest.mark.promise("audit-delivery.md", "A disk that is full damages no block in the spool.")
def test_a_full_disk_leaves_nothing_of_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = spool(tmp_path, segment=10_000)
    put(one, 1)
    real = os.writev

    def short(descriptor: int, parts: Sequence[bytes]) -> int:
        return real(descriptor, [parts[0]])

    monkeypatch.setattr(os, "writev", short)
    with pytest.raises(OSError, match="No space left") as caught:
        put(one, 11)
    assert caught.value.errno == errno.ENOSPC
    monkeypatch.undo()
    put(one, 21)
    assert one.bytes == sum(file.stat().st_size for file in files(tmp_path))
    assert firsts(taken(one)) == [1, 21]
    assert firsts(taken(spool(tmp_path))) == [1, 21]


def test_the_disk_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    one = spool(tmp_path)
    fill(one, 20)
    assert one.unsynced
    one.sync()
    assert not one.unsynced
    assert sorted(synced) == sorted(file.stat().st_ino for file in files(tmp_path))
    synced.clear()
    put(one, 201)
    one.sync()
    assert len(synced) == 1


def test_it_holds_no_descriptor_of_what_is_deleted(tmp_path: Path) -> None:
    one = spool(tmp_path)
    for first in range(1, 2001, BLOCK):
        stored = put(one, first, direct=True)
        assert stored is not None
        one.settle_block(stored, len(stored))
        one.delete_settled_segments()
    assert len(files(tmp_path)) <= 1
    assert descriptors(tmp_path) <= 1
    one.close()
    assert descriptors(tmp_path) == 0


# ---- the ledger ------------------------------------------------------------------------------------------------------


ENTRY = LedgerEntry(7, "0.1.0", observed=9, taken=8, hidden=3, given=5, lost=1, settled=2)


@pytest.mark.promise("audit-delivery.md", "A folder of the spool is adopted only once its process is gone.")
def test_what_was_written_last_is_read_once_its_process_is_gone(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "a", ENTRY)
    for given in range(6, 20):
        ledger.write_entry(replace(ENTRY, given=given, closed=given == 19))
    with pytest.raises(LedgerLocked):
        Ledger.adopt(tmp_path / "a")
    ledger.close()
    adopted, entry = Ledger.adopt(tmp_path / "a")
    assert entry == replace(ENTRY, given=19, closed=True)
    with pytest.raises(LedgerLocked):
        Ledger.adopt(tmp_path / "a")
    adopted.write_entry(replace(entry, given=21))
    adopted.close()
    assert Ledger.adopt(tmp_path / "a")[1].given == 21


@pytest.mark.promise("audit-delivery.md", "Only its owner may read the folder of a spool and the ledger in it.")
def test_only_its_owner_may_look_into_the_folder(tmp_path: Path) -> None:
    Ledger.create(tmp_path / "a", replace(ENTRY, sidecar_version="1" * 100)).close()
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a" / LEDGER_FILE).stat().st_mode & 0o777 == 0o600
    assert Ledger.adopt(tmp_path / "a")[1].sidecar_version == "1" * 32, "a long version is cut"


def test_a_place_that_is_not_whole_leaves_the_other(tmp_path: Path) -> None:
    for place, left in ((0, 5), (1, 6)):
        folder = tmp_path / str(place)
        ledger = Ledger.create(folder, ENTRY)  # into the second place
        ledger.write_entry(replace(ENTRY, given=6))
        ledger.close()
        with (folder / LEDGER_FILE).open("r+b") as file:
            file.seek(place * SLOT_BYTES + 30)
            file.write(b"\xff")
        assert Ledger.adopt(folder)[1].given == left
    for held in (b"", b"\0" * 1024, b"BSL9" + b"\0" * 1020):
        (tmp_path / LEDGER_FILE).write_bytes(held)
        with pytest.raises(ValueError, match="not a ledger"):
            Ledger.adopt(tmp_path)


@pytest.fixture(autouse=True)
def shared_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A part of it where no other process looks for counters that nobody needs, locks them and deletes them."""
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as folder:
        monkeypatch.setattr(module, "SHARED_MEMORY", Path(folder))
        yield Path(folder)


@pytest.fixture
def boot_id() -> str:
    return uuid.uuid4().hex


def counter(boot_id: str, *folders: Path) -> ObservedCounter:
    """One that outlives the process."""
    made = ObservedCounter(boot_id)
    for folder in folders:
        made.keep(folder)
    return made


@pytest.mark.promise("audit-delivery.md", "The count of what a process has observed outlives a kill.")
def test_the_count_of_a_dead_run_is_there_until_its_folder_is_gone(boot_id: str, tmp_path: Path) -> None:
    folder = tmp_path / "spool" / f"1-{boot_id}"
    folder.mkdir(parents=True)
    counted_by_a_dead_one(boot_id, folder)
    delete_orphaned_counters()
    assert read_counter(boot_id) == 7
    shutil.rmtree(tmp_path / "spool")
    delete_orphaned_counters()
    assert read_counter(boot_id) == 0
    (tmp_path / "spool").write_text("a file")  # the folder can never be made
    counted_by_a_dead_one(f"{boot_id}-2", tmp_path / "spool" / f"1-{boot_id}")
    assert read_counter(f"{boot_id}-2") == 7
    delete_orphaned_counters()
    assert read_counter(f"{boot_id}-2") == 0


def counted_by_a_dead_one(boot_id: str, *folders: Path) -> None:
    child = os.fork()
    if child == 0:
        counter(boot_id, *folders).memory[0] = 7
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)


def test_the_counter_of_a_living_run_stays_whatever_becomes_of_its_folder(
    boot_id: str, tmp_path: Path, shared_memory: Path
) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        alive = counter(boot_id, tmp_path / "gone")  # as long as this is, it is locked
        alive.memory[0] = 7
        os.write(writing, b"x")
        signal.pause()
    made_now = uuid.uuid4().hex
    (shared_memory / f"brokerside-{made_now}").write_bytes((7).to_bytes(8, sys.byteorder))
    try:
        os.read(reading, 1)
        delete_orphaned_counters()
        assert read_counter(boot_id) == read_counter(made_now) == 7
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)
