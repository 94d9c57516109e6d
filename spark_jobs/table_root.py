"""The tables below one root, and the checkpoint that continues them: opened together, or refused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from spark_jobs import checkpoint as points
from spark_jobs import io, schemas
from spark_jobs.progress import Notice
from spark_jobs.tables.registry import chosen


@dataclass(frozen=True)
class TableRoot:
    """Where the tables and the checkpoint are: folders, or URLs of a storage that Spark knows."""

    tables: str
    checkpoint: str = ""
    """Empty as long as it is to be found below the tables; see ``of``."""

    def of(self, cluster: str, topic: str) -> TableRoot:
        """Return this with a checkpoint: where none was given, that of the topic of the Kafka cluster of this id."""
        return self if self.checkpoint else replace(self, checkpoint=f"{self.tables}/_checkpoints/{cluster}/{topic}")

    def path(self, table: str) -> str:
        """Return where ``table`` is."""
        return f"{self.tables}/{table}"


def table_of_every_batch(names: Collection[str]) -> str:
    """Return which of the tables ``names`` gets every batch, also one that has nothing for it."""
    return next(name for name in schemas.STREAMED if name in names)


def streamed_table_names(only: Collection[str] | None) -> tuple[str, ...]:
    """Return the names of the tables that each batch adds to, of those that ``only`` asks for (None: all)."""
    return tuple(name for name in chosen(only) if name in schemas.STREAMED)


def open_tables(
    spark: SparkSession,
    target: TableRoot,
    cluster: str,
    topic: str,
    only: Sequence[str] | None,
    say: Callable[[Notice], None],
) -> points.CheckpointIdentity:
    """Make the streamed tables ready, and return the identity of the checkpoint that continues them.

    Tables and columns that they do not have yet are added, and said. ``cluster``: id of the Kafka cluster of ``topic``.
    ``only``: the tables asked for; None: those that were asked for before. Raises JobError if tables and checkpoint do
    not belong together.
    """
    folder = io.Folder(spark, target.checkpoint)
    identity = points.read_identity(folder, target.checkpoint)
    names = streamed_table_names(only if identity is None else identity.only)
    there = {name: read_table_state(spark, target, name) for name in names}
    if identity is None:
        points.check_new_checkpoint(there, cluster, topic, target.checkpoint)
        ids = {name: create_or_upgrade_table(spark, target, name, say) for name in names}
        identity = points.new_identity(cluster, topic, ids, only)
        points.write_identity(folder, identity)
        return identity
    there |= {name: read_table_state(spark, target, name) for name in identity.tables if name not in there}
    points.check_identity(identity, cluster, topic, there, only, target.checkpoint)
    known = {name: table for name, table in there.items() if name in identity.tables}
    points.check_position(points.read_position(folder), identity, known, table_of_every_batch(known), target.checkpoint)
    ids = {name: create_or_upgrade_table(spark, target, name, say) for name in names}
    grown = points.with_added_tables(identity, ids)
    if grown != identity:
        new = [name for name in names if name not in identity.tables]
        if new:
            say(Notice(f"new tables: {', '.join(new)}; they begin with the next batch"))
        points.write_identity(folder, grown)
    return grown


def read_table_state(spark: SparkSession, target: TableRoot, name: str) -> points.TableState:
    """Return what the table ``name`` says."""
    return points.table_state(io.StoredTable(spark, target.path(name)))


def create_or_upgrade_table(spark: SparkSession, target: TableRoot, name: str, say: Callable[[Notice], None]) -> str:
    """Make the table ``name`` as this release has it, say what is new in it, and return its id."""
    path = target.path(name)
    io.create_table(spark, schemas.TABLES[name], path)
    columns = io.add_new_columns(spark, schemas.TABLES[name], path)
    if columns:
        say(Notice(f"table {name}: new columns {', '.join(columns)}; they are empty in older rows"))
    return io.StoredTable(spark, path).id
