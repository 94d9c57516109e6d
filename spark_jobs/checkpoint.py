"""Checks that a checkpoint belongs to its tables. What would count twice or lose records is refused before reading.

Spark numbers batches from 0 in a new checkpoint. A table remembers the last batch of each writer and skips batches that
it already has. So a checkpoint must stay with the tables it filled. A new checkpoint over filled tables would count
everything twice. An older one would give old numbers to new records, and the tables would skip them. Several
checkpoints may fill the same tables if each of them reads another topic.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import msgspec

from spark_jobs.errors import JobError
from spark_jobs.io import Folder

IDENTITY_FILE = "brokerside.json"
"""Name of the file in a checkpoint with its ``CheckpointIdentity``."""

BACKFILL_MARKER_FILE = "backfill"
"""Name of the file in a checkpoint that exists while a backfill replaces rows of its tables."""


@dataclass(frozen=True)
class CheckpointIdentity:
    """What a checkpoint belongs to. Field names are the keys of ``IDENTITY_FILE``."""

    writer: str
    """Name under which its batches are written. Each checkpoint has a new one."""
    cluster: str
    """Id of the Kafka cluster that has the topic."""
    topic: str
    tables: Mapping[str, str]
    """Ids of the tables by name."""
    only: Sequence[str] | None = None
    """The tables that were asked for; None: all tables, including those of later releases."""


@dataclass(frozen=True)
class CheckpointPosition:
    """How far the checkpoint is according to Spark; −1 if there is no batch."""

    planned: int
    """Last batch that was started."""
    committed: int
    """Last batch that was finished."""
    offsets: Mapping[int, int] = field(default_factory=dict)
    """By partition, the offset after the last one that the finished batches have read."""


@dataclass(frozen=True)
class TableState:
    """The state of one stored table: its id, its last commit, and the last batch of each writer."""

    id: str = ""
    version: int = -1
    writers: Mapping[str, int] = field(default_factory=dict)


def read_identity(folder: Folder, where: str) -> CheckpointIdentity | None:
    """Read the identity of the checkpoint in ``folder``, None if the folder is empty.

    ``where``: path of the folder, for messages. Raises JobError if the folder holds something else.
    """
    text = folder.read(IDENTITY_FILE)
    if text is None:
        if folder.list_names():
            raise JobError(f"{where} is not a checkpoint of this job, and not empty; give another folder")
        return None
    try:
        return msgspec.json.decode(text, type=CheckpointIdentity)
    except msgspec.DecodeError:
        raise JobError(
            f"{where}/{IDENTITY_FILE} cannot be read; restore it, or rebuild tables and checkpoint together"
        ) from None


def write_identity(folder: Folder, identity: CheckpointIdentity) -> None:
    """Write the identity of the checkpoint in ``folder``."""
    folder.write(IDENTITY_FILE, json.dumps(asdict(identity), indent=1))


def writer_prefix(cluster: str, topic: str) -> str:
    """Return the prefix of the names of all writers that read ``topic`` of ``cluster``; any topic if it is empty."""
    return f"brokerside/{cluster}/{topic}/" if topic else f"brokerside/{cluster}/"


def new_identity(cluster: str, topic: str, tables: Mapping[str, str], only: Sequence[str] | None) -> CheckpointIdentity:
    """Return the identity of a new checkpoint. ``tables``: ids of its tables by name."""
    return CheckpointIdentity(f"{writer_prefix(cluster, topic)}{uuid.uuid4()}", cluster, topic, dict(tables), only)


def with_added_tables(identity: CheckpointIdentity, tables: Mapping[str, str]) -> CheckpointIdentity:
    """Return ``identity`` with those of ``tables`` (ids by name) that it does not have yet."""
    return replace(identity, tables={**tables, **identity.tables})


def read_position(folder: Folder) -> CheckpointPosition:
    """Read how far the checkpoint in ``folder`` is."""
    planned, committed = _highest_number(folder.list_names("offsets")), _highest_number(folder.list_names("commits"))
    batch = folder.read(f"offsets/{committed}") if committed >= 0 else None
    (offsets,) = json.loads(batch.splitlines()[2]).values() if batch else ({},)
    return CheckpointPosition(planned, committed, {int(partition): offset for partition, offset in offsets.items()})


def check_new_checkpoint(tables: Mapping[str, TableState], cluster: str, topic: str, where: str) -> None:
    """Raise JobError if a table already has rows of the topic: a new checkpoint at ``where`` would write them again."""
    own = writer_prefix(cluster, topic)
    filled = [name for name, table in tables.items() if any(writer.startswith(own) for writer in table.writers)]
    if filled:
        raise JobError(
            f"there is no checkpoint at {where}, but {_tables_are(filled)} already filled from {topic}: reading the"
            " topic from its beginning would count everything twice; give the checkpoint that filled them, or another"
            " folder for new tables"
        )


def check_identity(
    identity: CheckpointIdentity,
    cluster: str,
    topic: str,
    tables: Mapping[str, TableState],
    only: Sequence[str] | None,
    where: str,
) -> None:
    """Raise JobError if the checkpoint at ``where`` belongs to another topic or cluster, or to other tables."""
    if identity.topic != topic:
        raise JobError(f"the checkpoint at {where} belongs to the topic {identity.topic}, not to {topic}")
    if identity.cluster != cluster:
        raise JobError(
            f"the checkpoint at {where} belongs to the Kafka cluster {identity.cluster}, not to {cluster}; give each"
            " cluster its own checkpoint"
        )
    if only is not None and (identity.only is None or set(only) != set(identity.only)):
        kept = "all tables" if identity.only is None else f"only {', '.join(identity.only)}"
        raise JobError(
            f"the checkpoint at {where} fills {kept}, not only {', '.join(only)}; omit --only, or start over with new"
            " folders for tables and checkpoint"
        )
    for name, id in identity.tables.items():
        table = tables.get(name, TableState())
        if table.id != id:
            state = "is missing" if table.version < 0 else "is another table"
            raise JobError(
                f"the checkpoint at {where} continues a table {name} that {state}; restore it, or start over with new"
                " folders for tables and checkpoint"
            )


def check_position(
    position: CheckpointPosition,
    identity: CheckpointIdentity,
    tables: Mapping[str, TableState],
    table_of_every_batch: str,
    where: str,
) -> None:
    """Raise JobError if checkpoint and tables are from different moments.

    ``table_of_every_batch``: name of the table that every batch is written to.
    """
    last = {name: table.writers.get(identity.writer, -1) for name, table in tables.items()}
    for name, batch in last.items():
        if batch > position.planned:
            raise JobError(
                f"the checkpoint at {where} is older than the table {name} (batch {position.planned} against"
                f" {batch}); restore both from the same moment, or start over with both"
            )
    if last[table_of_every_batch] < 0:  # it was added after the last batch: until then another table had every batch
        table_of_every_batch = max(last, key=lambda name: last[name])
    if last[table_of_every_batch] < position.committed:
        raise JobError(
            f"the table {table_of_every_batch} is older than the checkpoint at {where} (batch"
            f" {last[table_of_every_batch]} against {position.committed}); restore both from the same moment, or start"
            " over with both"
        )


def check_no_backfill(folder: Folder, where: str) -> None:
    """Raise JobError if a backfill replaces rows of the tables of the checkpoint in ``folder``."""
    if folder.read(BACKFILL_MARKER_FILE) is not None:
        raise JobError(
            "a backfill replaces rows of these tables; if it was interrupted, run it again, or remove"
            f" {where}/{BACKFILL_MARKER_FILE} to keep the days it has replaced"
        )


def _highest_number(names: Sequence[str]) -> int:
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def _tables_are(names: Sequence[str]) -> str:
    return f"table {names[0]} is" if len(names) == 1 else f"tables {', '.join(names)} are"
