"""A checkpoint and its tables belong together: what would count twice, or lose, is refused before anything is read.

Spark numbers batches from 0 in a new checkpoint, and a table remembers the last batch of each writer and passes over
what it already has. So a checkpoint must stay with the tables it filled: a new one over filled tables would count
everything twice; an older one would give old numbers to new records, and the tables would pass over them. Several
checkpoints may fill the same tables, as long as each reads another topic.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from spark_jobs.errors import JobError
from spark_jobs.io import Folder, StoredTable

IDENTITY_FILE = "brokerside.json"
"""Name of the file in a checkpoint that says what it belongs to."""

BACKFILL_MARKER_FILE = "backfill"
"""Name of the file in a checkpoint that is there as long as a backfill replaces rows of its tables."""


@dataclass(frozen=True)
class CheckpointIdentity:
    """What a checkpoint belongs to."""

    writer: str
    """Name under which its batches are written, new with each checkpoint."""
    cluster: str
    """Id of the Kafka cluster that has the topic."""
    topic: str
    tables: Mapping[str, str]
    """Ids of the tables by name."""
    only: Sequence[str] | None = None
    """The tables that were asked for; None: all there are, new ones too."""


@dataclass(frozen=True)
class CheckpointPosition:
    """How far Spark says the checkpoint is. −1 where there is nothing."""

    planned: int
    """Last batch that was begun."""
    committed: int
    """Last batch that was finished."""
    offsets: Mapping[int, int] = field(default_factory=dict)
    """Up to where the finished batches have read each partition, exclusive."""


@dataclass(frozen=True)
class TableState:
    """What one of the job's tables says: id, last commit, and the last batch of each writer."""

    id: str = ""
    version: int = -1
    writers: Mapping[str, int] = field(default_factory=dict)

    def last_batch(self, writer: str) -> int:
        """Return the last batch that ``writer`` wrote, −1 if none."""
        return self.writers.get(writer, -1)


def read_identity(folder: Folder, where: str) -> CheckpointIdentity | None:
    """Return what the checkpoint in ``folder`` belongs to, None if there is no checkpoint. Raises JobError."""
    text = folder.read(IDENTITY_FILE)
    if text is None:
        if folder.names():
            raise JobError(f"{where} is not a checkpoint of this job, and not empty; give another folder")
        return None
    try:
        said = json.loads(text)
        return CheckpointIdentity(said["writer"], said["cluster"], said["topic"], said["tables"], said["only"])
    except (ValueError, TypeError, KeyError, AttributeError):
        raise JobError(
            f"{where}/{IDENTITY_FILE} cannot be read; restore it, or rebuild tables and checkpoint together"
        ) from None


def write_identity(folder: Folder, identity: CheckpointIdentity) -> None:
    """Write what the checkpoint in ``folder`` belongs to."""
    folder.write(IDENTITY_FILE, json.dumps(asdict(identity), indent=1))


def writer_prefix(cluster: str, topic: str) -> str:
    """Return what the names of all writers begin with that read ``topic`` of ``cluster``, or any topic of it."""
    return f"brokerside/{cluster}/{topic}/" if topic else f"brokerside/{cluster}/"


def new_identity(cluster: str, topic: str, tables: Mapping[str, str], only: Sequence[str] | None) -> CheckpointIdentity:
    """Return the identity of a new checkpoint over the tables of these ids."""
    return CheckpointIdentity(f"{writer_prefix(cluster, topic)}{uuid.uuid4()}", cluster, topic, dict(tables), only)


def with_added_tables(identity: CheckpointIdentity, tables: Mapping[str, str]) -> CheckpointIdentity:
    """Return ``identity`` with those of ``tables`` that it does not have yet: ids by name."""
    return replace(identity, tables={**tables, **identity.tables})


