"""Appends to ``proxy/protocol/protocol_versions.json`` what is new in Kafka's releases and among the private apis.

Run ``python -m tests.tools.generate_protocol``. It reads the kafka-clients jars of the set ``kafka-protocol`` (fetched
when they are not there, 160 MB): their message definitions, or the class ApiKeys in those before 2.8. A row that is
there stays as it is but for the ProtocolVersions at which its version came to be deprecated or was removed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from proxy import __version__
from proxy.local.jars import SETS, java, resolve
from proxy.local.pins import Pin
from proxy.protocol.private import PRIVATE
from proxy.protocol.versions import Addition, version_int
from tests.tools.generate_apis import definitions, versions
from tests.tools.protocol_seals import SEALS, TABLE, problems, read_table, seal

SET = "kafka-protocol"
FIRST_WITH_LISTENERS = version_int("2.8")
OPTIONAL = (71, 72)
"""GetTelemetrySubscriptions and PushTelemetry: only a broker with a telemetry reporter returns them (KIP-714)."""


class Changed(Exception):
    """What the releases say now is not what a row says."""


Apis = dict[int, tuple[str, range, range]]
"""By key: name, versions, and those of them that are deprecated."""


class Release(NamedTuple):
    name: str
    apis: Apis
    served: set[int]
    """Keys that a listener for clients has."""


def read_releases() -> list[Release]:
    folder = resolve(SET)[0].parent
    pins = sorted(SETS[SET], key=lambda pin: version_int(pin.version))
    early = [pin for pin in pins if version_int(pin.version) < FIRST_WITH_LISTENERS]
    keys = _api_keys(folder, [pin.file_name for pin in early])
    return [Release(_minor(pin), keys[pin.file_name], set()) for pin in early] + [
        _defined(_minor(pin), folder / pin.file_name) for pin in pins[len(early) :]
    ]


def additions(releases: Sequence[Release]) -> list[Addition]:
    """Return the rows of Kafka's releases: in order of release, api key and version.

    Raises Changed where a version comes back that was removed, or where a release removes without adding anything.
    """
    served = set().union(*(release.served for release in releases))
    names = {key: api[0] for release in releases for key, api in release.apis.items()}
    rows: dict[tuple[int, int], Addition] = {}
    for release in releases:
        there = {(key, version) for key in served & release.apis.keys() for version in release.apis[key][1]}
        deprecated = {(key, version) for key, version in there if version in release.apis[key][2]}
        first = len(rows) + 1
        for key, version in sorted(there - rows.keys()):
            optional = key in OPTIONAL
            rows[key, version] = Addition(len(rows) + 1, key, names[key], version, release.name, optional=optional)
        for at, row in rows.items():
            now = row
            if at in there and row.removed is not None:
                raise Changed(f"{release.name}: {row.api} v{row.version} comes back")
            if at not in there and row.removed is None:
                now = msgspec.structs.replace(row, removed=first)
            elif at in there and (at in deprecated) != (row.deprecated is not None):
                now = msgspec.structs.replace(row, deprecated=first if at in deprecated else None)
            if now != row and first > len(rows):
                raise Changed(f"{release.name}: {row.api} v{row.version} goes, and nothing comes that has a number")
            rows[at] = now
    return list(rows.values())


def extended(table: Sequence[Addition], found: Sequence[Addition]) -> list[Addition]:
    """Return ``table`` with what is new in ``found`` and among the private apis at its end.

    Raises Changed where a row would have to be taken out or to say something else than it does.
    """
    kept = {(row.api_key, row.version): row for row in table}
    kafka = [row for row in table if not row.private]
    # Numbers of the releases alone, as ``found`` has them, and those of the table, where private rows stand between.
    numbers = {fresh.n: row.n for fresh, row in zip(found, kafka, strict=False)}
    n = len(table)
    for fresh in found[len(kafka) :]:
        n += 1
        numbers[fresh.n] = n
    result = list(table)
    for fresh in found:
        moved = msgspec.structs.replace(
            fresh,
            n=numbers[fresh.n],
            deprecated=None if fresh.deprecated is None else numbers[fresh.deprecated],
            removed=None if fresh.removed is None else numbers[fresh.removed],
        )
        row = kept.get((fresh.api_key, fresh.version))
        if row is None:
            result.append(moved)
            continue
        now = msgspec.structs.replace(moved, api=row.api)
        late = {"deprecated": row.deprecated or now.deprecated, "removed": row.removed or now.removed}
        if now != msgspec.structs.replace(row, **late):
            raise Changed(f"{row} would become {now}")
        result[row.n - 1] = now
    private = private_rows()
    if lost := kept.keys() - {(row.api_key, row.version) for row in (*found, *private)}:
        raise Changed(f"nothing has them any more: {sorted(lost)}")
    for row in private:
        if (row.api_key, row.version) not in kept:
            result.append(msgspec.structs.replace(row, n=len(result) + 1))
    return result


def private_rows() -> list[Addition]:
    """Return a row, yet without its number, for each version of each private api."""
    return [
        Addition(0, key, api.name, version, f"brokerside {__version__}", private=True)
        for key, api in PRIVATE.items()
        for version in range(api.min_version, api.max_version + 1)
    ]


def render(table: Iterable[Addition]) -> str:
    return "[\n" + ",\n".join("  " + msgspec.json.encode(row).decode() for row in table) + "\n]\n"


def _minor(pin: Pin) -> str:
    parts = pin.version.split(".")
    return ".".join(parts[: 3 if parts[0] == "0" else 2])


def _defined(name: str, jar: Path) -> Release:
    apis = {}
    served = set()
    for key, message in definitions(jar).items():
        low, high = versions(message["validVersions"])
        # The newest version may be there for trials alone, without a promise that it stays.
        high -= bool(message.get("latestVersionUnstable"))
        old_low, old_high = versions(message["deprecatedVersions"]) if "deprecatedVersions" in message else (0, -1)
        apis[key] = (message["name"].removesuffix("Request"), range(low, high + 1), range(old_low, old_high + 1))
        if "broker" in message["listeners"]:
            served.add(key)
    return Release(name, apis, served)


def _api_keys(folder: Path, jars: Sequence[str]) -> dict[str, Apis]:
    [slf4j] = [path for path in resolve("kafka-clients-2.8.2") if path.name.startswith("slf4j-api-")]
    source = Path(__file__).with_name("KafkaApis.java")
    command = [java(), source, slf4j, *(folder / jar for jar in jars)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: dict[str, Apis] = {}
    for jar, key, name, low, high in map(str.split, said.splitlines()):
        found.setdefault(jar, {})[int(key)] = (name, range(int(low), int(high) + 1), range(0))
    return found


def main() -> None:
    """Append to the table and to its seals. Raises Changed, and writes nothing then."""
    table, sealed = read_table(), SEALS.read_text()
    result = extended(table, additions(read_releases()))
    if len(result) > len(table):
        sealed += seal(result, len(result))
    if wrong := list(problems(result, sealed)):
        raise Changed("; ".join(wrong))
    TABLE.write_text(render(result))
    SEALS.write_text(sealed)
    print(f"{len(table)} rows, now {len(result)}", file=sys.stderr)


if __name__ == "__main__":
    main()
