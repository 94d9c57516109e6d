"""The committed table and its page: whole, in order, and guarded against losing anything."""

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proxy.local.jars import cache_dir
from proxy.protocol.reference import pages
from proxy.protocol.versions import TABLE, Addition
from tests.cases import each
from tests.tools import protocol_seals
from tests.tools.generate_apis import definitions, versions
from tests.tools.protocol_seals import SEALS, problems, read_table

SEALED, WRITTEN = SEALS.read_text(), protocol_seals.TABLE.read_text()


def told(n: int) -> str:
    """What is said of a row that was changed or taken out, by the first seal that it is under."""
    sealed = [int(line.split()[0]) for line in SEALED.splitlines() if not line.startswith("#")]
    return f"up to ProtocolVersion {min(last for last in sealed if last >= n)} a row was changed or taken out"


def changed(n: int, **values: Any) -> list[Addition]:
    return [msgspec.structs.replace(row, **values) if row.n == n else row for row in TABLE]


@pytest.mark.promise(
    "protocol.md", "Every stable version of every api for clients of Kafka 4.4.0 has one ProtocolVersion."
)
def test_every_version_of_4_4_0_is_there_once() -> None:
    jar = cache_dir() / "jars" / "kafka-clients-4.4.0.jar"
    if not jar.exists():
        pytest.skip(f"the jar cache lacks {jar.name}: python -m proxy.local.jars fetch kafka-4.4.0")
    said = {
        (key, version)
        for key, message in definitions(jar).items()
        if "broker" in message["listeners"]
        for low, high in [versions(message["validVersions"])]
        for version in range(low, high + 1)
    }
    unstable = {(22, 6)}
    alive = [(row.api_key, row.version) for row in TABLE if row.removed is None and not row.private]
    assert Counter(alive) == Counter(said - unstable)


@each("n", [1, 150, len(TABLE) - 1, len(TABLE)])
def test_a_row_that_is_taken_out_is_missed(
    n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = WRITTEN.splitlines()
    rest = "\n".join(lines[1:n] + lines[n + 1 : -1]).rstrip(",")
    file = tmp_path / "protocol_versions.json"
    file.write_text(f"[\n{rest}\n]\n")
    monkeypatch.setattr(protocol_seals, "TABLE", file)
    monkeypatch.setattr(protocol_seals, "ROOT", tmp_path)
    assert len(read_table()) == len(TABLE) - 1
    assert protocol_seals.main() == 1
    assert "a row was changed or taken out" in capsys.readouterr().err


@pytest.mark.promise(
    "protocol.md", "A row of the table of ProtocolVersions that is changed or taken out fails the checks."
)
@each(
    ("n", "values"),
    [
        (1, {"removed": None}),
        (4, {"deprecated": 238}),
        (5, {"version": 9}),
        (5, {"release": "0.7"}),
        (len(TABLE), {"private": False}),
    ],
)
def test_a_row_that_is_changed_is_seen(n: int, values: dict[str, Any]) -> None:
    assert told(n) in list(problems(changed(n, **values), SEALED))


@pytest.mark.promise(
    "protocol-versions.md",
    "The page of ProtocolVersions lists every addition, with when it was deprecated and removed.",
)
def test_what_was_removed_keeps_its_lines() -> None:
    page = pages()["protocol-versions.md"]
    assert page.count("Request v") == len(TABLE)
    assert (
        "* ProduceRequest v0\n"
        "  * Added in ProtocolVersion: 1 (0.8.2)\n"
        "  * Deprecated in ProtocolVersion: 238\n"
        "  * Removed in ProtocolVersion: 265\n"
    ) in page
    assert "## BrokerMetadata (30000, private)" in page
    assert "## PushTelemetry (72, optional)" in page
