"""What a job says for people: after each batch, in between, and at its end. Imports nothing but Python."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BatchProgress:
    """What one batch did."""

    batch: int
    records: int
    """Kafka records read."""
    events: int
    """Events taken, of all kinds that are known, after deduplication."""
    dead_letters: int
    duplicates: int
    """Kafka records that were there before."""
    unknown: int
    """Events of a kind that this job does not know; they are passed over."""
    seconds: float

    def __str__(self) -> str:
        """Return one line for a person."""
        return f"batch {self.batch}: {_counts(self)} in {self.seconds:.1f} s"


@dataclass(frozen=True)
class Notice:
    """What else there is to say while a job runs."""

    text: str

    def __str__(self) -> str:
        """Return one line for a person."""
        return self.text


@dataclass(frozen=True)
class RunSummary:
    """What one run did, all batches together. A batch that was repeated after a crash is in both runs' summaries."""

    records: int
    events: int
    dead_letters: int
    duplicates: int
    unknown: int
    batches: int
    seconds: float
    """From the call to the end, with the start of Spark."""
    failed: tuple[str, ...]
    """Tables that are computed from others and could not be; what is wrong was said when it happened."""

    def __str__(self) -> str:
        """Return one line for a person."""
        failed = f"; could not be computed: {', '.join(self.failed)}" if self.failed else ""
        return f"{_counts(self)}, {_plural(self.batches, 'batch', 'batches')}, {self.seconds:.1f} s{failed}"


def _counts(of: BatchProgress | RunSummary) -> str:
    parts = [_plural(of.records, "record", "records"), _plural(of.events, "event", "events")]
    parts += [_plural(of.dead_letters, "dead letter", "dead letters")] if of.dead_letters else []
    parts += [_plural(of.duplicates, "duplicate", "duplicates")] if of.duplicates else []
    parts += [_plural(of.unknown, "event of an unknown kind", "events of unknown kinds")] if of.unknown else []
    return ", ".join(parts)


def _plural(count: int, one: str, more: str) -> str:
    return f"{count:,} {one if count == 1 else more}"
