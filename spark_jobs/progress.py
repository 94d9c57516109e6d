"""What a job reports to its user: after each batch, in between, and at its end. Imports only the standard library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

SMALL_BATCH = 1_000
"""Kafka records of a batch that has no line of its own."""

SMALL_BATCHES_SECONDS = 60.0
"""Seconds between two lines about small batches."""


@dataclass(frozen=True)
class BatchCounts:
    """The counts of one batch."""

    records: int
    """Kafka records read."""
    events: int
    """Events of known kinds that were written, after deduplication."""
    dead_letters: int
    duplicates: int
    """Kafka records all of whose events were written before."""
    unknown: int
    """Events of kinds that this job does not know. They are skipped."""

    def __str__(self) -> str:
        """Return them as text, without those that are 0 but for records and events."""
        parts = [_plural(self.records, "record", "records"), _plural(self.events, "event", "events")]
        parts += [_plural(self.dead_letters, "dead letter", "dead letters")] if self.dead_letters else []
        parts += [_plural(self.duplicates, "duplicate", "duplicates")] if self.duplicates else []
        parts += [_plural(self.unknown, "event of an unknown kind", "events of unknown kinds")] if self.unknown else []
        return ", ".join(parts)


@dataclass(frozen=True)
class BatchProgress(BatchCounts):
    """The result of one batch."""

    batch: int
    seconds: float
    """From the start of reading to the last table that was written, without Spark's planning and its checkpoint."""

    def __str__(self) -> str:
        """Return one line of text."""
        return f"batch {self.batch}: {super().__str__()} in {self.seconds:.1f} s"


@dataclass(frozen=True)
class Notice:
    """One line about anything that is not a batch."""

    text: str

    def __str__(self) -> str:
        """Return one line of text."""
        return self.text


Notify = Callable[[Notice], None]
"""Reports a notice to the user of the job."""


class ProgressLines:
    """Turns progress into lines: small batches, as of a cluster where little happens, are summed up for a minute."""

    def __init__(self, say: Callable[[object], None], clock: Callable[[], float]) -> None:
        """``clock``: seconds, monotonic."""
        self._say = say
        self._clock = clock
        self._small: list[BatchProgress] = []
        self._next_at = clock()

    def __call__(self, what: BatchProgress | Notice | RunSummary) -> None:
        """Say ``what``, or keep it until a minute is over or something else is said."""
        if isinstance(what, BatchProgress) and what.records < SMALL_BATCH and not what.dead_letters:
            self._small.append(what)
            if self._clock() < self._next_at:
                return
            self._next_at = self._clock() + SMALL_BATCHES_SECONDS
            self._say_small()
        else:
            self._say_small()
            self._say(what)

    def _say_small(self) -> None:
        if self._small:
            self._say(_summed_up(self._small))
            self._small = []


def _summed_up(batches: list[BatchProgress]) -> str:
    if len(batches) == 1:
        return str(batches[0])
    sums = [sum(getattr(one, each.name) for one in batches) for each in fields(BatchCounts)]
    return f"batches {batches[0].batch} to {batches[-1].batch}: {BatchCounts(*sums)}"


@dataclass(frozen=True)
class RunSummary(BatchCounts):
    """The sums of the batches of one run. A batch that was repeated after a crash is in the summaries of both runs."""

    batches: int
    seconds: float
    """From the call to the end, including the start of Spark."""
    failed: tuple[str, ...]
    """Derived tables that could not be computed. The reason of each was reported when it failed."""

    def __str__(self) -> str:
        """Return one line of text."""
        failed = f"; could not be computed: {', '.join(self.failed)}" if self.failed else ""
        return f"{super().__str__()}, {_plural(self.batches, 'batch', 'batches')}, {self.seconds:.1f} s{failed}"


def _plural(count: int, one: str, more: str) -> str:
    return f"{count:,} {one if count == 1 else more}"
