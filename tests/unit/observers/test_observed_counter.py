"""What a process has observed is counted where its next run finds it."""

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
