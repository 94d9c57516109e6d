"""Runs of a sidecar whose events wait on disk: this one, and those that dead processes left behind."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

import structlog
from msgspec import Struct

from observers.delivery_accounting import Gap
from observers.ledger import LEDGER_FILE, Ledger, LedgerEntry, LedgerLocked, delete_counter, read_counter
from observers.spool import Spool

ABANDONED_FOLDER_AGE = 60.0
"""Seconds after which a folder without a ledger is nobody's: its process died while making it."""

log = structlog.get_logger("observers")


class SpoolSettings(Struct, frozen=True):
    """Where events wait, and how many bytes of them."""

    path: str
    max_bytes: int


class SpoolRun:
    """One run: its folder ``<broker id>-<boot id>``, its ledger, its spool."""

    def __init__(self, boot_id: str, ledger: Ledger, entry: LedgerEntry) -> None:
        self.boot_id = boot_id
        self.ledger = ledger
        self.entry = entry
        """As it was at the start; of a dead run for good."""
        self.spool = Spool(ledger.folder, after=entry.settled)

    @classmethod
    def create(cls, folder: Path, boot_id: str, entry: LedgerEntry) -> Self:
        """Make the folder of a new run. Raises OSError."""
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.exists():  # from an attempt that failed half-way
            shutil.rmtree(folder)
        return cls(boot_id, Ledger.create(folder, entry), entry)

    def find_gap(self) -> Gap | None:
        """Of a dead run whose spool is read: the numbers that were given, or would have been, and never spooled."""
        reached = self.spool.read_to
        given = max(self.entry.given, reached)
        if not self.entry.closed:
            observed = max(self.entry.observed, read_counter(self.boot_id))
            given += max(0, observed - self.entry.taken)
        if given <= reached:
            return None
        return Gap("closed" if self.entry.closed else "killed", self.boot_id, reached + 1, given)

    def release(self) -> None:
        """Let go of the folder; another process may have it now."""
        self.spool.close()
        self.ledger.close()

    def delete(self) -> None:
        """Delete the folder: nobody needs anything of it."""
        self.spool.close()
        shutil.rmtree(self.ledger.folder, ignore_errors=True)
        delete_counter(self.boot_id)
        self.ledger.close()


def adopt_dead_runs(path: Path, broker_id: int, unreadable: set[str]) -> Iterator[SpoolRun]:
    """Return the runs of this broker's sidecars that are dead, the oldest first, each locked as it is returned.

    ``unreadable``: folders that were logged as such before; more are added.
    """
    folders = [folder for folder in path.glob(f"{broker_id}-*") if folder.is_dir()]
    for folder in sorted(folders, key=_modified):
        try:
            run = _adopt(folder)
        except LedgerLocked:
            continue
        except FileNotFoundError:
            if 0 < _modified(folder) < time.time() - ABANDONED_FOLDER_AGE:
                shutil.rmtree(folder, ignore_errors=True)
            continue
        except (OSError, ValueError) as error:
            if folder.name not in unreadable:
                unreadable.add(folder.name)
                log.warning("audit_spool_left", folder=folder.name, error=str(error))
            continue
        yield run


def _adopt(folder: Path) -> SpoolRun:
    ledger, entry = Ledger.adopt(folder)
    try:
        return SpoolRun(folder.name.partition("-")[2], ledger, entry)
    except BaseException:
        ledger.close()
        raise


def _modified(folder: Path) -> float:
    with suppress(OSError):
        return (folder / LEDGER_FILE).stat().st_mtime if (folder / LEDGER_FILE).exists() else folder.stat().st_mtime
    return 0.0
