"""That the table of ProtocolVersions only ever grows: ``python -m tests.tools.protocol_seals`` (``make check``).

``deploy/locks/protocol.txt`` has a line for each time that the table grew: its last ProtocolVersion, and a checksum of
what it said then. A row that is changed or taken out, the last one too, no longer fits it.
``tests.tools.generate_protocol`` writes both files, and it only appends.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from proxy.protocol.private import PRIVATE
from proxy.protocol.versions import Addition

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "proxy" / "protocol" / "protocol_versions.json"
SEALS = ROOT / "deploy" / "locks" / "protocol.txt"


def read_table() -> list[Addition]:
    return msgspec.json.decode(TABLE.read_bytes(), type=list[Addition])


def seal(table: Sequence[Addition], n: int) -> str:
    """Return the line for what was known at ``n``: the rows up to it, and of their ends those up to it."""
    then = (
        msgspec.structs.replace(row, deprecated=_known(row.deprecated, n), removed=_known(row.removed, n))
        for row in table
        if row.n <= n
    )
    said = b"\n".join(msgspec.json.encode(row) for row in then)
    return f"{n} {hashlib.sha256(said).hexdigest()}\n"


def problems(table: Sequence[Addition], sealed: str) -> Iterator[str]:
    """Yield what is wrong: rows that are not what they were, rows without a seal, private apis without a row."""
    if [row.n for row in table] != list(range(1, len(table) + 1)):
        yield "the rows are not numbered 1, 2, 3, … without a gap"
    lines = [line for line in sealed.splitlines(keepends=True) if not line.startswith("#")]
    last = 0
    for line in lines:
        last = int(line.split()[0])
        if len(table) < last or seal(table, last) != line:
            yield f"up to ProtocolVersion {last} a row was changed or taken out"
            break
    else:
        if len(table) > last:
            yield f"rows after ProtocolVersion {last} have no seal: run python -m tests.tools.generate_protocol"
    have = {(row.api_key, row.version): row for row in table if row.private}
    for key, api in PRIVATE.items():
        for version in range(api.min_version, api.max_version + 1):
            if (key, version) not in have:
                yield f"{api.name} ({key}) v{version} has no row: run python -m tests.tools.generate_protocol"


def _known(since: int | None, n: int) -> int | None:
    return since if since is not None and since <= n else None


def main() -> int:
    found = list(problems(read_table(), SEALS.read_text()))
    for line in found:
        print(f"{TABLE.relative_to(ROOT)}: {line}", file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
