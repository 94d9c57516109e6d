#!/usr/bin/env bash
# deltalake 1.6.6 (delta-rs), pyarrow 26.0.1, Linux.
#
# A full vacuum of delta-rs removes deletion vectors that the newest version of the table uses. Its vacuum without
# `full` does not. delta-rs reads the table correctly before, by DataFusion; after it nobody can, Spark included: the
# rows that were not deleted are lost with those that were, unless the file is restored.
#
# Guess before the first run: a full vacuum keeps every file that the newest version names, vectors among them.
#
# Seen (with the file's own UUID):
#   rows [0, 2, 4]
#   vacuum: []
#   full vacuum: ['deletion_vector_<uuid>.bin']
#   rows after it: DeltaError, File not found: …/deletion_vector_<uuid>.bin
#
# The table below is what Spark writes for a DELETE of two rows of five, by Delta's protocol ("Deletion Vector Format").
# Exit code 0: still so. Needs Python 3.11 or later and a package index.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet deltalake==1.6.6 pyarrow==26.0.1
cat > try.py <<'PYTHON'
import json
import struct
import uuid
import zlib
from pathlib import Path

import pyarrow
from deltalake import DeltaTable, QueryBuilder, write_deltalake

Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
FOLDER = "table"


def z85(data):
    text = ""
    for start in range(0, len(data), 4):
        number, word = int.from_bytes(data[start : start + 4], "big"), ""
        for _ in range(5):
            number, digit = divmod(number, 85)
            word = Z85[digit] + word
        text += word
    return text


def write_vector(rows):
    """Write a file with the vector of ``rows``, and return its descriptor."""
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(rows) - 1, 16) + b"".join(struct.pack("<H", row) for row in rows)
    vector = struct.pack("<iqi", 1681511377, 1, 0) + bitmap
    name = uuid.uuid4()
    content = b"\1" + struct.pack(">i", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector))
    Path(FOLDER, f"deletion_vector_{name}.bin").write_bytes(content)
    where = {"storageType": "u", "pathOrInlineDv": z85(name.bytes), "offset": 1}
    return where | {"sizeInBytes": len(vector), "cardinality": len(rows)}


def delete(rows):
    """Commit what Spark commits for ``DELETE``: the one file of the table again, with a vector."""
    log = Path(FOLDER, "_delta_log")
    lines = map(json.loads, (log / f"{0:020}.json").read_text().splitlines())
    added = next(line["add"] for line in lines if "add" in line)
    same = {key: added[key] for key in ("path", "size", "partitionValues")}
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    time = added["modificationTime"]
    more = {"modificationTime": time, "deletionVector": write_vector(rows), "stats": '{"numRecords": 5}'}
    actions = [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
        {"remove": {**same, "dataChange": True, "deletionTimestamp": time}},
        {"add": {**same, "dataChange": True, **more}},
    ]
    (log / f"{1:020}.json").write_text("".join(json.dumps(action) + "\n" for action in actions))


def rows():
    found = QueryBuilder().register("numbers", DeltaTable(FOLDER)).execute("SELECT n FROM numbers ORDER BY n")
    return pyarrow.table(found.read_all())["n"].to_pylist()


write_deltalake(FOLDER, pyarrow.table({"n": [0, 1, 2, 3, 4]}))
delete([1, 3])
[vector] = [file.name for file in Path(FOLDER).glob("deletion_vector_*.bin")]
print("rows", rows())
assert rows() == [0, 2, 4], "delta-rs does not read the vector"
now = {"retention_hours": 0, "enforce_retention_duration": False}
plain = DeltaTable(FOLDER).vacuum(dry_run=True, **now)
full = DeltaTable(FOLDER).vacuum(dry_run=True, full=True, **now)
print("vacuum:", plain)
print("full vacuum:", full)
assert plain == [], "a vacuum without full removes it, too"
assert full == [vector], "a full vacuum keeps the vector now"
DeltaTable(FOLDER).vacuum(dry_run=False, full=True, **now)
try:
    print("rows after it:", rows())
except Exception as error:
    print(f"rows after it: {type(error).__name__}, {str(error)[-90:]}")
    assert "File not found" in str(error)
else:
    raise SystemExit("the table can be read now")
PYTHON
venv/bin/python try.py
