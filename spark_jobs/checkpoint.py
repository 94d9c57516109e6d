"""A checkpoint and its tables belong together: what would count twice, or lose, is refused before anything is read.

Spark numbers batches from 0 in a new checkpoint, and a table remembers the last batch of each writer and passes over
what it already has. So a checkpoint must stay with the tables it filled: a new one over filled tables would count
everything twice; an older one would give old numbers to new records, and the tables would pass over them.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from spark_jobs.errors import JobError
from spark_jobs.io import Folder, StoredTable

FILE = "brokerside.json"
"""Name of the file in a checkpoint that says what it belongs to."""


@dataclass(frozen=True)
class Identity:
    """What a checkpoint belongs to."""

    writer: str
    """Name under which its batches are written, new with each checkpoint."""
    job: str
    topic: str
    tables: Mapping[str, str]
    """Ids of the tables by name."""


@dataclass(frozen=True)
class Position:
    """How far Spark says the checkpoint is. −1 where there is nothing."""

    planned: int
    """Last batch that was begun."""
    committed: int
    """Last batch that was finished."""
    planned_at: float
    """When the last batch was begun, seconds since 1970; 0 where there is none."""


@dataclass(frozen=True)
class Stored:
    """What the job's tables say, by name: id, last commit, and the last batch of the checkpoint's writer."""

    id: str
    version: int
    last_batch: int


def read_identity(folder: Folder, where: str) -> Identity | None:
    """Return what the checkpoint in ``folder`` belongs to, None if there is no checkpoint. Raises JobError."""
    text = folder.read(FILE)
    if text is None:
        if folder.names():
            raise JobError(f"{where} is not a checkpoint of this job, and not empty; give another folder")
        return None
    try:
        return Identity(**json.loads(text))
    except (ValueError, TypeError):
        raise JobError(
            f"{where}/{FILE} cannot be read; restore it, or rebuild tables and checkpoint together"
        ) from None


def new_identity(folder: Folder, job: str, topic: str, tables: Mapping[str, str]) -> Identity:
    """Write and return the identity of a new checkpoint over the tables of these ids."""
    identity = Identity(writer=f"brokerside-{job}-{uuid.uuid4()}", job=job, topic=topic, tables=dict(tables))
    folder.write(FILE, json.dumps(asdict(identity), indent=1))
    return identity


def read_position(folder: Folder) -> Position:
    """Return how far the checkpoint in ``folder`` is."""
    planned, committed = _last(folder.names("offsets")), _last(folder.names("commits"))
    plan = folder.read(f"offsets/{planned}") if planned >= 0 else None
    planned_at = json.loads(plan.splitlines()[1])["batchTimestampMs"] / 1000 if plan else 0.0
    return Position(planned, committed, planned_at)


def stored(table: StoredTable, writer: str) -> Stored:
    """Return what ``table`` says."""
    return Stored(table.id, table.version, table.last_batch(writer)) if table.version >= 0 else Stored("", -1, -1)


def check_new(tables: Mapping[str, Stored], where: str) -> None:
    """Raise JobError if one of the tables is filled: a new checkpoint at ``where`` would count everything twice."""
    filled = [name for name, table in tables.items() if table.version > 0]
    if filled:
        raise JobError(
            f"there is no checkpoint at {where}, but {_list(filled)} already filled: reading the topic from its"
            " beginning would count everything twice; give the checkpoint that filled them, or another folder for new"
            " tables"
        )


def check_belongs(identity: Identity, job: str, topic: str, tables: Mapping[str, Stored], where: str) -> None:
    """Raise JobError if the checkpoint at ``where`` is of another job, another topic or other tables."""
    if identity.job != job:
        raise JobError(f"the checkpoint at {where} is of the job {identity.job}, not of {job}")
    if identity.topic != topic:
        raise JobError(f"the checkpoint at {where} is of the topic {identity.topic}, not of {topic}")
    for name, table in tables.items():
        if table.id != identity.tables.get(name):
            state = "is missing" if table.version < 0 else "is another table"
            raise JobError(
                f"the checkpoint at {where} continues a table {name} that {state}; restore it, or begin anew with both"
            )


def check_position(
    position: Position,
    tables: Mapping[str, Stored],
    written_always: str,
    where: str,
    *,
    window_seconds: float,
    clock: Callable[[], float] = time.time,
) -> None:
    """Raise JobError if checkpoint and tables were not left together, or the clock went back.

    ``written_always``: the table that gets every batch. ``window_seconds``: how long envelopes are known; a clock that
    is further behind the last batch would make new records look too late.
    """
    for name, table in tables.items():
        if table.last_batch > position.planned:
            raise JobError(
                f"the checkpoint at {where} is older than the table {name} (batch {position.planned} against"
                f" {table.last_batch}); restore both from the same moment, or begin anew with both"
            )
    kept = tables[written_always].last_batch
    if kept < position.committed:
        raise JobError(
            f"the table {written_always} is older than the checkpoint at {where} (batch {kept} against"
            f" {position.committed}); restore both from the same moment, or begin anew with both"
        )
    behind = position.planned_at - clock()
    if behind > window_seconds:
        raise JobError(
            f"this machine's clock is {behind / 3600:.1f} hours behind the last batch of {where}; set the clock"
        )


def _last(names: list[str]) -> int:
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def _list(names: list[str]) -> str:
    return f"table {names[0]} is" if len(names) == 1 else f"tables {', '.join(names)} are"
