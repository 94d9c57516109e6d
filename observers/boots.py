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

from observers.accounts import Gap
from observers.ledger import NAME, Account, Held, Ledger, counted, forget
from observers.spool import Spool

ABANDONED = 60.0
"""Seconds after which a folder without a ledger is nobody's: its process died while making it."""

log = structlog.get_logger("observers")


class SpoolSettings(Struct, frozen=True):
    """Where events wait, and how many bytes of them."""

    path: str
    max_bytes: int


class Boot:
    """One run: its folder ``<broker id>-<boot id>``, its ledger, its spool."""

    def __init__(self, boot_id: str, ledger: Ledger, account: Account) -> None:
        self.boot_id = boot_id
        self.ledger = ledger
        self.account = account
        """As it was at the start; of a dead run for good."""
        self.spool = Spool(ledger.folder, after=account.settled)

    @classmethod
    def begin(cls, folder: Path, boot_id: str, account: Account) -> Self:
        """Make the folder of a new run. Raises OSError."""
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.exists():  # from an attempt that failed half-way
            shutil.rmtree(folder)
        return cls(boot_id, Ledger.create(folder, account), account)

    def gap(self) -> Gap | None:
        """Of a dead run whose spool is read: the numbers that were given, or would have been, and never spooled."""
        reached = self.spool.read_to
        given = max(self.account.given, reached)
        if not self.account.closed:
            observed = max(self.account.observed, counted(self.boot_id))
            given += max(0, observed - self.account.taken)
        if given <= reached:
            return None
        return Gap("closed" if self.account.closed else "killed", self.boot_id, reached + 1, given)

    def leave(self) -> None:
        """Let go of the folder; another process may have it now."""
        self.spool.close()
        self.ledger.close()

    def remove(self) -> None:
        """Delete the folder: nobody needs anything of it."""
        self.spool.close()
        shutil.rmtree(self.ledger.folder, ignore_errors=True)
        forget(self.boot_id)
        self.ledger.close()


def left_behind(path: Path, broker_id: int, unreadable: set[str]) -> Iterator[Boot]:
    """Return the runs of this broker's sidecars that are dead, the oldest first, each locked as it is returned.

    ``unreadable``: folders that were logged as such before; more are added.
    """
    folders = [folder for folder in path.glob(f"{broker_id}-*") if folder.is_dir()]
    for folder in sorted(folders, key=_modified):
        try:
            boot = _adopted(folder)
        except Held:
            continue
        except FileNotFoundError:
            if 0 < _modified(folder) < time.time() - ABANDONED:
                shutil.rmtree(folder, ignore_errors=True)
            continue
        except (OSError, ValueError) as error:
            if folder.name not in unreadable:
                unreadable.add(folder.name)
                log.warning("audit_spool_left", folder=folder.name, error=str(error))
            continue
        yield boot


def _adopted(folder: Path) -> Boot:
    ledger, account = Ledger.adopt(folder)
    try:
        return Boot(folder.name.partition("-")[2], ledger, account)
    except BaseException:
        ledger.close()
        raise


def _modified(folder: Path) -> float:
    with suppress(OSError):
        return (folder / NAME).stat().st_mtime if (folder / NAME).exists() else folder.stat().st_mtime
    return 0.0
