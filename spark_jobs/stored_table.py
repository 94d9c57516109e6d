"""Delta tables by delta-rs, without a JVM: what a table holds, and every commit that the jobs make.

A commit is written only if no other process has written one of its number: by a link on a disk, by a conditional put on
an object store, by a rename without overwriting on HDFS. So any number of processes may write one table. delta-rs
compares each commit with those that came after the version it was made from, and writes it after them or rejects it.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from typing import Any
from uuid import uuid4

import pyarrow
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet

os.environ.setdefault("RUST_LOG", "error")  # delta-rs reads it on import; conflicts are no warnings: they are repeated
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.schema import Field
from deltalake.transaction import AddAction, RemoveAction

from spark_jobs.errors import JobError

DELTA_PROPERTIES = {
    "delta.deletedFileRetentionDuration": "interval 12 hours",
    "delta.logRetentionDuration": "interval 12 hours",
    "delta.checkpointInterval": "20",
    "delta.dataSkippingNumIndexedCols": "2",
}
"""Properties of each table. Delta lists the whole log with each commit: its default of 30 days would be 370,000 files.
Delta does not allow replaced files to be kept for longer than the log.

Each batch reads the commits since the last checkpoint: with up to 100 of them, each with statistics of 32 columns, it
costs 50 to 75 ms of CPU a table instead of 20. Queries pass over files by the first two columns, ``day`` and
``minute``; of the others a file of a batch has nearly all values.
"""

MAX_ATTEMPTS = 5
"""How often a change is tried while other processes change the same rows or files at the same time."""

AFTER_APPEND = PostCommitHookProperties(cleanup_expired_logs=False)
"""What delta-rs does after the commit of a batch: it does not look for expired commits. Maintenance does."""

REPLACEMENT = "brokerside/replacement"
"""Application id of commits that replace files. Of two that were made from one version the later one is rejected.
delta-rs alone does not notice that both remove the same files: their rows would be there twice."""

KNOWN_FEATURES = frozenset({"appendOnly", "invariants"})
"""Delta's table features of tables that the jobs have created (reader version 1, writer version 2)."""

Options = Mapping[str, str]
"""Options of delta-rs for a storage, such as keys and endpoints (``storage_options``)."""


class ConcurrentChange(JobError):
    """Another job changed the same rows at the same time; the operation can be repeated."""


def repeat(change: Callable[[], None], attempts: int = MAX_ATTEMPTS) -> None:
    """Make a change up to ``attempts`` times, until no other job changes the same rows at the same time.

    Raises the ConcurrentChange of the last attempt.
    """
    for _ in range(attempts - 1):
        try:
            return change()
        except ConcurrentChange:
            pass
    return change()


@dataclass(frozen=True)
class DataFile:
    """One file of a table."""

    path: str
    """Relative to the table."""
    size: int
    day: date | None


