"""Writes docs/audit-event.md from ``observers.event``: ``python -m observers.reference > docs/audit-event.md``."""

from __future__ import annotations

import ast
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from observers import event
from observers.event import SCHEMA_LEVEL, Envelope, RequestEvent, ThrottleEvent, TopicPartition
from observers.translate import MAX_EVENT

UNITS = {
    "ts_request": "µs since 1970, UTC",
    "ts_first": "µs since 1970, UTC",
    "ts_last": "µs since 1970, UTC",
    "sent_at": "µs since 1970, UTC",
    "latency_us": "µs",
    "throttle_ms": "ms",
    "max_wait_ms": "ms",
    "delay_ms": "ms",
    "request_bytes": "bytes",
    "response_bytes": "bytes",
    "bytes": "bytes",
    "records": "records",
    "dropped": "events",
    "count": "connections",
}

EXAMPLE = Envelope(
    schema_level=SCHEMA_LEVEL,
    cluster_id="ThK9ZFduS0ONy_eg3SRv7w",
    broker_id=1,
    boot_id="5f0c4c0d9a4b4e0f8a86b6c2f6f0f3a1",
    sidecar_version="0.1.0",
    first_seq=41,
    last_seq=43,
    dropped=0,
    sent_at=1795260652500000,
    events=[
        RequestEvent(
            seq=41,
            listener="CLIENT",
            connection_id="c7",
            correlation_id=12,
            api_key=0,
            api="Produce",
            api_version=13,
            principal="User:ANONYMOUS",
            client_ip="127.0.0.1",
            ts_request=1795260652123456,
            latency_us=2150,
            request_bytes=1211,
            response_bytes=74,
            decode="full",
            client_id="billing",
            client_software_name="apache-kafka-java",
            client_software_version="4.3.1",
            acks=-1,
            topics=(
                TopicPartition(
                    topic="invoices",
                    partition=3,
                    topic_id="AAAAAAAAAAEAAAAAAAAAAg",
                    bytes=1100,
                    records=10,
                    producer_id=4000,
                    producer_epoch=0,
                    base_sequence=120,
                    base_offset=5120,
                ),
            ),
        ),
        RequestEvent(
            seq=42,
            listener="CLIENT",
            connection_id="c8",
            correlation_id=5,
            api_key=3,
            api="Metadata",
            api_version=13,
            principal="User:ANONYMOUS",
            client_ip="127.0.0.1",
            ts_request=1795260652200000,
            latency_us=810,
            request_bytes=38,
            response_bytes=412,
        ),
        ThrottleEvent(
            seq=43,
            listener="CLIENT",
            client_ip="10.1.2.3",
            scope="ip",
            quota="connection_creation_rate",
            action="hold",
            count=37,
            limit=20,
            observed=25.118,
            ts_first=1795260651300000,
            ts_last=1795260652190000,
            delay_ms=1000,
        ),
    ],
)

INTRODUCTION = f"""\
# The audit event, level {SCHEMA_LEVEL}

Generated from `observers/event.py` by `python -m observers.reference`.

One record of the audit topic is a JSON object, the **envelope**, of up to {event.EVENTS_PER_RECORD} events of several
kinds. A reader passes over events of a `kind` that it does not know. Every event has `kind` and `seq`, and a field that
several kinds have is of one type in all of them.

Delivery is at least once: a reader removes duplicates by `(cluster_id, broker_id, boot_id, first_seq)` of the record,
or by `seq` of the event. A gap in `seq` within one `boot_id` is a loss, as large as the gap. Events never hold a
record's key or value. Strings a client chose are cut at {event.MAX_STRING} characters and then end in `…`.
A request on so many partitions that its event might need more than {MAX_EVENT:,} bytes gives a gap instead.

Fields of events and partitions that have their default value are left out.
"""


def markdown() -> str:
    """Return the whole page."""
    example = msgspec.json.format(event.encoder.encode(EXAMPLE), indent=2).decode()
    return (
        INTRODUCTION
        + "".join(_section(title, struct) for title, struct in _sections())
        + f"\n## Example record\n\n```json\n{example}\n```\n"
    )


def _sections() -> Iterator[tuple[str, type[msgspec.Struct]]]:
    yield "Envelope", Envelope
    yield "Event of a request: `events[]`", RequestEvent
    yield "Partition: `events[].topics[]`", TopicPartition
    yield "Event of a throttle: `events[]`", ThrottleEvent


def _section(title: str, struct: type[msgspec.Struct]) -> str:
    meanings = _meanings(struct)
    hints = get_type_hints(struct)
    rows = []
    tag = struct.__struct_config__.tag
    if tag is not None:
        rows.append(
            _row(str(struct.__struct_config__.tag_field), "string", "always", "", f"`{tag}`: the kind of event.")
        )
    for field in msgspec.structs.fields(struct):
        default = "always" if field.required else f"`{msgspec.json.encode(field.default).decode()}`"
        rows.append(
            _row(field.name, _json_type(hints[field.name]), default, UNITS.get(field.name, ""), meanings[field.name])
        )
    head = "| field | type | left out if | unit | meaning |\n|---|---|---|---|---|\n"
    return f"\n## {title}\n\n{head}{''.join(rows)}"


def _row(name: str, kind: str, default: str, unit: str, meaning: str) -> str:
    left_out = "never" if default == "always" else default
    return f"| `{name}` | {kind} | {left_out} | {unit} | {meaning.replace('``', '`')} |\n"


def _json_type(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " \\| ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " \\| ".join(dict.fromkeys(_json_type(argument) for argument in arguments))
    if origin in (list, tuple):
        return f"array of {_json_type(arguments[0])}"
    names = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
    return names.get(hint) or "object"


def _meanings(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Return the string literal that follows each field in the source of ``struct``, on one line."""
    (definition,) = ast.parse(inspect.getsource(struct)).body
    assert isinstance(definition, ast.ClassDef)
    meanings = {}
    for field, after in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            meanings[field.target.id] = " ".join(str(after.value.value).split())
    return meanings


if __name__ == "__main__":
    sys.stdout.write(markdown())
