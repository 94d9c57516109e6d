"""The table of ProtocolVersions and its page: whole, in order, guarded against losing anything, and how it grows."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proxy.local.jars import SETS, cache_dir
from proxy.protocol.private import PRIVATE, PrivateApi
from proxy.protocol.reference import pages
from proxy.protocol.versions import TABLE, Addition
from tests.cases import each
from tests.tools import protocol_seals
from tests.tools.generate_apis import definitions, versions
from tests.tools.generate_protocol import SET, Release, additions, extended, read_releases
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


Apis = dict[int, tuple[str, range, range]]


def release(name: str, *, served: set[int] | None = None, **spans: tuple[int, int, int] | tuple[int, int]) -> Release:
    """``k3=(1, 4)``: key 3 has versions 1 to 4; a third number: those up to it are deprecated."""
    apis: Apis = {
        int(key[1:]): (f"Api{key[1:]}", range(span[0], span[1] + 1), range(span[2] + 1) if len(span) > 2 else range(0))
        for key, span in spans.items()
    }
    return Release(name, apis, set(apis) if served is None else served)


def columns(rows: list[Addition]) -> list[tuple[int, int, int, str]]:
    return [(row.n, row.api_key, row.version, row.release) for row in rows]


ONE = release("1.0", k3=(0, 1), k0=(0, 0))
TWO = release("2.0", k0=(0, 1), k3=(0, 2, 0))
THREE = release("3.0", k0=(0, 1), k3=(1, 2), k9=(0, 0))


@pytest.fixture
def private() -> Iterator[dict[int, PrivateApi]]:
    before = dict(PRIVATE)
    PRIVATE.clear()
    PRIVATE[30000] = PrivateApi("Ours", 0, 0)
    yield PRIVATE
    PRIVATE.clear()
    PRIVATE.update(before)  # in their order


@pytest.mark.promise("protocol.md", "A new release of Kafka adds ProtocolVersions at the end, and all numbers stay.")
@pytest.mark.usefixtures("private")
def test_a_table_grows_at_its_end_and_numbers_stay() -> None:
    before = extended([], additions([ONE, TWO]))
    assert columns(before)[5:] == [(6, 30000, 0, before[5].release)]
    assert before[5].private
    after = extended(before, additions([ONE, TWO, THREE]))
    assert columns(after) == [*columns(before), (7, 9, 0, "3.0")]
    assert [row for row in after if row.removed] == [msgspec.structs.replace(before[1], removed=7)]
    assert extended(after, additions([ONE, TWO, THREE])) == after


@pytest.mark.kafka
def test_the_committed_table_is_what_the_generator_makes_of_the_jars() -> None:
    if not all((cache_dir() / "jars" / pin.file_name).exists() for pin in SETS[SET]):
        pytest.skip(f"the jar cache lacks releases: python -m proxy.local.jars fetch {SET}")
    assert extended([], additions(read_releases())) == list(TABLE)