class StoredTable:
    """The snapshot of a Delta table. Without a table at ``path`` its version is −1 and it is empty."""

    def __init__(self, path: str, options: Options, version: int | None = None) -> None:
        """``version``: of the snapshot; None: the newest."""
        self.path = path
        self._options = dict(options)
        self._table: DeltaTable | None = None
        with suppress(TableNotFoundError):
            self._table = DeltaTable(path, version, storage_options=self._options)

    def __reduce__(self) -> tuple[type[StoredTable], tuple[str, Options, int]]:
        """A task of Spark opens the same snapshot."""
        return StoredTable, (self.path, self._options, self.version)

    @property
    def version(self) -> int:
        """Number of the last commit: 0 for a table that was only created, −1 if there is no table."""
        return -1 if self._table is None else self._table.version()

    @property
    def id(self) -> str:
        """Id of the table. It is created with the table and stays the same when the table is moved."""
        return str(self._there.metadata().id)

    @property
    def schema(self) -> Schema:
        """Schema of the table."""
        return self._there.schema()

    @property
    def properties(self) -> dict[str, str]:
        """Properties of the table, by the names of Delta."""
        return dict(self._there.metadata().configuration)

    @property
    def unknown_features(self) -> list[str]:
        """Delta's table features, or versions of its protocol, that another program has turned on in the table."""
        if self._table is None:
            return []
        protocol = self._table.protocol()
        named = {*(protocol.reader_features or ()), *(protocol.writer_features or ())} - KNOWN_FEATURES
        reader, writer = protocol.min_reader_version, protocol.min_writer_version
        versions = {f"minReaderVersion {reader}": reader == 2, f"minWriterVersion {writer}": 2 < writer < 7}
        return sorted({*named, *(name for name, above in versions.items() if above)})

    @cached_property
    def files(self) -> list[DataFile]:
        """The files of the snapshot."""
        if self._table is None:
            return []
        found = pyarrow.table(self._table.get_add_actions(flatten=True)).to_pylist()
        return [DataFile(each["path"], each["size_bytes"], each["partition.day"]) for each in found]

    @property
    def files_by_day(self) -> dict[date, int]:
        """Number of files of each day."""
        return dict(Counter(file.day for file in self.files if file.day is not None))

    @property
    def writers(self) -> dict[str, int]:
        """Number of the last batch of each writer of batches."""
        if self._table is None:
            return {}
        log = _Log(self.path, self._options)
        checkpoint = log.last_checkpoint()
        found = log.transactions_of_checkpoint(checkpoint) if checkpoint >= 0 else []
        found += [action["txn"] for action in log.actions(checkpoint + 1, self.version) if "txn" in action]
        return {each["appId"]: each["version"] for each in found if each["appId"] != REPLACEMENT}

    def last_batch(self, writer: str) -> int:
        """Return the number of the last batch that ``writer`` wrote, −1 if it wrote none."""
        last = self._table.transaction_version(writer) if self._table else None
        return -1 if last is None else last

    def days_changed(self, after: int) -> set[date] | None:
        """Return the days whose rows the commits after the version ``after`` changed.

        Return None if one of these commits is no longer in the log.
        """
        try:
            changes = [change for action in _Log(self.path, self._options).actions(after + 1, self.version)
                       if (change := action.get("add") or action.get("remove")) and change["dataChange"]]  # fmt: skip
        except FileNotFoundError:
            return None
        days = [(change.get("partitionValues") or {}).get("day") for change in changes]
        return {date.fromisoformat(day) for day in days if day}

    def dataset(self, days: Collection[date] | None = None) -> pyarrow.dataset.Dataset:
        """Return the rows of the snapshot, of ``days`` (None: of all)."""
        return self.read_files({file.path for file in self.files if days is None or file.day in days})

    def last_metadata(self, limit: int) -> str | None:
        """Return the newest ``userMetadata`` in the last ``limit`` commits, None if there is none."""
        commits = self._table.history(limit) if self._table else []
        return next((str(each["userMetadata"]) for each in commits if each.get("userMetadata")), None)

    def append(self, rows: pyarrow.Table, writer: str, batch: int) -> None:
        """Append ``rows`` as ``batch`` of ``writer``. Columns that they lack are NULL. Raises ConcurrentChange."""
        mark = CommitProperties(app_transactions=[Transaction(writer, batch, _now_ms())])
        with self._conflicts():
            write_deltalake(
                self._there, rows, mode="append", schema_mode="merge", commit_properties=mark,
                post_commithook_properties=AFTER_APPEND,
            )  # fmt: skip

    def replace_files(
        self,
        removed: Iterable[DataFile],
        added: Sequence[AddAction],
        *,
        data_change: bool = True,
        metadata: str | None = None,
        batch: tuple[str, int] | None = None,
    ) -> None:
        """Replace the files ``removed`` of this snapshot by the files ``added``, in one commit.

        Files that others have added meanwhile stay. ``data_change``: False if the new files have the same rows in
        another form. ``metadata``: stored with the commit (``userMetadata``). ``batch``: the writer and the number of
        its batch that the rows are of.

        Raises ConcurrentChange if a commit after this snapshot replaced files, of whatever days, and JobError for a
        table with features that are not known here.
        """
        self.check_features()
        now = _now_ms()
        gone = [
            RemoveAction(file.path, data_change, now, file.size, {"day": file.day.isoformat() if file.day else None})
            for file in removed
        ]
        transactions = [Transaction(REPLACEMENT, self.last_batch(REPLACEMENT) + 1, now)]
        transactions += [Transaction(*batch, now)] if batch else []
        custom = {"userMetadata": metadata} if metadata else None
        with self._conflicts():
            self._there.create_write_transaction(
                [*gone, *(replace(file, data_change=data_change) for file in added)],
                "append",
                self.schema,
                ["day"],
                commit_properties=CommitProperties(custom_metadata=custom, app_transactions=transactions),
            )

    def read_files(self, paths: Collection[str]) -> pyarrow.dataset.Dataset:
        """Return the rows of those files of this snapshot that have one of ``paths``."""
        whole = self._there.to_pyarrow_dataset(filesystem=self._filesystem)
        return _Files(
            [part for part in whole.get_fragments() if part.path in paths], whole.schema, whole.format, whole.filesystem
        )

    def write_file(self, rows: pyarrow.RecordBatchReader, day: date | None) -> AddAction:
        """Write ``rows``, all of ``day``, as a file of the table's folder that no version of the table has yet."""
        folder = f"day={day or '__HIVE_DEFAULT_PARTITION__'}"
        name = f"{folder}/part-{uuid4()}.zstd.parquet"
        schema = pyarrow.schema(field for field in rows.schema if field.name != "day")
        written: list[pyarrow.parquet.FileMetaData] = []
        files = self._filesystem
        files.create_dir(folder)
        with files.open_output_stream(name) as out:
            with pyarrow.parquet.ParquetWriter(out, schema, compression="zstd", metadata_collector=written) as writer:
                for batch in rows:
                    writer.write_batch(batch.select(schema.names))
            size = out.tell()
        days = {"day": day.isoformat() if day else None}
        return AddAction(name, size, days, _now_ms(), True, json.dumps(_statistics(written[0])))

    def remove_expired_commits(self) -> None:
        """Remove from the log the commits that are older than it is retained."""
        self.check_features()
        if self._table is not None:
            self._table.cleanup_metadata()

    def vacuum(self) -> None:
        """Remove files that no version of the last 12 hours needs, also those of writers that failed."""
        self.check_features()
        if self._table is not None:
            self._table.vacuum(dry_run=False, full=True)

    def add_columns(self, fields: list[Field]) -> None:
        """Add columns. They are NULL in the rows that there are. Raises ConcurrentChange."""
        with self._conflicts():
            self._there.alter.add_columns(fields)

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Set properties of the table. Raises ConcurrentChange."""
        with self._conflicts():
            self._there.alter.set_table_properties(dict(properties))

    @contextmanager
    def _conflicts(self) -> Iterator[None]:
        try:
            yield
        except CommitFailedError as error:
            self.check_features()  # some of them refuse each commit
            raise ConcurrentChange(
                f"another job changed the same rows of {self.path} at the same time; run this again"
            ) from error

    def check_features(self) -> None:
        """Raise JobError if files may be in use, or commits needed, by a feature that is not known here.

        delta-rs would remove deletion vectors that are in use, and replace files without theirs: rows would come back.
        """
        if unknown := self.unknown_features:
            raise JobError(
                f"another program has turned on {', '.join(unknown)} in {self.path}, which this release does not know: "
                "nothing of the table is compacted, replaced or deleted"
            )

    @property
    def _filesystem(self) -> pyarrow.fs.FileSystem:
        """The files of the table. On a disk none that calls Python: Arrow's threads may close files of it at exit."""
        if "://" in self.path:
            return pyarrow.fs.PyFileSystem(DeltaStorageHandler(self.path, options=self._options))
        return pyarrow.fs.SubTreeFileSystem(os.path.abspath(self.path), pyarrow.fs.LocalFileSystem())

    @property
    def _there(self) -> DeltaTable:
        if self._table is None:
            raise JobError(f"there is no table at {self.path}")
        return self._table


