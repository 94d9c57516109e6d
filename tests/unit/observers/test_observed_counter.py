"""What a process has observed is counted where its next run finds it."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from observers import observed_counter as module
from observers.observed_counter import (
    SHARED_MEMORY,
    ObservedCounter,
    delete_counter,
    delete_orphaned_counters,
    read_counter,
)


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


def test_what_was_counted_is_there_after_the_process(boot_id: str, tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        count = counter(boot_id, tmp_path / "gone").memory
        for _ in range(1234):
            count[0] += 1
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    assert read_counter(boot_id) == 1234
    delete_counter(boot_id)
    assert read_counter(boot_id) == 0


def test_a_counter_is_never_taken_over(boot_id: str, tmp_path: Path) -> None:
    first, second = counter(boot_id, tmp_path).memory, counter(boot_id, tmp_path).memory
    second[0] = 9
    assert (first[0], read_counter(boot_id)) == (0, 0)


def test_without_shared_memory_it_counts_in_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "SHARED_MEMORY", tmp_path / "none")
    count = counter("a", tmp_path).memory
    count[0] += 5
    assert (count[0], len(count), count.format, read_counter("a")) == (5, 1, "q", 0)
    delete_counter("a")


def counted_by_a_dead_one(boot_id: str, *folders: Path) -> None:
    child = os.fork()
    if child == 0:
        counter(boot_id, *folders).memory[0] = 7
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


def test_the_counter_of_a_run_with_two_spools_stays_until_both_are_gone(boot_id: str, tmp_path: Path) -> None:
    folders = [tmp_path / name / f"1-{boot_id}" for name in ("topic", "collector")]
    for folder in folders:
        folder.mkdir(parents=True)
    counted_by_a_dead_one(boot_id, *folders)
    for folder in folders:
        delete_orphaned_counters()
        delete_counter(boot_id)
        assert read_counter(boot_id) == 7
        shutil.rmtree(folder)
    delete_counter(boot_id)
    assert read_counter(boot_id) == 0


def test_observers_of_one_process_share_its_count(boot_id: str, tmp_path: Path) -> None:
    shared = ObservedCounter(boot_id)
    shared.keep(tmp_path / "topic")
    kept = shared.memory
    shared.keep(tmp_path / "collector")
    assert shared.memory is kept
    kept[0] = 5
    assert read_counter(boot_id) == 5


def test_the_counter_of_a_run_whose_folder_could_never_be_made_goes_too(boot_id: str, tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("a file")
    counted_by_a_dead_one(boot_id, tmp_path / "spool" / f"1-{boot_id}")
    delete_orphaned_counters()
    assert read_counter(boot_id) == 0


def test_the_counter_of_a_living_run_stays_whatever_becomes_of_its_folder(boot_id: str, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        count = counter(boot_id, tmp_path / "gone").memory
        count[0] = 7
        os.write(writing, b"x")
        signal.pause()
    try:
        os.read(reading, 1)
        delete_orphaned_counters()
        assert read_counter(boot_id) == 7
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)


def test_a_counter_that_was_made_this_moment_stays(boot_id: str, shared_memory: Path) -> None:
    (shared_memory / f"brokerside-{boot_id}").write_bytes((7).to_bytes(8, sys.byteorder))
    delete_orphaned_counters()
    assert read_counter(boot_id) == 7
