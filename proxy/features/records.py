"""The records of the topic ``__brokerside_features``, and the record of a reader in the registry, as bytes.

Values are JSON; unknown fields are ignored. The key says which record it is:

``features``      ``FinalizedFeatures``, written by the controller alone.
``controller``    ``ControllerClaim``: who has become the controller.
``groups``        ``GroupsPartitions``, written once.
``update/<hex>``  ``UpdateProposal``, written by any sidecar; later ``UpdateOutcome``, by the controller; later a
                  tombstone.

A reader's record has the key ``reader/<name>`` and stands in the registry, beside ``sidecar/<node id>``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from proxy.features.catalog import MAX_LEVEL, PREFIX

LAYOUT_VERSION = 1
"""The version of these layouts. A record with a later one is not read."""

ENABLED = 1
"""The status of finalized levels that apply. With any other status it is as if nothing were finalized."""

MAX_RECORD = 262_144
"""Bytes of the longest record that is read."""

MAX_UPDATES = 100
"""Features in one request."""

MAX_FEATURES = 1000
"""Features of one record."""

MAX_COUNT = 2**63 - 1
"""The highest epoch, and the highest claim: who may write the topic may begin with it. It does not grow any more."""

MAX_NAME = 249
"""Bytes of a feature's name."""

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
"""Types of an update, as in UpdateFeaturesRequest.json; version 0's AllowDowngrade is a safe downgrade."""

FEATURES_KEY = b"features"
CONTROLLER_KEY = b"controller"
GROUPS_KEY = b"groups"

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
FleetFeature = Annotated[str, Meta(pattern=rf"^{re.escape(PREFIX)}[A-Za-z0-9._-]{{1,238}}\Z")]
Text = Annotated[str, Meta(max_length=32_767)]
Level = Annotated[int, Meta(ge=1, le=MAX_LEVEL)]
Int16 = Annotated[int, Meta(ge=-32_768, le=32_767)]
Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Hex = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]

_UPDATE_KEY = re.compile(r"update/([0-9a-f]{32})")
_READER_KEY = re.compile(r"reader/([A-Za-z0-9._-]{1,128})")


class FinalizedRange(Struct, frozen=True):
    """Finalized levels of one feature, inclusive."""

    min_version_level: Level
    max_version_level: Level


Finalized = Mapping[str, FinalizedRange]
"""Finalized levels by feature."""


class PendingUpdate(Struct, frozen=True):
    """What ``features`` is about to become. ``update``: id of the proposal; empty for a rise of the release's own."""

    update: Annotated[str, Meta(pattern=r"^([0-9a-f]{32})?\Z")]
    features: Annotated[Mapping[FleetFeature, FinalizedRange], Meta(max_length=MAX_FEATURES)]


class FinalizedFeatures(Struct, frozen=True):
    """The finalized levels. ``epoch`` grows by 1 with each change of ``features``; 0: nothing was finalized yet.

    For people: ``controller``, the broker id of the sidecar that wrote it; ``at``: when, in milliseconds since 1970.
    """

    epoch: Annotated[int, Meta(ge=0, le=MAX_COUNT)]
    features: Annotated[Mapping[FleetFeature, FinalizedRange], Meta(max_length=MAX_FEATURES)]
    pending: PendingUpdate | None = None
    controller: Int32 = -1
    at: Int64 = 0
    status: Int32 = ENABLED
    version: Int32 = LAYOUT_VERSION


class ControllerClaim(Struct, frozen=True):
    """The sidecar of ``broker_id`` is the controller from now on. ``claim`` is one more than that of the one before."""

    claim: Annotated[int, Meta(ge=1, le=MAX_COUNT)]
    broker_id: Int32
    boot_id: Text
    version: Int32 = LAYOUT_VERSION


class GroupsPartitions(Struct, frozen=True):
    """Over how many partitions of ``__brokerside_groups`` groups are spread, for ever: as many as it had at first."""

    partitions: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    version: Int32 = LAYOUT_VERSION


class FeatureUpdate(Struct, frozen=True):
    """A new maximum of one feature; a ``level`` below 1 deletes it. ``upgrade_type``: see ``UPGRADE``; others are
    wrong."""

    feature: Text
    level: Int16
    upgrade_type: Annotated[int, Meta(ge=-128, le=127)] = UPGRADE


