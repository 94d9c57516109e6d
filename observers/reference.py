"""Generates docs/audit-event.md, and a page for each kind of event, from ``observers.event`` and what it is made of."""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from observers import event, examples
from observers.account_events import LOSS_REASONS
from observers.request_events import MAX_EVENT_BYTES
from proxy.core.names import MAX_NAME

UNITS = {
    "_us": "µs",
    "_ms": "ms",
    "_bytes": "bytes",
    "bytes": "bytes",
    "_records": "records",
    "records": "records",
    "minute": "µs since 1970, UTC",
    "ts": "µs since 1970, UTC",
    "ts_request": "µs since 1970, UTC",
    "ts_first": "µs since 1970, UTC",
    "ts_last": "µs since 1970, UTC",
    "sent_at": "µs since 1970, UTC",
    "started_at": "µs since 1970, UTC",
    "requests": "requests",
    "topic_requests": "requests",
    "errors": "requests",
    "retriable": "requests",
    "protocol": "requests",
    "item_failures": "items",
    "item_retriable": "items",
    "item_protocol": "items",
    "connection_lost": "requests",
    "idle": "requests",
    "emitted": "events",
    "delivered": "events",
    "dropped": "events",
    "queued": "events",
    "spooled": "events",
    "count": "connections",
    "commits": "requests",
    "offsets_not_listed": "offsets",
}
"""Units of fields by their name, or by its end."""

INTRODUCTION = f"""\
# The audit event

Generated from `observers/event.py` by `make docs`; the examples are made by the code that makes the events.

One record of the audit topic is a JSON object, the **envelope**, of up to {event.EVENTS_PER_RECORD} events of several
kinds. It has no key.

| kind | describes |
|---|---|
{{kinds}}
Delivery is at least once: a reader removes duplicates by `(cluster_id, broker_id, boot_id, first_seq)` of the record,
or by `seq` of the event. A gap in `seq` within one `boot_id` is a loss, as large as the gap; `gap` events say why.
Events never hold a record's key or value, nor anything a client authenticates with. A request on so many partitions
that its event might need more than {MAX_EVENT_BYTES:,} bytes gives a gap instead.

A string that a client chose (`group_id`, `transactional_id`, `client_id`, `principal`, names of resources, …) and that
has more than {MAX_NAME} bytes in UTF-8 is cut. It then is its beginning, `…`, and the first 16 hexadecimal digits of
the SHA-256 of the whole. So two long names that begin alike stay two, and all sidecars cut a name alike.

Fields that have their default value are left out, but for those of the envelope.

## Levels, and what stays

`schema_level` says what a reader has to understand: a record of a higher level than it knows it must not read at all.

* Level {event.SCHEMA_LEVEL}: every kind but `rollup`.
* Level {event.ROLLUP_LEVEL}: `rollup` in place of `request`; every record that a sidecar in `audit.mode: rollup`
  writes while the fleet has finalized this level. A reader that knew requests alone would count nothing.

The level is that of the feature `{event.SCHEMA_FEATURE}` of the fleet ([features.md](features.md)). New
records have none above the finalized maximum, so that jobs of an older release find none that they must not read. In
`mode: event` the level is always {event.SCHEMA_LEVEL}. While level {event.ROLLUP_LEVEL} is not finalized, a sidecar
in `mode: rollup` writes the events of `mode: event`. A change takes effect within a second, between two records; what
was gathered before is sent at the level before, so nothing is lost, and nothing counts twice. Records that wait on disk
or in memory keep their level; `brokerside_audit_undelivered{{level}}` counts their events. If the fleet has finalized
only levels that this release cannot write, it writes nothing, and events are lost (`schema_level`).

**The start with `audit.mode: rollup`.** With `internal.bootstrap.servers` and `features.enabled: true` (the default),
a sidecar writes level {event.SCHEMA_LEVEL} until it knows that level {event.ROLLUP_LEVEL} is finalized: some seconds
after each start (`audit_level_limited` in the log). A new fleet finalizes it by itself, about 15 seconds after its
first sidecar has started, if every sidecar and job supports it. Until then there is an event for each request: allow
for that in the audit topic and the jobs. With `features.enabled: false` the sidecar writes level {event.ROLLUP_LEVEL}
from its start.

Within a level a field never changes its name, type, unit or meaning, and none goes away. There may be new kinds, which
a reader passes over, and new fields with a default. Every event has `kind` and `seq`, and a field that several kinds
have is of one type in all of them.
"""


