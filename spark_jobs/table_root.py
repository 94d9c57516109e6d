"""The tables below one root and the checkpoint that continues them. Both are opened together, or the job is refused."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from spark_jobs import checkpoint, io, schemas
from spark_jobs.checkpoint import CheckpointIdentity, TableState
from spark_jobs.progress import Notice, Notify
from spark_jobs.stored_table import StoredTable
from spark_jobs.tables.registry import selected_tables


@dataclass(frozen=True)
class TableRoot:
    """Where the tables and the checkpoint are: folders, or URLs of a storage that Spark can access."""

    tables: str
    checkpoint: str = ""
    """Empty until ``with_checkpoint`` has chosen the default."""

    def with_checkpoint(self, cluster: str, topic: str) -> TableRoot:
        """Return a copy with a checkpoint: the given one, else the default of ``topic`` of the cluster of this id."""
        return self if self.checkpoint else replace(self, checkpoint=f"{self.tables}/_checkpoints/{cluster}/{topic}")

    def table_path(self, name: str) -> str:
        """Return the path of the table ``name``."""
        return f"{self.tables}/{name}"


def table_of_every_batch(names: Collection[str]) -> str:
    """Return the one of the tables ``names`` that every batch is written to, even if it has no rows for it."""
    return next(name for name in schemas.STREAMED if name in names)


def streamed_table_names(only: Collection[str] | None) -> tuple[str, ...]:
    """Return the names of the tables that each batch adds to, limited to those that ``only`` asks for (None: all)."""
    return tuple(name for name in selected_tables(only) if name in schemas.STREAMED)


def open_tables(
    spark: SparkSession, root: TableRoot, cluster: str, topic: str, only: Sequence[str] | None, notify: Notify
) -> CheckpointIdentity:
    """Create or upgrade the streamed tables, and return the identity of the checkpoint that continues them.

    Missing tables and columns are added and reported. ``cluster``: id of the Kafka cluster of ``topic``. ``only``: the
    tables asked for; None: those of the existing checkpoint, or all. Raises JobError if tables and checkpoint do not
    belong together.
    """
    folder = io.Folder(spark, root.checkpoint)
    identity = checkpoint.read_identity(folder, root.checkpoint)
    names = streamed_table_names(only if identity is None else identity.only)
    states = {name: read_table_state(spark, root, name) for name in names}
    if identity is None:
        checkpoint.check_new_checkpoint(states, cluster, topic, root.checkpoint)
        ids = {name: create_or_upgrade_table(spark, root, name, notify).id for name in names}
        identity = checkpoint.new_identity(cluster, topic, ids, only)
        checkpoint.write_identity(folder, identity)
        return identity
    states |= {name: read_table_state(spark, root, name) for name in identity.tables if name not in states}
    checkpoint.check_identity(identity, cluster, topic, states, only, root.checkpoint)
    known = {name: state for name, state in states.items() if name in identity.tables}
    position = checkpoint.read_position(folder)
    checkpoint.check_position(position, identity, known, table_of_every_batch(known), root.checkpoint)
    ids = {name: create_or_upgrade_table(spark, root, name, notify).id for name in names}
    extended = checkpoint.with_added_tables(identity, ids)
    if extended != identity:
        if new := [name for name in names if name not in identity.tables]:
            notify(Notice(f"new tables: {', '.join(new)}; they start with the next batch"))
        checkpoint.write_identity(folder, extended)
    return extended


def read_table_state(spark: SparkSession, root: TableRoot, name: str) -> TableState:
    """Read the state of the table ``name`` from its Delta log."""
    table = io.open_table(spark, root.table_path(name))
    return TableState(table.id, table.version, table.writers) if table.version >= 0 else TableState()


def create_or_upgrade_table(spark: SparkSession, root: TableRoot, name: str, notify: Notify) -> StoredTable:
    """Create the table ``name``, or add and report the columns that it does not have yet. Return its snapshot."""
    stored = io.create_table(spark, schemas.TABLES[name], root.table_path(name))
    if columns := io.add_new_columns(stored, schemas.TABLES[name]):
        notify(Notice(f"table {name}: new columns {', '.join(columns)}; they are NULL in older rows"))
    return stored
