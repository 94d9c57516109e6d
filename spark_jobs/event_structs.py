"""The audit event as msgspec structs, made from ``events.py``. They check types, ranges and choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw

from spark_jobs.events import ENVELOPE, EVENT, KINDS, EventField

INTEGER_BITS = {"int": 31, "bigint": 63}
"""Bits of the value of each integer type, without the sign."""

_BIGINT = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_TYPES: Mapping[str, Any] = {
    "string": str,
    "boolean": bool,
    "array<string>": tuple[str, ...],
    "array<bigint>": tuple[_BIGINT, ...],
    "map<string,bigint>": dict[str, _BIGINT],
}


def _field_type(field: EventField) -> Any:
    if field.allowed:
        return Literal[field.allowed]
    if field.type in INTEGER_BITS:
        bits = INTEGER_BITS[field.type]
        least = -(2**bits) if field.minimum is None else field.minimum
        return Annotated[int, Meta(ge=least, le=2**bits - 1 if field.maximum is None else field.maximum)]
    if field.type == "double":
        return float if field.minimum is None else Annotated[float, Meta(ge=field.minimum)]
    if field.type == "array":
        item: Any = _struct(field.name, field.fields)
        return tuple[item, ...]
    return _TYPES[field.type]


def _struct(name: str, fields: Sequence[EventField], **options: Any) -> Any:
    made: list[Any] = []
    for field in sorted(fields, key=lambda each: not each.required):
        kind = _field_type(field)
        if field.required:
            made.append((field.name, kind))
        elif isinstance(field.default, dict):
            made.append((field.name, kind, msgspec.field(default_factory=dict)))
        else:
            made.append((field.name, kind | None if field.default is None else kind, field.default))
    return msgspec.defstruct(name, made, gc=False, omit_defaults=True, **options)


EVENT_STRUCTS: Mapping[str, Any] = {
    kind: _struct(kind, [field for field in fields if field.name != "kind"], tag_field="kind", tag=kind)
    for kind, fields in KINDS.items()
}
"""By kind, the struct of an event. Fields that are left out have their defaults; unknown fields are ignored."""

AnyEvent: Any = reduce(or_, EVENT_STRUCTS.values())
"""An event of any known kind."""

UnknownEvent: Any = _struct("UnknownEvent", EVENT)
"""The fields that an event of any kind has."""


def _envelope(events: Any) -> Any:
    fields = [(field.name, events if field.name == "events" else _field_type(field)) for field in ENVELOPE]
    return msgspec.defstruct("Envelope", fields, gc=False)


Envelope = _envelope(list[AnyEvent])
"""The audit envelope, with events of known kinds alone."""

RawEnvelope = _envelope(list[Raw])
"""The audit envelope, whose events are kept as JSON."""
