"""The disk behind the outbox: this run's folder, what dead runs left, how much it may hold, and what if it fails.

``put`` belongs to whoever numbers events, everything else to the pump; neither ever sees an error of the disk.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

import structlog
from msgspec.structs import replace

from observers.accounts import Accounts, Gap
from observers.boots import Boot, SpoolSettings, left_behind
from observers.ledger import Account, counter, forget, forget_lost
from observers.spool import Parcel

SYNC = 0.25
"""Seconds that a block may wait for its delivery before the disk is made to have it; and between two such times."""

RETRY = 10.0
"""Seconds after which a disk that failed is tried again, and what dead processes left is looked for again."""

ADOPTED = 0.5
"""Part of the bytes allowed up to which folders of dead runs are taken over (a single one whatever its size): other
processes of this broker may have room for the rest, and this one needs some for itself."""

log = structlog.get_logger("observers")

Put = tuple[Boot, Parcel] | Literal["stored", "full", "failed"]
"""A block that was stored and handed out; or that waits on disk for its turn; or that is not there."""


class Store:
    """What is on disk of one outbox."""

    def __init__(
        self,
        settings: SpoolSettings | None,
        accounts: Accounts,
        *,
        broker_id: int,
        boot_id: str,
        sidecar_version: str,
        clock: Callable[[], float],
    ) -> None:
        """Without ``settings`` it takes nothing."""
        self.failed = False
        """Whether the disk failed when it was last used."""
        self._settings = settings
        self._folder = Path() if settings is None else Path(settings.path) / f"{broker_id}-{boot_id}"
        self.observed = memoryview(array("q", [0])) if settings is None else counter(boot_id, self._folder)
        """One number of 64 bits, which whoever observes counts up."""
        self._accounts = accounts
        self._broker_id = broker_id
        self._boot_id = boot_id
        self._sidecar_version = sidecar_version
        self._clock = clock
        self._boot: Boot | None = None
        self._dead: list[Boot] = []
        self._ended: dict[Gap, Boot] = {}  # dead runs of which only this gap is to be told
        self._unreadable: set[str] = set()
        self._writing = threading.Lock()  # held by whoever writes to the folder of this run, or changes it
        self._lock = threading.Lock()
        self._flying: dict[int, float] = {}  # handed out of this run: first number, and when it was stored
        self._settled = 0
        self._written: Account | None = None
        self._retry_at = 0.0  # when a failed disk is tried again
        self._adopt_at = 0.0
        self._sync_at = 0.0
        if settings is not None:
            self._begin()

    @property
    def idle(self) -> bool:
        """Whether nothing at all waits on disk."""
        return self.done and not self._dead

    @property
    def caught_up(self) -> bool:
        """Whether a block that is put now may be handed out at once: none of this run waits before it."""
        return self._boot is not None and self._boot.spool.caught_up

    @property
    def done(self) -> bool:
        """Whether all of this run is settled."""
        return self._boot is None or self._boot.spool.done

    @property
    def size(self) -> int:
        """Bytes on disk, those of dead runs included."""
        return sum(boot.spool.bytes for boot in self._boots())

    def put(self, first: int, last: int, level: int, json: bytes, *, direct: bool) -> Put:
        """Store a block; ``direct``, where it caught up: and hand it out."""
        if self._settings is None or (self.failed and self._clock() < self._retry_at):
            return "failed"
        if self.size + len(json) > self._settings.max_bytes:
            return "full"
        now = self._clock()
        with self._writing:
            boot = self._boot
            if boot is None:
                return "failed"
            try:
                parcel = boot.spool.append(first, last, level, json, now, direct=direct)
            except OSError as error:
                self._fail(error)
                return "failed"
            if parcel is not None:
                with self._lock:
                    self._flying[first] = now
            self._accounts.store(first, last)
        if self.failed:
            self.failed = False
            log.info("audit_spool_works_again", path=self._settings.path)
        return "stored" if parcel is None else (boot, parcel)

    def take(self) -> tuple[Boot, Parcel, bytes] | None:
        """Hand out the next block: of dead runs, then of this one."""
        for boot in self._boots():
            try:
                taken = boot.spool.take()
            except OSError as error:
                self._fail(error)
                return None
            self._count_torn(boot)
            if taken is not None:
                parcel, json = taken
                if boot is self._boot:
                    with self._lock:
                        self._flying[parcel.first] = parcel.stored_at
                return boot, parcel, json
        return None

    def settle(self, boot: Boot, parcel: Parcel, events: int) -> None:
        """Take note that so many events of a block are needed no more."""
        if boot.spool.settle(parcel, events) and boot.boot_id == self._boot_id:
            with self._lock:
                self._flying.pop(parcel.first, None)

    def record(self) -> None:
        """Write the ledger."""
        if not self.failed:
            try:
                self._write(closed=False)
            except OSError as error:
                self._fail(error)

    def keep(self, now: float) -> None:
        """Do what is due: try again what failed, look for dead runs and end them, sync, delete what is settled."""
        if self._settings is None:
            return
        try:
            if self._boot is None and now >= self._retry_at:
                self._begin()
            if now >= self._adopt_at:
                self._adopt_at = now + RETRY
                self.look()
                forget_lost()
                self._adopt(self._settings)
            self._end_dead()
            if self._boot is not None:
                self._keep_own(self._boot, now)
        except OSError as error:
            self._fail(error)

    def look(self) -> None:
        """Go on in a new folder if that of this run is gone. What is on its way to the topic stays so."""
        boot = self._boot
        try:
            if boot is None or self._settings is None or not boot.ledger.gone:
                return
        except OSError as error:
            self._fail(error)
            return
        with self._writing:
            boot.spool.give_up()
            self._boot = None
        log.warning("audit_spool_gone", path=self._settings.path, lost=sum(torn.events for torn in boot.spool.torn))
        self._count_torn(boot)
        account = self._account(closed=True)
        with suppress(OSError):  # so that whoever finds it again, where it was only moved, sends nothing of it
            boot.ledger.write(replace(account, settled=account.given))
        boot.leave()
        self._begin()

    def close(self) -> None:
        """Let go of everything: what is settled is deleted, the rest stays for the next run."""
        for dead in [*self._dead, *self._ended.values()]:
            dead.leave()
        self._dead, self._ended = [], {}
        boot = self._boot
        if boot is None:
            forget(self._boot_id)
            return
        if boot.spool.done and self._accounts.kept == self._accounts.counts().emitted:
            self._boot = None
            boot.remove()
            return
        try:
            self._write(closed=True)
            boot.spool.trim()
            boot.spool.sync()
            boot.ledger.sync()
        except OSError as error:
            self._fail(error)
        self._boot = None
        boot.leave()

    def _boots(self) -> list[Boot]:
        return self._dead if self._boot is None else [*self._dead, self._boot]

    def _begin(self) -> None:
        """Make the folder of this run."""
        try:
            self._boot = Boot.begin(self._folder, self._boot_id, self._account(closed=False))
        except OSError as error:
            self._fail(error)

    def _adopt(self, settings: SpoolSettings) -> None:
        limit = settings.max_bytes * ADOPTED
        held = sum(boot.spool.bytes for boot in self._dead)
        for boot in left_behind(Path(settings.path), self._broker_id, self._unreadable):
            if held and held + boot.spool.bytes > limit:
                boot.leave()
                continue
            held += boot.spool.bytes
            self._dead.append(boot)
            log.info("audit_spool_found", boot_id=boot.boot_id, bytes=boot.spool.bytes)

    def _end_dead(self) -> None:
        for boot in list(self._dead):
            if not boot.spool.done:
                boot.spool.trim()
                continue
            self._dead.remove(boot)
            gap = boot.gap()
            if gap is None:
                boot.remove()
                continue
            boot.ledger.write(replace(boot.account, settled=boot.spool.read_to))  # a killed one need not do it again
            boot.spool.trim()
            self._ended[gap] = boot
            self._accounts.add_gap(gap)
        for gap in self._accounts.told():
            if gap in self._ended:
                self._ended.pop(gap).remove()

    def _keep_own(self, boot: Boot, now: float) -> None:
        kept = self._accounts.kept  # before the rest: what is put meanwhile is above it
        with self._lock:
            flying = dict(self._flying)
        waits = boot.spool.next_first()
        firsts = [*flying, *([] if waits is None else [waits])]
        self._settled = min(firsts) - 1 if firsts else kept
        self.record()
        boot.spool.trim()
        old = waits is not None or any(stored_at <= now - SYNC for stored_at in flying.values())
        if old and boot.spool.unsynced and now >= self._sync_at:
            self._sync_at = now + SYNC
            boot.spool.sync()
            boot.ledger.sync()

    def _account(self, *, closed: bool) -> Account:
        counts = self._accounts.counts()
        return Account(
            self._broker_id,
            self._sidecar_version,
            observed=self.observed[0],
            taken=counts.taken,
            hidden=counts.hidden,
            given=counts.emitted,
            lost=counts.lost,
            settled=self._settled,
            closed=closed,
        )

    def _write(self, *, closed: bool) -> None:
        with self._writing:
            account = self._account(closed=closed)
            if self._boot is not None and account != self._written:
                self._boot.ledger.write(account)
                self._written = account

    def _count_torn(self, boot: Boot) -> None:
        """Count what could not be read back."""
        torn, boot.spool.torn = boot.spool.torn, []
        for first, last, events in torn:
            if not boot.spool.gone:
                log.warning("audit_spool_torn", boot_id=boot.boot_id, first=first, last=last)
            if boot.boot_id == self._boot_id:
                self._accounts.lose("spool_torn", first, last, spooled=True, events=events)
            elif first <= last:
                self._accounts.add_gap(Gap("spool_torn", boot.boot_id, first, last))

    def _fail(self, error: OSError) -> None:
        if not self.failed and self._settings is not None:
            log.warning("audit_spool_failed", path=self._settings.path, error=str(error), retry_in=RETRY)
        self.failed = True
        self._retry_at = self._clock() + RETRY
