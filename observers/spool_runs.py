"""Runs of a sidecar with events on disk: the run of this process, and those of dead processes."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

import structlog
from msgspec import Struct

from observers.delivery_accounting import Gap
from observers.errors import ObserverError
from observers.ledger import LEDGER_FILE, Ledger, LedgerEntry, LedgerLocked
from observers.observed_counter import delete_counter, read_counter
from observers.spool import Spool

ABANDONED_FOLDER_AGE = 60.0
"""Seconds after which a folder without a ledger is deleted: its process died while it created the folder."""

log = structlog.get_logger("observers")


class SpoolSettings(Struct, frozen=True):
    """The folder of the spool, and the most bytes it may hold."""

    path: str
    max_bytes: int


def check_path(settings: SpoolSettings, name: str) -> None:
    """Raise ObserverError where this user cannot create or write the folder of the spool. Creates nothing.

    ``name``: that of the setting with its path.
    """
    folder = next(one for one in (Path(settings.path), *Path(settings.path).parents) if os.path.lexists(one))
    if not folder.is_dir():
        reason = f"{folder} is not a folder"
    elif os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        return
    elif os.statvfs(folder).f_flag & os.ST_RDONLY:
        reason = f"the file system of {folder} is read-only"
    else:
        reason = f"user {os.geteuid()} may not write to {folder}"
    raise ObserverError(f"{name}: {settings.path} cannot be written: {reason}")


class SpoolRun:
    """One run: its folder ``<broker id>-<boot id>``, its ledger, its spool."""

    def __init__(self, boot_id: str, ledger: Ledger, entry: LedgerEntry) -> None:
        self.boot_id = boot_id
        self.ledger = ledger
        self.entry = entry
        """The ledger entry at the start. That of a dead run never changes."""
        self.spool = Spool(ledger.folder, after=entry.settled)

    @classmethod
    def create(cls, folder: Path, boot_id: str, entry: LedgerEntry) -> Self:
        """Create the folder of a new run. Raises OSError."""
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.exists():  # left by an earlier attempt that failed
            shutil.rmtree(folder)
        return cls(boot_id, Ledger.create(folder, entry), entry)

    def find_gap(self) -> Gap | None:
        """Return the numbers of a dead run that were never spooled, given or not, or None. Its spool must be read."""
        reached = self.spool.read_to
        given = max(self.entry.given, reached)
        if not self.entry.closed:
            observed = max(self.entry.observed, read_counter(self.boot_id))
            given += max(0, observed - self.entry.taken)
        if given <= reached:
            return None
        return Gap("closed" if self.entry.closed else "killed", self.boot_id, reached + 1, given)

    def release(self) -> None:
        """Close the files. Another process may adopt the folder then."""
        self.spool.close()
        self.ledger.close()

    def delete(self) -> None:
        """Delete the folder and the counter."""
        self.spool.close()
        shutil.rmtree(self.ledger.folder, ignore_errors=True)
        delete_counter(self.boot_id)
        self.ledger.close()


def adopt_dead_runs(path: Path, broker_id: int, unreadable: set[str]) -> Iterator[SpoolRun]:
    """Yield the dead runs of this broker's sidecars, oldest first. Each is locked when it is yielded.

    ``unreadable``: names of folders that were logged as unreadable; new ones are added.
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
