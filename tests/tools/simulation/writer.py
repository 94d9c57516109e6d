"""A sidecar's transactional producer of one partition of the groups' topic, as ``proxy.fleet`` runs it on a thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import NamedTuple

from proxy.coordinator.events import (
    Event,
    PartitionLost,
    PartitionOffsets,
    PartitionOpened,
    WriteAborted,
    WriteCommitted,
)
from proxy.coordinator.records import ClaimRecord, GroupRecord
from tests.tools.simulation.kafka import TRANSACTION_TIMEOUT, FencedError, GroupsLog, Kafka
from tests.tools.simulation.timeline import Process

CONFIRMATION = -1
"""The number of a write that is only the claim."""

MUTE = 5000
"""Milliseconds after ``state.write.timeout.ms`` until a writer that commits nothing is given up."""

RETRY = 300
"""Milliseconds between two attempts to reach Kafka."""


class Job(NamedTuple):
    write: int
    records: tuple[GroupRecord, ...]
    offsets: Mapping[str, PartitionOffsets]
    asked_at: int


class Writer:
    """From ``open`` to ``stop``. ``report`` gets the events of the coordinator.

    All jobs that come while a transaction is under way go into the next one. Each step needs the process to run and
    Kafka to be reachable. A commit whose response is lost is asked for again until its outcome is known.
    """

    def __init__(
        self,
        kafka: Kafka,
        process: Process,
        log: GroupsLog,
        broker_id: int,
        delivery_timeout_ms: int,
        report: Callable[[Event], None],
    ) -> None:
        self.epoch = 0
        self._kafka, self._process, self._log, self._report = kafka, process, log, report
        self._broker_id, self._delivery_timeout = broker_id, delivery_timeout_ms
        self._random: Random = process.random
        self._source = -100 - log.number
        self._boot_id = f"{broker_id}.{process.runs}"
        self._claim: ClaimRecord | None = None
        self._jobs: list[Job] = []
        self._is_busy = False
        self._is_over = False
        self._progress = 0
        """Commits so far."""
        self._is_watched = False

    def open(self) -> None:
        """Fence the predecessor, read the log to its end, write the claim."""
        self._step(self._fence)

    def write(self, job: Job) -> None:
        self._jobs.append(job)
        self._watch()
        if not self._is_busy:
            self._begin()

    def _watch(self) -> None:
        """Give it up when nothing is committed from now on, though something is to be written."""
        if self._is_watched or self._is_over:
            return
        self._is_watched, progress = True, self._progress

        def check() -> None:
            if progress == self._progress and not self._is_over:
                self._jobs.clear()  # what is under way may still be committed
                self._report(PartitionLost(self._log.number, "stuck"))
                self.release()

        self._process.later(self._delivery_timeout + MUTE, self._source, check)

    def release(self) -> None:
        """Write what there is to write, and report nothing any more."""
        self._report = lambda event: None

    def stop(self) -> None:
        """What is being written may become committed or not."""
        self._is_over = True

    def _step(self, action: Callable[[], None]) -> None:
        """Ask Kafka for something, which takes a time."""
        delay = self._random.choice((1, 3, 3, 5, 20, 200))
        self._process.later(delay, self._source, lambda: self._reach(action))

    def _reach(self, action: Callable[[], None]) -> None:
        if self._is_over:
            return
        if self._kafka.is_reachable(self._process.name):
            action()
        else:
            self._process.later(RETRY, self._source, lambda: self._reach(action))

    # Opening

    def _fence(self) -> None:
        self.epoch = self._kafka.fence(self._log)
        self._step(self._read)

    def _read(self) -> None:
        last = 0 if self._log.claim is None else self._log.claim.claim
        records = tuple(self._log.records.values())
        self._claim = ClaimRecord(self._log.number, last + 1, self._broker_id, self._boot_id)
        claimed_at = self._process.clock()
        self._step(lambda: self._write_claim(records, claimed_at))

    def _write_claim(self, records: tuple[GroupRecord, ...], claimed_at: int) -> None:
        claim = self._claim
        assert claim is not None
        try:
            self._kafka.commit(self._log, self.epoch, self._process.name, self._kafka.timeline.now, (), {}, claim)
        except FencedError:
            self._lose("open_failed")
            return
        opened = PartitionOpened(self._log.number, claim.claim, claimed_at, records)
        self._step(lambda: self._report(opened))

    # Writing

    def _begin(self) -> None:
        self._is_busy = True
        jobs, self._jobs = self._jobs, []
        began, began_at = self._kafka.timeline.now, self._process.clock()
        delay = self._random.choice((1, 3, 3, 5, 20, 200))
        self._process.later(delay, self._source, lambda: self._produce(jobs, began, began_at))

    def _produce(self, jobs: list[Job], began: int, began_at: int) -> None:
        """Records are sent until they have been under way for ``delivery.timeout.ms``; then it is aborted."""
        if self._is_over:
            return
        age = self._kafka.timeline.now - began
        if age > self._delivery_timeout or self._random.random() < 0.005:
            self._reach(lambda: self._abort(jobs))
        elif self._kafka.is_reachable(self._process.name):
            self._step(lambda: self._commit(jobs, began, began_at))
        else:
            self._process.later(RETRY, self._source, lambda: self._produce(jobs, began, began_at))

    def _abort(self, jobs: list[Job]) -> None:
        if self.epoch != self._log.epoch:
            self._lose("fenced")
            return
        self._done(lambda job: self._report(WriteAborted(self._log.number, job.write, "timed out")), jobs)

    def _commit(self, jobs: list[Job], began: int, began_at: int) -> None:
        if self._kafka.timeline.now - began > TRANSACTION_TIMEOUT:
            self._kafka.expire(self._log, self.epoch)
        records = tuple(record for job in jobs for record in job.records)
        offsets: dict[str, dict[tuple[str, int], int]] = {}
        for job in jobs:
            for group, committed in job.offsets.items():
                offsets.setdefault(group, {}).update(committed)
        claim = self._claim if any(job.write == CONFIRMATION for job in jobs) else None
        try:
            asked_at = min(job.asked_at for job in jobs)
            self._kafka.commit(self._log, self.epoch, self._process.name, asked_at, records, offsets, claim)
        except FencedError:
            self._step(lambda: self._lose("fenced"))
            return
        if self._random.random() < 0.01:  # the response is lost
            self._process.later(
                self._random.randrange(8000), self._source, lambda: self._reach_committed(jobs, began_at)
            )
        else:
            self._step(lambda: self._committed(jobs, began_at))

    def _reach_committed(self, jobs: list[Job], began_at: int) -> None:
        self._reach(lambda: self._committed(jobs, began_at))

    def _committed(self, jobs: list[Job], began_at: int) -> None:
        """Known only now, even where another producer has fenced this one meanwhile."""
        self._progress, self._is_watched = self._progress + 1, False
        self._done(lambda job: self._report(WriteCommitted(self._log.number, job.write, began_at)), jobs)

    def _done(self, report: Callable[[Job], None], jobs: list[Job]) -> None:
        self._is_busy = False
        for job in jobs:
            if not self._is_over:
                report(job)
        if self._jobs and not self._is_busy and not self._is_over:
            self._begin()
        if self._is_busy:
            self._watch()

    def _lose(self, reason: str) -> None:
        self.stop()
        self._report(PartitionLost(self._log.number, reason))