def pages() -> dict[str, str]:
    """Return the text of each page by its path below docs/: what all events share, and one page for each kind."""
    kinds = "".join(f"| [`{_tag(kind)}`](audit-event/{_tag(kind)}.md) | {_summary(kind)} |\n" for kind in _kinds())
    shared = (
        INTRODUCTION.replace("{kinds}", kinds)
        + _section("Envelope", event.Envelope)
        + _example(examples.encode_envelope())
        + _losses()
    )
    return {"audit-event.md": shared, **{f"audit-event/{_tag(kind)}.md": _kind_page(kind) for kind in _kinds()}}


_ON_KINDS = "A kind of [audit event](../audit-event.md). Fields that have their default value are left out."


def _kinds() -> tuple[type[msgspec.Struct], ...]:
    (events,) = get_args(get_type_hints(event.Envelope)["events"])
    return get_args(events)


def _kind_page(kind: type[msgspec.Struct]) -> str:
    tag = _tag(kind)
    text = _section(f"`{tag}`", kind, f"{inspect.getdoc(kind)}\n\n{_ON_KINDS}\n\n", level=1)
    for name, inner in _inner(kind):
        text += _section(f"`{name}[]`", inner, f"{inspect.getdoc(inner)}\n\n")
    return f"{text}\n## Example\n{_example(examples.encode_event(tag))}".lstrip("\n")


def _tag(kind: type[msgspec.Struct]) -> str:
    return str(kind.__struct_config__.tag)


def _summary(kind: type[msgspec.Struct]) -> str:
    return _plain((inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " "))


def _inner(struct: type[msgspec.Struct]) -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """The structs that the arrays of ``struct`` are of, by field."""
    for name, hint in get_type_hints(struct).items():
        for inner in get_args(hint):
            if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                yield name, inner


def _section(title: str, struct: type[msgspec.Struct], before: str = "", level: int = 2) -> str:
    meanings = _meanings(struct)
    hints = get_type_hints(struct)
    rows = []
    tag = struct.__struct_config__.tag
    if tag is not None:
        rows.append(_row("kind", "string", "always", "", f"`{tag}`"))
    for field in msgspec.structs.fields(struct):
        if field.default_factory is not msgspec.NODEFAULT:
            left_out = f"`{msgspec.json.encode(field.default_factory()).decode()}`"
        elif field.required:
            left_out = "always"
        else:
            left_out = f"`{msgspec.json.encode(field.default).decode()}`"
        rows.append(_row(field.name, _json_type(hints[field.name]), left_out, _unit(field.name), meanings[field.name]))
    head = "| field | type | left out if | unit | meaning |\n|---|---|---|---|---|\n"
    return f"\n{'#' * level} {title}\n\n{_plain(before)}{head}{''.join(rows)}"


def _unit(name: str) -> str:
    return UNITS.get(name) or next((unit for end, unit in UNITS.items() if end[0] == "_" and name.endswith(end)), "")


def _row(name: str, kind: str, default: str, unit: str, meaning: str) -> str:
    left_out = "never" if default == "always" else default
    return f"| `{name}` | {kind} | {left_out} | {unit} | {_plain(meaning)} |\n"


def _plain(text: str) -> str:
    return text.replace("``", "`")


def _example(value: bytes) -> str:
    return f"\n```json\n{msgspec.json.format(value, indent=2).decode()}\n```\n"


def _losses() -> str:
    rows = "".join(f"| `{reason}` | {meaning} |\n" for reason, meaning in LOSS_REASONS.items())
    return (
        "\n## Why events are lost\n\nAs in `dropped` of a `sidecar_status` and `reason` of a `gap`. Besides these, "
        "librdkafka's name of an error that\nwill not pass, as `topic_authorization_failed`.\n\n"
        f"| reason | meaning |\n|---|---|\n{rows}"
    )


def _json_type(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " \\| ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " \\| ".join(dict.fromkeys(_json_type(argument) for argument in arguments))
    if origin in (list, tuple):
        return f"array of {_json_type(arguments[0])}"
    if origin is dict:
        return f"object of {_json_type(arguments[1])}"
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
