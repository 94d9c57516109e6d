"""A job as a reader of the audit: its record in the sidecars' registry, and the levels that it checks (pure).

Sidecars raise the level of the audit's schema only to one that all readers support (KIP-584). Records are JSON, as in
``proxy.features.records``; unknown fields are ignored.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from spark_jobs.errors import JobError
from spark_jobs.events import SCHEMA_LEVEL

FEATURE = "brokerside.audit.event.schema"
MIN_SCHEMA_LEVEL = 1

FEATURES_KEY = b"features"
"""Key of the record with the finalized levels."""

LAYOUT_VERSION = 1
"""The version of both layouts. A record with a later one is not read."""

ENABLED = 1
"""The status of finalized levels that apply. With any other status it is as if nothing were finalized."""

MAX_RECORD = 262_144
"""Bytes of the longest record that is read."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")

Level = Annotated[int, Meta(ge=1, le=32_767)]


@dataclass(frozen=True)
class AuditReader:
    """One run of a job. ``name``: of its record in the registry. ``job``: its command.

    ``registry_hmac_keys``: signing keys of the registry by id; the first one signs. ``started``: milliseconds since
    1970.
    """

    name: str
    job: Literal["run", "backfill"]
    registry_hmac_keys: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    started: int = field(default_factory=lambda: time.time_ns() // 1_000_000)

    def __post_init__(self) -> None:
        """Raise JobError for a name that sidecars would ignore."""
        if not _NAME.fullmatch(self.name):
            raise JobError(f"--reader: {self.name!r} is no name of a reader (allowed: 1–128 of A-Z a-z 0-9 . _ -)")

    @property
    def key(self) -> bytes:
        """The key of its record."""
        return f"reader/{self.name}".encode()

    def value(self, state: Literal["running", "stopped"]) -> bytes:
        """Return the value of its record. The job ``run`` is durable: its level counts while it does not run, too."""
        levels = {"min_version": MIN_SCHEMA_LEVEL, "max_version": SCHEMA_LEVEL}
        return msgspec.json.encode(
            {
                "features": {FEATURE: levels},
                "durable": self.job == "run",
                "state": state,
                "job": self.job,
                "started": self.started,
                "software": metadata.version("brokerside"),
                "version": LAYOUT_VERSION,
            }
        )


def default_name(prefix: str, tables: str) -> str:
    """Return the name of a reader that writes the tables below the root ``tables``: it is the same for every run."""
    return f"{prefix}-{hashlib.sha256(tables.encode()).hexdigest()[:8]}"


class LevelBounds(Struct, frozen=True):
    """Finalized levels of one feature, inclusive."""

    min_version_level: Level
    max_version_level: Level


class PendingLevels(Struct, frozen=True):
    """The levels that are about to be finalized."""

    features: Mapping[str, LevelBounds]


class FinalizedLevels(Struct, frozen=True):
    """The finalized levels of the fleet. ``epoch``: the number of their changes."""

    epoch: Annotated[int, Meta(ge=0)]
    features: Mapping[str, LevelBounds]
    pending: PendingLevels | None = None
    status: int = ENABLED
    version: int = LAYOUT_VERSION


NOTHING_FINALIZED = FinalizedLevels(0, {})

_decoder = msgspec.json.Decoder(FinalizedLevels)


def check_levels(values: Iterable[bytes | None]) -> None:
    """Raise JobError if a level above ``SCHEMA_LEVEL`` is finalized, or is about to be.

    ``values``: of all records with the key ``FEATURES_KEY``, in the order of the topic; None: the record is deleted.
    What no sidecar of this layout can have written is passed over.
    """
    last = NOTHING_FINALIZED
    for value in values:
        last = (_decode(value) or last) if value is not None else NOTHING_FINALIZED
    if last.status != ENABLED:
        return
    for verb, features in (("is", last.features), ("is about to be", last.pending.features if last.pending else {})):
        level = features[FEATURE].max_version_level if FEATURE in features else 0
        if level > SCHEMA_LEVEL:
            raise JobError(
                f"{FEATURE} {verb} finalized at {level}, this job reads up to {SCHEMA_LEVEL}: run a newer release"
            )


def _decode(value: bytes) -> FinalizedLevels | None:
    if len(value) > MAX_RECORD:
        return None
    try:
        record = _decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    bounds = [*record.features.values(), *(record.pending.features.values() if record.pending else ())]
    if record.version > LAYOUT_VERSION or any(one.min_version_level > one.max_version_level for one in bounds):
        return None
    return record
