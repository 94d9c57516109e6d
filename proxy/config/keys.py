"""The keys of the configuration as a flat table, by path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, get_args, get_origin

from proxy.config.key_definition import ConfigSection
from proxy.config.model import Config

Path = tuple[str | int, ...]
"""The place of a value: keys of mappings and numbers of list items, from the top."""

ITEM = "[]"
"""Stands in a table's path for the number of any list item."""

LIBRDKAFKA_MAPPINGS = (("internal",), ("audit", "producer"))
"""Mappings whose keys are librdkafka's settings."""

LISTENER_QUOTAS = ("quotas", "listener.name")
"""A mapping that the file does not have: there, ``listener.name.<listener>.<key>`` is one key."""

USER_NAMED: dict[tuple[str, ...], str] = {
    LISTENER_QUOTAS: "<listener>",
    ("quotas", "ips"): "<address>",
    ("quotas", "users"): "<user>",
    ("coordinator", "groups"): "<group>",
}
"""Mappings of sections whose keys the user chooses, and what stands for such a key in a path of the table."""


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


def _keys(model: type[ConfigSection], above: tuple[str, ...]) -> Iterator[Key]:
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


def _section(path: tuple[str, ...], annotation: Any) -> tuple[tuple[str, ...], type[ConfigSection] | None]:
    """Return what to add to the path of a section's keys, and the section that ``annotation`` is or holds; or None."""
    if isinstance(annotation, type) and issubclass(annotation, ConfigSection):
        return (), annotation
    for argument in get_args(annotation):
        if isinstance(argument, type) and issubclass(argument, ConfigSection):
            origin = get_origin(annotation)
            return () if origin is UnionType else (USER_NAMED[path],) if origin is Mapping else (ITEM,), argument
    return (), None


KEYS: dict[tuple[str, ...], Key] = {key.path: key for key in _keys(Config, ())}


def path_in_table(path: Path) -> tuple[str, ...]:
    """Return the path in the table for any item of a list and any name that the user chose."""
    parts: tuple[str, ...] = ()
    for part in path:
        parts += (ITEM if isinstance(part, int) else USER_NAMED.get(parts, part),)
    return parts


def path_in_file(path: Path) -> Path:
    """Return the path in the file of the value at ``path`` of the model."""
    if path[:2] == LISTENER_QUOTAS and len(path) > len(LISTENER_QUOTAS):
        return (path[0], ".".join(str(part) for part in path[1:]))
    return path


def is_single(path: tuple[str, ...]) -> bool:
    """Return whether ``path`` is of one key, and not of a key of each list item or of each name of the user."""
    return path != LISTENER_QUOTAS and not {ITEM, *USER_NAMED.values()} & set(path)


def reloadable(path: Path) -> bool:
    """Return whether a running sidecar takes over a change at ``path``."""
    parts = path_in_table(path)
    found = (KEYS.get(parts[:end]) for end in range(1, len(parts) + 1))
    return any(key is not None and key.reload for key in found)


def find(path: Path) -> Key | None:
    """Return the key at ``path``, or the nearest one above it."""
    parts = path_in_table(path)
    while parts and parts not in KEYS:
        parts = parts[:-1]
    return KEYS.get(parts)


def is_librdkafka_setting(path: Path) -> bool:
    """Return whether the value at ``path`` is a setting of librdkafka, or a mapping of them."""
    return any(path[: len(mapping)] == mapping for mapping in LIBRDKAFKA_MAPPINGS)


def below(path: Path) -> list[str]:
    """Return the names of the model's keys right below ``path``."""
    parts = path_in_table(path)
    return [key[-1] for key in KEYS if key[:-1] == parts and key != LISTENER_QUOTAS]


def format_path(path: Path) -> str:
    """Return ``path`` as text, such as ``listeners[0].bind``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + printable(part)
    return text


def printable(text: str) -> str:
    """Return ``text`` escaped, and cut to ``MAX_PRINTABLE`` characters, for one line of an error message."""
    if not text.isprintable():
        text = repr(text)[1:-1]
    return text if len(text) <= MAX_PRINTABLE else text[: MAX_PRINTABLE - 1] + "…"


MAX_PRINTABLE = 80
"""Characters of a key or value in an error message."""
