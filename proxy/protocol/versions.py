"""A broker's range of ProtocolVersions from its ApiVersions, and what else follows from those.

``supported`` is everywhere what a broker answers to ApiVersions: its inclusive range of versions by api key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from typing import NamedTuple

import msgspec

Supported = Mapping[int, tuple[int, int]]

PRODUCE, FETCH = 0, 1

MAX_API_VERSION = 31
"""Last version of an api that is looked at: Kafka has up to 19 of one."""

CODECS = ((0, "1=gzip"), (0, "2=snappy"), (0, "3=lz4"), (7, "4=zstd"))
"""First version of Produce that takes a codec; its number in the attributes of a batch and its name (KIP-110)."""

FORMATS = ((0, 1, "v0"), (2, 2, "v1"), (3, 1 << 15, "v2"))
"""Versions of Produce, inclusive, whose records have the format (KIP-31, KIP-98)."""


class Addition(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One row: this version of this api came with ProtocolVersion ``n``.

    ``api``: Kafka's name for it when the row was written. ``release``: the first one that has it. ``deprecated``,
    ``removed``: since which ProtocolVersion, if at all. ``optional``: brokers have it only with a plug-in.
    ``private``: sidecars have it, brokers do not.
    """

    n: int
    api_key: int
    api: str
    version: int
    release: str
    deprecated: int | None = None
    removed: int | None = None
    optional: bool = False
    private: bool = False

    @property
    def required(self) -> bool:
        """Whether a range says that a broker has it."""
        return not (self.optional or self.private)

    def alive(self, n: int) -> bool:
        """Whether it is part of the protocol at ``n``."""
        return self.n <= n and (self.removed is None or self.removed > n)


class ProtocolRange(NamedTuple):
    """Inclusive; -1 and -1 where it is not known. ``exact``: it says all that the broker's ApiVersions says."""

    min: int
    max: int
    exact: bool


UNKNOWN = ProtocolRange(-1, -1, False)

TABLE: tuple[Addition, ...] = tuple(
    msgspec.json.decode(files(__package__).joinpath("protocol_versions.json").read_bytes(), type=list[Addition])
)


def floored(supported: Supported) -> dict[int, tuple[int, int]]:
    """Return what a broker really takes. Since 4.0 brokers claim Produce v0 to v2 for the sake of old clients that
    look at nothing else, and close the connection when one comes (KIP-896); their oldest Fetch shows which."""
    real = dict(supported)
    if PRODUCE in real and FETCH in real and real[FETCH][0] >= 4:
        real[PRODUCE] = (max(3, real[PRODUCE][0]), real[PRODUCE][1])
    return real


def ranges(supported: Supported) -> ProtocolRange:
    """Return the ProtocolVersions at which the broker has the whole protocol: the topmost of them without a hole.

    A broker that lacks something in the middle, as other vendors' may, has the range before it, or none (UNKNOWN).
    """
    real = floored(supported)
    whole = _whole(real)
    top = max((row.n for row in TABLE if row.n in whole and _has(real, row)), default=-1)
    if top == -1:
        return UNKNOWN
    low = top
    while low - 1 in whole:
        low -= 1
    found = ProtocolRange(low, top, exact=False)
    aside = {row.api_key for row in TABLE if not row.required}
    return found._replace(exact=versions_for(found) == {key: real[key] for key in real if key not in aside})


def versions_for(known: ProtocolRange) -> dict[int, tuple[int, int]]:
    """Return the versions by api key that any broker with this range takes; nothing where it is not known.

    Optional and private apis are never among them: ask ApiVersions for those.
    """
    return _spans(row for row in TABLE if row.required and row.alive(known.max))


def release_of(supported: Supported) -> str | None:
    """Return the release of Kafka whose apis are the most like these, as ``4.3.x``; None where they are like none."""
    real = set(_pairs(floored(supported)))
    found, least = None, len(real)
    for release, last in release_ends().items():
        pairs = {(row.api_key, row.version) for row in TABLE if row.required and row.alive(last)}
        if real & pairs and (differing := len(real ^ pairs)) <= least:
            found, least = f"{release}.x", differing
    return found


def release_ends() -> dict[str, int]:
    """Return the last ProtocolVersion of each release of Kafka that added one, the oldest first."""
    return {row.release: row.n for row in TABLE if not row.private}


def release_range(release: str) -> ProtocolRange:
    """Return the range of a broker that is exactly this release. Raises KeyError for one that added nothing."""
    last = release_ends()[release]
    removed = [row.removed for row in TABLE if row.required and row.removed is not None and row.removed <= last]
    return ProtocolRange(max(removed, default=1), last, exact=True)


def version_int(text: str) -> int:
    """Return the version of a broker as one number, a byte for each of its first four parts: ``3.9.2`` is 0x03090200.

    What follows the numbers (``-SNAPSHOT-d12ca4f``, ``.x``) does not count. Raises ValueError where there are none, or
    one of them is larger than 255.
    """
    numbers = re.match(r"\d+(\.\d+){0,3}", text)
    parts = [int(part) for part in numbers[0].split(".")] if numbers else []
    if not parts or max(parts) > 255:
        raise ValueError(f"version {text!r}: allowed are one to four numbers of 0 to 255 with dots, then anything")
    return int.from_bytes(bytes(parts).ljust(4, b"\0"), "big")


def codecs(supported: Supported) -> str:
    """Return the codecs of records that the broker takes: ``1=gzip,2=snappy,3=lz4,4=zstd``; empty without Produce."""
    _, high = floored(supported).get(PRODUCE, (0, -1))
    return ",".join(name for since, name in CODECS if since <= high)


def message_formats(supported: Supported) -> str:
    """Return the formats of records that the broker takes: ``v0,v1,v2``; empty without Produce."""
    low, high = floored(supported).get(PRODUCE, (0, -1))
    return ",".join(name for first, last, name in FORMATS if first <= high and low <= last)


def _whole(real: Supported) -> set[int]:
    """Return the ProtocolVersions at which nothing is missing of what is required."""
    leaving: dict[int, int] = {}
    whole = set()
    missing = 0
    for row in TABLE:
        missing -= leaving.get(row.n, 0)
        if row.required and not _has(real, row):
            missing += 1
            if row.removed is not None:
                leaving[row.removed] = leaving.get(row.removed, 0) + 1
        if not missing:
            whole.add(row.n)
    return whole


def _has(real: Supported, row: Addition) -> bool:
    low, high = real.get(row.api_key, (0, -1))
    return low <= row.version <= high


def _pairs(real: Supported) -> Iterator[tuple[int, int]]:
    """Return what is like something of Kafka's: a broker may claim any keys, and all versions that an int16 has."""
    known = {row.api_key for row in TABLE} - {row.api_key for row in TABLE if not row.required}
    for key in known & real.keys():
        low, high = real[key]
        yield from ((key, version) for version in range(max(low, 0), min(high, MAX_API_VERSION) + 1))


def _spans(rows: Iterable[Addition]) -> dict[int, tuple[int, int]]:
    spans: dict[int, tuple[int, int]] = {}
    for row in rows:
        low, high = spans.get(row.api_key, (row.version, row.version))
        spans[row.api_key] = (min(low, row.version), max(high, row.version))
    return spans
