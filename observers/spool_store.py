"""The disk behind the outbox: the folder of this run, folders of dead runs, the size limit, and errors of the disk.

The thread that numbers events calls ``store_block`` and ``write_ledger``, the pump everything else. No method raises an
error of the disk.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

import structlog
from msgspec.structs import replace

from observers.delivery_accounting import DeliveryAccounting, Gap
from observers.ledger import LedgerEntry
from observers.observed_counter import ObservedCounter, delete_counter, delete_orphaned_counters
from observers.spool import StoredBlock
from observers.spool_runs import SpoolRun, SpoolSettings, adopt_dead_runs

SYNC_INTERVAL = 0.25
"""Seconds that a block may wait for its delivery before the disk is synced, and between two syncs."""

SPOOL_RETRY_INTERVAL = 10.0
"""Seconds after which a disk that failed is tried again, and between two searches for dead runs."""

MAX_ADOPTED_SHARE = 0.5
"""Part of ``max_bytes`` up to which folders of dead runs are adopted; a single folder may be larger. The rest is for
this run, and other processes of this broker may adopt the other folders."""

log = structlog.get_logger("observers")

StoreResult = tuple[SpoolRun, StoredBlock] | Literal["stored", "full", "failed"]
"""A block that was stored and handed out, or whether it waits on disk, or why it is not on disk."""


class SpoolStore:
    """The events of one outbox that are on disk."""

    def __init__(
        self,
        settings: SpoolSettings | None,
        accounting: DeliveryAccounting,
        observed: ObservedCounter,
        *,
        broker_id: int,
        boot_id: str,
        sidecar_version: str,
        clock: Callable[[], float],
    ) -> None:
        """Without ``settings`` nothing is stored. With them ``observed`` outlives the process."""
        self.problem = ""
        """Why the last use of the disk failed, in one sentence; empty if it did not."""
        self.searched_at = 0.0 if settings is not None else math.inf
        """By the clock: what was on disk by then is counted by ``undelivered_of_dead_runs`` here, or in the process
        that has adopted it. 0: nothing is known, as before the first search and after ``close``; infinite: nothing is
        ever there."""
        self._settings = settings
        self._folder = Path() if settings is None else Path(settings.path) / f"{broker_id}-{boot_id}"
        self._observed = observed
        self._accounting = accounting
        self._broker_id = broker_id
        self._boot_id = boot_id
        self._sidecar_version = sidecar_version
        self._clock = clock
        self._own_run: SpoolRun | None = None
        self._dead_runs: list[SpoolRun] = []
        self._waiting_runs: dict[str, Mapping[int, int]] = {}  # dead runs that will be adopted later: their events
        self._ended_runs: dict[Gap, SpoolRun] = {}  # dead runs whose gap is not reported yet
        self._unreadable: set[str] = set()
        self._writing = threading.Lock()  # guards the folder of this run
        self._lock = threading.Lock()
        self._in_flight: dict[int, float] = {}  # blocks handed out of this run: first number, and when it was stored
        self._settled = 0
        self._written: LedgerEntry | None = None
        self._retry_at = 0.0  # when a failed disk is tried again
        self._adopt_at = 0.0
        self._sync_at = 0.0
        if settings is not None:
            observed.keep(self._folder)
            self._create_own_run()

    @property
    def idle(self) -> bool:
        """Whether no event waits on disk."""
        return self.done and not self._dead_runs

    @property
    def caught_up(self) -> bool:
        """Whether no block of this run waits on disk, so that a new one may be handed out at once."""
        return self._own_run is not None and self._own_run.spool.caught_up

    @property
    def done(self) -> bool:
        """Whether all blocks of this run are settled."""
        return self._own_run is None or self._own_run.spool.done

    @property
    def size(self) -> int:
        """Bytes on disk, including those of dead runs."""
        return sum(run.spool.bytes for run in self._all_runs())

    def undelivered_of_dead_runs(self) -> Counter[int]:
        """Return the events of dead runs that are on disk and not settled, by schema level. Waits for nothing.

        Those of runs that other processes have adopted are not among them.
        """
        events = Counter[int]()
        for found in [*(run.spool.unsettled for run in self._dead_runs), *self._waiting_runs.values()]:
            events.update(found)
        return events

    def store_block(self, first: int, last: int, level: int, json: bytes, *, direct: bool) -> StoreResult:
        """Store a block. ``direct``, which needs ``caught_up``: hand it out as well."""
        if self._settings is None or (self.problem and self._clock() < self._retry_at):
            return "failed"
        if self.size + len(json) > self._settings.max_bytes:
            return "full"
        now = self._clock()
        with self._writing:
            run = self._own_run
            if run is None:
                return "failed"
            try:
                stored = run.spool.append(first, last, level, json, now, direct=direct)
            except OSError as error:
                self._record_failure(error)
                return "failed"
            if stored is not None:
                with self._lock:
                    self._in_flight[first] = now
            self._accounting.record_stored(first, last)
        if self.problem:
            self.problem = ""
            log.info("audit_spool_works_again", path=self._settings.path)
        return "stored" if stored is None else (run, stored)

    def read_next_block(self) -> tuple[SpoolRun, StoredBlock, bytes] | None:
        """Hand out the next block, of dead runs first, with its events. Return None if there is none."""
        for run in self._all_runs():
            try:
                taken = run.spool.read_next()
            except OSError as error:
                self._record_failure(error)
                return None
            self._record_torn(run)
            if taken is not None:
                stored, json = taken
                if run is self._own_run:
                    with self._lock:
                        self._in_flight[stored.first] = stored.stored_at
                return run, stored, json
        return None

    def settle_block(self, run: SpoolRun, stored: StoredBlock, events: int) -> None:
        """Settle ``events`` events of a block: they are delivered, or lost and counted."""
        if run.spool.settle_block(stored, events) and run.boot_id == self._boot_id:
            with self._lock:
                self._in_flight.pop(stored.first, None)

    def write_ledger(self) -> None:
        """Write the ledger of this run. Records an error of the disk, and does not raise it."""
        if not self.problem:
            try:
                self._write_ledger(closed=False)
            except OSError as error:
                self._record_failure(error)

    def maintain(self, now: float) -> None:
        """Retry a failed disk, adopt dead runs and delete finished ones, sync the disk, and delete settled segments."""
        if self._settings is None:
            return
        try:
            if self._own_run is None and now >= self._retry_at:
                self._create_own_run()
            if now >= self._adopt_at:
                self._adopt_at = now + SPOOL_RETRY_INTERVAL
                self.replace_deleted_folder()
                delete_orphaned_counters()
                self._adopt_runs(self._settings)
                self.searched_at = now
            self._delete_finished_runs()
            if self._own_run is not None:
                self._maintain_own_run(self._own_run, now)
        except OSError as error:
            self._record_failure(error)

    def replace_deleted_folder(self) -> None:
        """Create a new folder if that of this run is gone. Records that the producer holds are still delivered."""
        run = self._own_run
        try:
            if run is None or self._settings is None or not run.ledger.is_gone:
                return
        except OSError as error:
            self._record_failure(error)
            return
        with self._writing:
            run.spool.abandon()
            self._own_run = None
        log.warning("audit_spool_gone", path=self._settings.path, lost=sum(torn.events for torn in run.spool.torn))
        self._record_torn(run)
        entry = self._ledger_entry(closed=True)
        with suppress(OSError):  # if the folder was only moved, no process that finds it sends its events again
            run.ledger.write_entry(replace(entry, settled=entry.given))
        run.release()
        self._create_own_run()

    def close(self) -> None:
        """Release all folders. Delete that of this run if all is settled, else leave it for the next run."""
        self.searched_at = 0.0
        for dead in [*self._dead_runs, *self._ended_runs.values()]:
            dead.release()
        self._dead_runs, self._ended_runs = [], {}
        run = self._own_run
        if run is None:
            delete_counter(self._boot_id)
            return
        if run.spool.done and self._accounting.last_kept == self._accounting.counts().emitted:
            self._own_run = None
            run.delete()
            return
        try:
            self._write_ledger(closed=True)
            run.spool.delete_settled_segments()
            run.spool.sync()
            run.ledger.sync()
        except OSError as error:
            self._record_failure(error)
        self._own_run = None
        run.release()

    def _all_runs(self) -> list[SpoolRun]:
        return self._dead_runs if self._own_run is None else [*self._dead_runs, self._own_run]

    def _create_own_run(self) -> None:
        """Create the folder of this run."""
        try:
            self._own_run = SpoolRun.create(self._folder, self._boot_id, self._ledger_entry(closed=False))
        except OSError as error:
            self._record_failure(error)

    def _adopt_runs(self, settings: SpoolSettings) -> None:
        limit = settings.max_bytes * MAX_ADOPTED_SHARE
        held = sum(run.spool.bytes for run in self._dead_runs)
        waiting: dict[str, Mapping[int, int]] = {}
        for run in adopt_dead_runs(Path(settings.path), self._broker_id, self._unreadable):
            if held and held + run.spool.bytes > limit:
                waiting[run.boot_id] = self._waiting_runs.get(run.boot_id) or run.spool.count_found()
                run.release()
                continue
            held += run.spool.bytes
            run.spool.count_found()
            self._dead_runs.append(run)
            log.info("audit_spool_found", boot_id=run.boot_id, bytes=run.spool.bytes)
        self._waiting_runs = waiting

    def _delete_finished_runs(self) -> None:
        for run in list(self._dead_runs):
            if not run.spool.done:
                run.spool.delete_settled_segments()
                continue
            self._dead_runs.remove(run)
            gap = run.find_gap()
            if gap is None:
                run.delete()
                continue
            run.ledger.write_entry(
                replace(run.entry, settled=run.spool.read_to)
            )  # a later process need not send these again
            run.spool.delete_settled_segments()
            self._ended_runs[gap] = run
            self._accounting.add_gap(gap)
        for gap in self._accounting.drain_reported_gaps():
            if gap in self._ended_runs:
                self._ended_runs.pop(gap).delete()

    def _maintain_own_run(self, run: SpoolRun, now: float) -> None:
        kept = self._accounting.last_kept  # read first: blocks stored meanwhile have higher numbers
        with self._lock:
            in_flight = dict(self._in_flight)
        waits = run.spool.peek_first()
        firsts = [*in_flight, *([] if waits is None else [waits])]
        self._settled = min(firsts) - 1 if firsts else kept
        self.write_ledger()
        run.spool.delete_settled_segments()
        old = waits is not None or any(stored_at <= now - SYNC_INTERVAL for stored_at in in_flight.values())
        if old and run.spool.unsynced and now >= self._sync_at:
            self._sync_at = now + SYNC_INTERVAL
            run.spool.sync()
            run.ledger.sync()

    def _ledger_entry(self, *, closed: bool) -> LedgerEntry:
        counts = self._accounting.counts()
        return LedgerEntry(
            self._broker_id,
            self._sidecar_version,
            observed=self._observed.memory[0],
            taken=counts.taken,
            hidden=counts.hidden,
            given=counts.emitted,
            lost=counts.lost,
            settled=self._settled,
            closed=closed,
        )

    def _write_ledger(self, *, closed: bool) -> None:
        with self._writing:
            entry = self._ledger_entry(closed=closed)
            if self._own_run is not None and entry != self._written:
                self._own_run.ledger.write_entry(entry)
                self._written = entry

    def _record_torn(self, run: SpoolRun) -> None:
        """Count the ranges that could not be read back as lost."""
        torn, run.spool.torn = run.spool.torn, []
        for first, last, events, level in torn:
            if not run.spool.is_abandoned:
                log.warning("audit_spool_torn", boot_id=run.boot_id, first=first, last=last)
            if run.boot_id == self._boot_id:
                self._accounting.record_lost("spool_torn", first, last, level=level, spooled=True, events=events)
            elif first <= last:
                self._accounting.add_gap(Gap("spool_torn", run.boot_id, first, last))

    def _record_failure(self, error: OSError) -> None:
        path = "" if self._settings is None else self._settings.path
        if not self.problem:
            log.warning(
                "audit_spool_failed", path=path, error=error.strerror or str(error), retry_in=SPOOL_RETRY_INTERVAL
            )
        self.problem = f"the spool {path} cannot be used: {error.strerror or error}; audit events wait in memory alone"
        self._retry_at = self._clock() + SPOOL_RETRY_INTERVAL
