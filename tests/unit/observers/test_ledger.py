from __future__ import annotations

import os
import shutil
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from observers import ledger as module
from observers.ledger import (
    LEDGER_FILE,
    SLOT_BYTES,
    Ledger,
    LedgerEntry,
    LedgerLocked,
    create_counter,
    delete_counter,
    delete_orphaned_counters,
    read_counter,
)

ENTRY = LedgerEntry(7, "0.1.0", observed=9, taken=8, hidden=3, given=5, lost=1, settled=2)


@pytest.fixture
def boot_id() -> Iterator[str]:
    made = uuid.uuid4().hex
    yield made
    delete_counter(made)


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


def test_only_its_owner_may_look_into_the_folder(tmp_path: Path) -> None:
    Ledger.create(tmp_path / "a", ENTRY).close()
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a" / LEDGER_FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("place", [0, 1])
def test_a_place_that_is_not_whole_leaves_the_other(tmp_path: Path, place: int) -> None:
    ledger = Ledger.create(tmp_path / "a", ENTRY)  # into the second place
    ledger.write_entry(replace(ENTRY, given=6))
    ledger.close()
    with (tmp_path / "a" / LEDGER_FILE).open("r+b") as file:
        file.seek(place * SLOT_BYTES + 30)
        file.write(b"\xff")
    assert Ledger.adopt(tmp_path / "a")[1].given == (5 if place == 0 else 6)


@pytest.mark.parametrize("held", [b"", b"\0" * 1024, b"BSL9" + b"\0" * 1020])
def test_what_is_no_ledger_is_said_to_be_none(tmp_path: Path, held: bytes) -> None:
    (tmp_path / LEDGER_FILE).write_bytes(held)
    with pytest.raises(ValueError, match="not a ledger"):
        Ledger.adopt(tmp_path)


def test_a_long_version_is_cut(tmp_path: Path) -> None:
    Ledger.create(tmp_path / "a", replace(ENTRY, sidecar_version="1" * 100)).close()
    assert Ledger.adopt(tmp_path / "a")[1].sidecar_version == "1" * 32


def test_what_was_counted_is_there_after_the_process(boot_id: str, tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        count = create_counter(boot_id, tmp_path)
        for _ in range(1234):
            count[0] += 1
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    assert read_counter(boot_id) == 1234
    delete_counter(boot_id)
    assert read_counter(boot_id) == 0


def test_a_counter_is_never_taken_over(boot_id: str, tmp_path: Path) -> None:
    first, second = create_counter(boot_id, tmp_path), create_counter(boot_id, tmp_path)
    second[0] = 9
    assert (first[0], read_counter(boot_id)) == (0, 0)


def test_without_shared_memory_it_counts_in_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "SHARED_MEMORY", tmp_path / "none")
    count = create_counter("a", tmp_path)
    count[0] += 5
    assert (count[0], len(count), count.format, read_counter("a")) == (5, 1, "q", 0)
    delete_counter("a")


def counted_by_a_dead_one(boot_id: str, folder: Path) -> None:
    child = os.fork()
    if child == 0:
        create_counter(boot_id, folder)[0] = 7
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)


def test_the_counter_of_a_dead_run_goes_once_its_folder_is_gone(boot_id: str, tmp_path: Path) -> None:
    folder = tmp_path / "spool" / f"1-{boot_id}"
    folder.mkdir(parents=True)
    counted_by_a_dead_one(boot_id, folder)
    delete_orphaned_counters()
    assert read_counter(boot_id) == 7
    shutil.rmtree(tmp_path / "spool")
    delete_orphaned_counters()
    assert read_counter(boot_id) == 0


def test_the_counter_of_a_run_whose_folder_could_never_be_made_goes_too(boot_id: str, tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("a file")
    counted_by_a_dead_one(boot_id, tmp_path / "spool" / f"1-{boot_id}")
    delete_orphaned_counters()
    assert read_counter(boot_id) == 0


def test_the_counter_of_a_living_run_stays_whatever_becomes_of_its_folder(boot_id: str, tmp_path: Path) -> None:
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        count = create_counter(boot_id, tmp_path / "gone")
        count[0] = 7
        os.write(tell, b"x")
        signal.pause()
    try:
        os.read(told, 1)
        delete_orphaned_counters()
        assert read_counter(boot_id) == 7
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(told)
        os.close(tell)


def test_a_file_that_is_no_counter_is_left_alone(boot_id: str) -> None:
    foreign = module.SHARED_MEMORY / f"brokerside-{boot_id}"
    foreign.write_bytes(b"\1" * 8 + b"/some\0thing\0else")
    delete_orphaned_counters()
    assert foreign.exists()


def test_a_counter_that_was_made_this_moment_stays(boot_id: str) -> None:
    (module.SHARED_MEMORY / f"brokerside-{boot_id}").write_bytes((7).to_bytes(8, sys.byteorder))
    delete_orphaned_counters()
    assert read_counter(boot_id) == 7
