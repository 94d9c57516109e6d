#!/usr/bin/env bash
# deltalake 1.6.6 (delta-rs), pyarrow 26.0.1, Linux.
#
# Two processes open one version of a table, and each replaces the same file by one of its own, with
# `DeltaTable.create_write_transaction`. Delta's documentation has that as a conflict of two writers, which the later one
# loses (ConcurrentDeleteDeleteException). delta-rs accepts both, so the table has the rows twice. With an application
# transaction of one id and version in both commits, delta-rs rejects the later one.
#
# Guess before the first run: the second commit fails with CommitFailedError.
#
# Seen:
#   the file is replaced twice, rows: [1, 1]
#   with one application transaction: CommitFailedError, rows: [1]
#
# Exit code 0: still so. Needs Python 3.11 or later and a package index.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet deltalake==1.6.6 pyarrow==26.0.1
cat > try.py <<'PYTHON'
from pathlib import Path

import pyarrow
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import parquet

ROWS = pyarrow.table({"n": [1]})


def replace(table, name, properties=None):
    """Replace the only file of the version that ``table`` has by one with the same rows."""
    folder = Path(table.table_uri.removeprefix("file://"))
    parquet.write_table(ROWS, folder / name)
    [before] = pyarrow.table(table.get_add_actions(flatten=True)).to_pylist()
    removed = RemoveAction(before["path"], False, 0, before["size_bytes"], {})
    added = AddAction(name, (folder / name).stat().st_size, {}, 0, False, '{"numRecords": 1}')
    table.create_write_transaction([removed, added], "append", table.schema(), [], commit_properties=properties)


def replaced_twice(folder, properties=None):
    """Replace the file of one version by two processes; return the rows, and what the later one raised."""
    write_deltalake(folder, ROWS)
    first, second = DeltaTable(folder), DeltaTable(folder)
    replace(first, "first.parquet", properties)
    try:
        replace(second, "second.parquet", properties)
    except CommitFailedError as error:
        return type(error).__name__, DeltaTable(folder).to_pyarrow_table()["n"].to_pylist()
    return "", DeltaTable(folder).to_pyarrow_table()["n"].to_pylist()


plain = replaced_twice("plain")
print("the file is replaced twice, rows:", plain[1])
marked = replaced_twice("marked", CommitProperties(app_transactions=[Transaction("replacement", 1)]))
print(f"with one application transaction: {marked[0]}, rows: {marked[1]}")
assert plain == ("", [1, 1])
assert marked == ("CommitFailedError", [1])
PYTHON
venv/bin/python try.py