class _Files(pyarrow.dataset.FileSystemDataset):  # type: ignore[misc]  # pyarrow has no types
    """Files that are read a few rows ahead of who computes with them.

    Arrow's defaults are 16 batches of 131,072 rows. Of rows with histograms these are 500 MB, and the system's work to
    provide that memory costs more CPU than the computation.
    """

    def scanner(self, **given: Any) -> pyarrow.dataset.Scanner:
        return super().scanner(**{"batch_size": 32_768, "batch_readahead": 1} | given)


def create_table(path: str, options: Options, schema: Schema, meaning: str) -> None:
    """Create a table at ``path``, empty, if it does not exist, with ``DELTA_PROPERTIES``."""
    try:
        DeltaTable.create(
            path,
            schema,
            mode="ignore",
            partition_by=["day"],
            description=meaning,
            configuration=DELTA_PROPERTIES,
            storage_options=dict(options),
        )
    except DeltaError:
        if StoredTable(path, options).version < 0:  # else another job created it at the same time
            raise


def append_once(rows: pyarrow.Table, path: str, options: Options, writer: str, batch: int) -> None:
    """Append ``rows`` to the table at ``path``, unless ``writer`` already wrote ``batch`` or a later one there.

    All rows of one day go into one file, so this is for few rows, such as sums and dead letters. Without rows only the
    number of the batch is stored.
    """

    def append() -> None:
        # The table is opened for each batch: a kept snapshot costs more with each of its files. Whoever came between
        # may have written this very batch: a process that was thought to be dead.
        stored = StoredTable(path, options)
        if stored.last_batch(writer) < batch:
            stored.append(rows, writer, batch)

    repeat(append)


