"""The model as a flat table: one entry per key, found by its path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from proxy.config.key_definition import Section
from proxy.config.model import Config

Path = tuple[str | int, ...]
"""Where a value stands: keys of mappings and numbers of list items, from the top."""

ITEM = "[]"
"""Stands in a table's path for the number of any list item."""

OPEN = (("internal",), ("audit", "producer"))
"""Mappings whose keys are librdkafka's, not ours."""

GATHERED = ("quotas", "listener.name")
"""Keys that are no mapping in the file: the names of listener and key are parts of one key there."""

NAMED: dict[tuple[str, ...], str] = {GATHERED: "<listener>", ("quotas", "ips"): "<address>"}
"""Mappings of sections whose names are the user's, and what stands for these in a table's path."""


@dataclass(frozen=True)
class Key:
    """One key of the model, as ``proxy.config.key_definition.key`` defines it.

    ``section``: whether it holds further keys of the model.
    """

    path: tuple[str, ...]
    kind: str
    allowed: str
    unit: str
    reload: bool
    example: str | None
    shown_default: str | None
    default: Any
    required: bool
    meaning: str
    section: bool


def _keys(model: type[Section], above: tuple[str, ...]) -> Iterator[Key]:
    for field in model.model_fields.values():
        assert field.alias is not None
        assert isinstance(field.json_schema_extra, dict)
        notes: dict[str, Any] = dict(field.json_schema_extra)
        path = (*above, field.alias)
        below, inner = _section(path, field.annotation)
        yield Key(
            path=path,
            default=field.default_factory if field.default_factory is not None else field.default,
            required=field.is_required(),
            meaning=field.description or "",
            section=inner is not None,
            **notes,
        )
        if inner is not None:
            yield from _keys(inner, path + below)


def _section(path: tuple[str, ...], annotation: Any) -> tuple[tuple[str, ...], type[Section] | None]:
    """Return the section that ``annotation`` is or holds many of, and what to add to the path of its keys."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return (), annotation
    for argument in get_args(annotation):
        if isinstance(argument, type) and issubclass(argument, Section):
            return ((NAMED[path],) if get_origin(annotation) is Mapping else (ITEM,)), argument
    return (), None


KEYS: dict[tuple[str, ...], Key] = {key.path: key for key in _keys(Config, ())}


def pattern(path: Path) -> tuple[str, ...]:
    """Return ``path`` as it stands in the table, whichever item of a list or name of the user's it leads to."""
    parts: tuple[str, ...] = ()
    for part in path:
        parts += (ITEM if isinstance(part, int) else NAMED.get(parts, part),)
    return parts


def written(path: Path) -> Path:
    """Return where in the file the value at ``path`` of the model stands."""
    if path[:2] == GATHERED and len(path) > len(GATHERED):
        return (path[0], ".".join(str(part) for part in path[1:]))
    return path


def single(path: tuple[str, ...]) -> bool:
    """Return whether ``path`` leads to one key, and not to one of each item or of each of the user's names."""
    return path != GATHERED and not {ITEM, *NAMED.values()} & set(path)


def reloadable(path: Path) -> bool:
    """Return whether a change at ``path`` needs no restart."""
    parts = pattern(path)
    found = (KEYS.get(parts[:end]) for end in range(1, len(parts) + 1))
    return any(key is not None and key.reload for key in found)


def find(path: Path) -> Key | None:
    """Return the key at ``path``, or the nearest one above it."""
    parts = pattern(path)
    while parts and parts not in KEYS:
        parts = parts[:-1]
    return KEYS.get(parts)


def below(path: Path) -> list[str]:
    """Return the names of the model's keys right below ``path``."""
    parts = pattern(path)
    return [key[-1] for key in KEYS if key[:-1] == parts and key != GATHERED]


def show(path: Path) -> str:
    """Return ``path`` as people write it: ``listeners[0].bind``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + printable(part)
    return text


def printable(text: str) -> str:
    """Return ``text`` fit for one line: escaped and cut to 80 characters."""
    if not text.isprintable():
        text = repr(text)[1:-1]
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


MAX_SHOWN = 80
"""Characters of a key or value in an error message."""