def read_position(folder: Folder) -> CheckpointPosition:
    """Return how far the checkpoint in ``folder`` is."""
    planned, committed = _highest_number(folder.names("offsets")), _highest_number(folder.names("commits"))
    done = folder.read(f"offsets/{committed}") if committed >= 0 else None
    (read,) = json.loads(done.splitlines()[2]).values() if done else ({},)
    return CheckpointPosition(planned, committed, {int(partition): offset for partition, offset in read.items()})


def table_state(table: StoredTable) -> TableState:
    """Return what ``table`` says."""
    return TableState(table.id, table.version, table.writers) if table.version >= 0 else TableState()


def check_new_checkpoint(tables: Mapping[str, TableState], cluster: str, topic: str, where: str) -> None:
    """Raise JobError if one of the tables has rows of the topic: a new checkpoint at ``where`` would repeat them."""
    own = writer_prefix(cluster, topic)
    filled = [name for name, table in tables.items() if any(writer.startswith(own) for writer in table.writers)]
    if filled:
        raise JobError(
            f"there is no checkpoint at {where}, but {_tables_are(filled)} already filled from {topic}: reading the topic"
            " from its beginning would count everything twice; give the checkpoint that filled them, or another folder"
            " for new tables"
        )


def check_identity(
    identity: CheckpointIdentity,
    cluster: str,
    topic: str,
    tables: Mapping[str, TableState],
    only: Sequence[str] | None,
    where: str,
) -> None:
    """Raise JobError if the checkpoint at ``where`` is of another topic or cluster, or of other tables."""
    if identity.topic != topic:
        raise JobError(f"the checkpoint at {where} is of the topic {identity.topic}, not of {topic}")
    if identity.cluster != cluster:
        raise JobError(
            f"the checkpoint at {where} is of the Kafka cluster {identity.cluster}, not of {cluster}; give each cluster"
            " a checkpoint of its own"
        )
    if only is not None and (identity.only is None or set(only) != set(identity.only)):
        kept = "all tables" if identity.only is None else f"only {', '.join(identity.only)}"
        raise JobError(
            f"the checkpoint at {where} fills {kept}, not only {', '.join(only)}; leave that out, or begin anew with"
            " other folders for tables and checkpoint"
        )
    for name, id in identity.tables.items():
        table = tables.get(name, TableState())
        if table.id != id:
            state = "is missing" if table.version < 0 else "is another table"
            raise JobError(
                f"the checkpoint at {where} continues a table {name} that {state}; restore it, or begin anew with both"
            )


def check_position(
    position: CheckpointPosition,
    identity: CheckpointIdentity,
    tables: Mapping[str, TableState],
    written_always: str,
    where: str,
) -> None:
    """Raise JobError if checkpoint and tables were not left together.

    ``written_always``: the table that gets every batch.
    """
    last = {name: table.last_batch(identity.writer) for name, table in tables.items()}
    for name, batch in last.items():
        if batch > position.planned:
            raise JobError(
                f"the checkpoint at {where} is older than the table {name} (batch {position.planned} against"
                f" {batch}); restore both from the same moment, or begin anew with both"
            )
    if last[written_always] < 0:  # it is new, and nothing came since: another one had every batch
        written_always = max(last, key=lambda name: last[name])
    if last[written_always] < position.committed:
        raise JobError(
            f"the table {written_always} is older than the checkpoint at {where} (batch {last[written_always]} against"
            f" {position.committed}); restore both from the same moment, or begin anew with both"
        )


def check_no_backfill(folder: Folder, where: str) -> None:
    """Raise JobError if a backfill replaces rows of the tables of the checkpoint in ``folder``."""
    if folder.read(BACKFILL_MARKER_FILE) is not None:
        raise JobError(
            "a backfill replaces rows of these tables; if it was broken off, run it again, or remove"
            f" {where}/{BACKFILL_MARKER_FILE} to keep what it did"
        )


def _highest_number(names: Sequence[str]) -> int:
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def _tables_are(names: Sequence[str]) -> str:
    return f"table {names[0]} is" if len(names) == 1 else f"tables {', '.join(names)} are"