def _now_ms() -> int:
    return int(time.time() * 1000)


def _statistics(written: pyarrow.parquet.FileMetaData) -> dict[str, Any]:
    """Return Delta's statistics of a file: its rows, and its ranges of times (``DELTA_PROPERTIES``)."""
    groups = [written.row_group(number) for number in range(written.num_row_groups)]
    least, greatest = {}, {}
    for number, column in enumerate(written.schema):
        ranges = [group.column(number).statistics for group in groups]
        if str(column.logical_type.type) == "TIMESTAMP" and all(range_ and range_.has_min_max for range_ in ranges):
            with suppress(OverflowError):  # Python has no times before the year 1: a column with such has no range
                ends = (min(range_.min for range_ in ranges), max(range_.max for range_ in ranges))
                least[column.name], greatest[column.name] = (f"{end:%FT%T.%fZ}" for end in ends)
    return {"numRecords": written.num_rows, "minValues": least, "maxValues": greatest}


class _Log:
    """The files of a table's log, which delta-rs does not hand out: https://github.com/delta-io/delta/blob/master/PROTOCOL.md"""

    def __init__(self, path: str, options: Options) -> None:
        handler = DeltaStorageHandler(path, options=dict(options))
        self._files = pyarrow.fs.SubTreeFileSystem("_delta_log", pyarrow.fs.PyFileSystem(handler))

    def actions(self, first: int, last: int) -> Iterator[dict[str, Any]]:
        """Yield the actions of the commits from ``first`` to ``last``. Raises FileNotFoundError."""
        for version in range(first, last + 1):
            with self._files.open_input_stream(f"{version:020d}.json") as commit:
                yield from map(json.loads, commit.read().splitlines())

    def last_checkpoint(self) -> int:
        """Return the version of the newest checkpoint, −1 if there is none."""
        try:
            with self._files.open_input_stream("_last_checkpoint") as noted:
                return int(json.loads(noted.read())["version"])
        except FileNotFoundError:
            return -1

    def transactions_of_checkpoint(self, version: int) -> list[dict[str, Any]]:
        """Return the application transactions in the checkpoint of ``version``."""
        found = []
        for each in self._files.get_file_info(pyarrow.fs.FileSelector("")):
            if each.base_name.startswith(f"{version:020d}.checkpoint") and each.base_name.endswith(".parquet"):
                with self._files.open_input_file(each.path) as part:
                    column = pyarrow.parquet.read_table(part, columns=["txn"])["txn"]
                found += [txn for txn in column.to_pylist() if txn]
        return found