class UpdateProposal(Struct, frozen=True, tag="asked", tag_field="state"):
    """Asks the controller for an update. ``api_version``: of the client's request, since version 0 refuses to set a
    level that is finalized already.

    ``asked_by``: broker id of the sidecar that waits for the outcome. ``principal``, ``client_ip`` and ``listener`` are
    for the log alone.
    """

    asked_by: Int32
    boot_id: Text
    timeout_ms: Int32
    updates: Annotated[tuple[FeatureUpdate, ...], Meta(max_length=MAX_UPDATES + 1)]
    validate_only: bool = False
    api_version: Int16 = 1
    principal: Text = ""
    client_ip: Text = ""
    listener: Text = ""
    version: Int32 = LAYOUT_VERSION


class UpdateOutcome(Struct, frozen=True, tag="done", tag_field="state"):
    """What became of a proposal. ``epoch``: of the finalized levels afterwards.

    ``waits_for``: broker ids of the sidecars that ran when the levels changed: each has to apply them before the client
    gets its answer.
    """

    code: Int16
    message: Text | None = None
    epoch: Int64 = 0
    waits_for: Annotated[tuple[Int32, ...], Meta(max_length=MAX_FEATURES)] = ()
    version: Int32 = LAYOUT_VERSION


class SupportedRange(Struct, frozen=True):
    """Levels that a participant supports, inclusive, as its record has them: ``participants.levels_of`` checks them."""

    min_version: Int32
    max_version: Int32


class ReaderRecord(Struct, frozen=True):
    """A job that reads what sidecars write. ``durable``: it counts as a participant while it does not run, too.

    ``started``: milliseconds since 1970. ``software``: its release.
    """

    features: Annotated[Mapping[Name, SupportedRange], Meta(max_length=MAX_FEATURES)]
    durable: bool = True
    state: Literal["running", "stopped"] = "running"
    job: Literal["run", "backfill"] = "run"
    started: Int64 = 0
    software: Text = ""
    version: Int32 = LAYOUT_VERSION


_features = msgspec.json.Decoder(FinalizedFeatures)
_claim = msgspec.json.Decoder(ControllerClaim)
_groups = msgspec.json.Decoder(GroupsPartitions)
_update: msgspec.json.Decoder[UpdateProposal | UpdateOutcome] = msgspec.json.Decoder(UpdateProposal | UpdateOutcome)
_reader = msgspec.json.Decoder(ReaderRecord)

FeaturesRecord = FinalizedFeatures | ControllerClaim | GroupsPartitions | UpdateProposal | UpdateOutcome
AnyRecord = TypeVar("AnyRecord", bound=FeaturesRecord | ReaderRecord)


def update_key(update: str) -> bytes:
    """Return the key of a proposal and its outcome. ``update``: 32 hexadecimal digits."""
    return f"update/{update}".encode()


def update_of_key(key: bytes) -> str | None:
    """Return the id in the key of a proposal; None for any other key."""
    found = _UPDATE_KEY.fullmatch(key.decode("utf-8", "replace"))
    return found[1] if found else None


def reader_key(name: str) -> bytes:
    """Return the key of a reader's record."""
    return f"reader/{name}".encode()


def reader_of_key(key: bytes) -> str | None:
    """Return the name in the key of a reader's record; None for any other key."""
    found = _READER_KEY.fullmatch(key.decode("utf-8", "replace"))
    return found[1] if found else None


def encode(record: FeaturesRecord | ReaderRecord) -> bytes:
    """Return the value of a record."""
    return msgspec.json.encode(record)


def decode(key: bytes, value: bytes) -> FeaturesRecord | None:
    """Decode a record of the features' topic; None if no sidecar of this layout can have written it."""
    record: FeaturesRecord | None = None
    if key == FEATURES_KEY:
        record = _decoded(_features, value)
    elif key == CONTROLLER_KEY:
        record = _decoded(_claim, value)
    elif key == GROUPS_KEY:
        record = _decoded(_groups, value)
    elif update_of_key(key) is not None:
        record = _decoded(_update, value)
    if isinstance(record, FinalizedFeatures):
        everything = [*record.features.values(), *(record.pending.features.values() if record.pending else ())]
        if any(one.min_version_level > one.max_version_level for one in everything):
            return None
    return record


def decode_reader(value: bytes) -> ReaderRecord | None:
    """Decode a reader's record; None if no reader of this layout can have written it."""
    return _decoded(_reader, value)


class _Layout(Struct, frozen=True):
    version: Int32


_layout = msgspec.json.Decoder(_Layout)


def has_later_layout(value: bytes) -> bool:
    """Return whether a value that cannot be decoded is of a later layout than this release reads."""
    try:
        return _layout.decode(value).version > LAYOUT_VERSION
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _decoded(decoder: msgspec.json.Decoder[AnyRecord], value: bytes) -> AnyRecord | None:
    if len(value) > MAX_RECORD:
        return None
    try:
        record = decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return record if record.version <= LAYOUT_VERSION else None
