"""Parses the values of Kafka records into audit envelopes, or the reason why a record is a dead letter. Pure.

One bad event makes its whole envelope a dead letter, so that no envelope is counted in part. An event of an unknown
kind is not bad; it is skipped.

msgspec decodes and checks what a sidecar writes. Only a record that it does not accept is examined field by field, for
the reason; or because it is valid all the same, for example with a null for a field that may be left out.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from spark_jobs.event_structs import EVENT_STRUCTS, INTEGER_BITS, AnyEvent, Envelope, RawEnvelope, UnknownEvent
from spark_jobs.events import ENVELOPE, KINDS, SCHEMA_LEVEL, EventField

_decode_envelope = msgspec.json.Decoder(Envelope).decode
_decode_raw_envelope = msgspec.json.Decoder(RawEnvelope).decode
_decode_event = msgspec.json.Decoder(AnyEvent).decode
_decode_unknown_event = msgspec.json.Decoder(UnknownEvent).decode
_encode_lines = msgspec.json.Encoder().encode_lines


_SCALAR_TYPES = {"string": (str,), "int": (int,), "bigint": (int,), "double": (int, float), "boolean": (bool,)}


class Fault(NamedTuple):
    """Why a record is a dead letter."""

    reason: str
    detail: str | None = None


def parse_record(value: bytes | None) -> Any:
    """Return the envelope that ``value`` holds, or the first ``Fault`` of it.

    The envelope is a ``event_structs.Envelope``. Its events are as ``event_structs.EVENT_STRUCTS``; those of unknown
    kinds are ``UnknownEvent``.
    """
    if value is None:
        return Fault("empty")
    try:
        if not value.isascii():
            value.decode()
        try:
            envelope = _decode_envelope(value)
        except msgspec.ValidationError:
            envelope = _decode_raw_envelope(value)
            if envelope.schema_level <= SCHEMA_LEVEL:
                envelope.events = list(map(_decode_event_of_any_kind, envelope.events))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _examine(value)
    return _check(envelope)


def digests_of(events: Sequence[Any]) -> tuple[int, int, int]:
    """Return the digests of the events of a valid envelope; see ``dedup_ranges.AuditRecord``.

    The hash is not for protection against someone who knows the events before they are sent. The envelope fields
    ``dropped`` and ``sent_at`` are not included: they differ when the same events are sent again.
    """
    half = len(events) // 2
    front, back = _encode_lines(events[:half]), _encode_lines(events[half:])
    first = hashlib.blake2b(front, digest_size=8)
    whole = first.copy()
    whole.update(back)
    hashes = (whole, first, hashlib.blake2b(back, digest_size=8))
    return tuple(int.from_bytes(each.digest(), signed=True) for each in hashes)  # type: ignore[return-value]


def _decode_event_of_any_kind(event: Raw) -> Any:
    try:
        return _decode_event(event)
    except msgspec.ValidationError:
        unknown = _decode_unknown_event(event)
        if unknown.kind in KINDS:
            raise
        return unknown


def _check(envelope: Any) -> Any:
    """Return ``envelope``, or what is wrong with it as a whole."""
    if envelope.schema_level > SCHEMA_LEVEL:
        return Fault("schema_level_too_high", str(envelope.schema_level))
    if not envelope.events:
        return Fault("bad_value", "events")
    first, last, size = envelope.first_seq, envelope.last_seq, len(envelope.events)
    if last - first + 1 != size or envelope.events[0].seq != first:
        return Fault("sequence_mismatch", f"{first} to {last}, {size} events")
    return envelope


def _examine(value: bytes) -> Any:
    """As ``parse_record``, for a value that msgspec does not accept."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return Fault("not_utf8")
    try:
        root = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return Fault("not_json")
    if isinstance(root, dict) and _is_scalar(root.get("schema_level"), "int") and root["schema_level"] > SCHEMA_LEVEL:
        return Fault("schema_level_too_high", str(root["schema_level"]))
    if not isinstance(root, dict):
        return Fault("bad_value", "the record is not a JSON object")
    if not _has_types(root, ENVELOPE):
        return Fault("bad_value", "a value has the wrong type")
    fault = _field_fault(root, ENVELOPE)
    if fault:
        return fault
    known = _as_written(root)
    envelope = msgspec.convert({**known, "events": []}, Envelope)
    envelope.events = [
        msgspec.convert(event, EVENT_STRUCTS.get(event["kind"], UnknownEvent)) for event in known["events"]
    ]
    return _check(envelope)


def _refuse_constant(constant: str) -> None:
    raise ValueError(constant)


def _as_written(value: Any) -> Any:
    """Return ``value`` as a sidecar would write it: without nulls, and with strings that are valid UTF-8."""
    match value:
        case dict():
            return {_as_written(name): _as_written(each) for name, each in value.items() if each is not None}
        case list():
            return [_as_written(each) for each in value if each is not None]
        case str():
            return value.encode("utf-8", "replace").decode()
        case int() if value.bit_length() > 1023:
            return math.inf  # a double, as 1e400; the field is no integer, or it would have been refused
        case _:
            return value


def _fields_of(item: Mapping[str, Any], field: EventField) -> Sequence[EventField]:
    """Return the fields of ``item``, an object of the array ``field``."""
    kind = item.get("kind")
    return (*field.fields, *field.fields_by_kind.get(kind, ())) if isinstance(kind, str) else field.fields


def _has_types(value: Mapping[str, Any], fields: Sequence[EventField]) -> bool:
    return all(value.get(field.name) is None or _has_type(value[field.name], field) for field in fields)


def _has_type(value: Any, field: EventField) -> bool:
    match field.type:
        case "array":
            return isinstance(value, list) and all(
                one is None or (isinstance(one, dict) and _has_types(one, _fields_of(one, field))) for one in value
            )
        case "array<string>" | "array<bigint>":
            return isinstance(value, list) and all(one is None or _is_scalar(one, field.type[6:-1]) for one in value)
        case "map<string,bigint>":
            numbers = value.values() if isinstance(value, dict) else [...]
            return all(one is None or _is_scalar(one, "bigint") for one in numbers)
        case scalar:
            return _is_scalar(value, scalar)


def _is_scalar(value: Any, kind: str) -> bool:
    bits = INTEGER_BITS.get(kind)
    return type(value) in _SCALAR_TYPES[kind] and (bits is None or -(2**bits) <= value < 2**bits)


def _field_fault(value: Mapping[str, Any], fields: Sequence[EventField], path: str = "") -> Fault | None:
    """Return the first fault in a field of the object ``value``, those inside of arrays last.

    A null is a fault only in a required field; other fields have a default.
    """
    for field in fields:
        one = value.get(field.name)
        if one is None:
            if field.required:
                return Fault("missing_field", path + field.name)
        elif (
            (field.minimum is not None and one < field.minimum)
            or (field.maximum is not None and one > field.maximum)
            or (field.allowed and one not in field.allowed)
        ):
            return Fault("bad_value", path + field.name)
    for field in fields:
        for item in (value.get(field.name) or ()) if field.fields else ():
            fault = _field_fault(item or {}, _fields_of(item or {}, field), f"{path}{field.name}[].")
            if fault:
                return fault
    return None
