"""Damaged copies of a valid configuration: each is a mistake, or a change that needs a restart, and one only.

What is made is right by construction and not by asking the loader, so that a loader that lets one pass is found out.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from proxy.config.keys import (
    KEYS,
    LIBRDKAFKA_MAPPINGS,
    LISTENER_QUOTAS,
    USER_NAMED,
    Key,
    Path,
    format_path,
    path_in_table,
    reloadable,
)
from proxy.config.quotas import split_listener_key

WRONG: dict[str, tuple[Any, ...]] = {
    "integer": ("x", True, 1.5, [1], {"a": 1}, -1, 2**31, 2**70),
    "boolean": ("x", 1, [True], {"a": 1}),
    "text": (5, [1], {"a": 1}, True),
    "host:port": ("x", 5, "a:70000", "a b:1", [1]),
    "list of text": (5, {"a": 1}, [5]),
    "list of mappings": (5, "x", [], {"a": 1}),
    "mapping": (5, "x", [1]),
    "mapping of mappings": (5, "x", [1], {"User:kafka": {"connection_creation_rate": 1}}, {"::1": "5"}),
}
"""Values that no key of the kind may have."""

BROKEN_LINES = ("}", "]", "@x", "\tx: 1", "\x01", "*nowhere")
"""Lines that make a mistake of a file wherever they stand between those of a block."""

NEEDED_BY_OTHERS = {
    "internal.bootstrap.servers",
    "rewrite.addresses",
    "proxy.protocol.trusted",
    "max.connections.per.ip.overrides",
    "max.connections.per.principal.overrides",
    "security.protocol",
}
"""Without these, other keys of the file may be mistakes too."""

OTHERS = {
    "security.protocol": ("PLAINTEXT", "SASL_PLAINTEXT"),
    "proxy.protocol": ("required", "disabled"),
    "observer.class.names": (["a:B"], ["c:D"]),
    "proxy.protocol.trusted": (["192.0.2.0/24"], ["198.51.100.0/24"]),
    "upstream.source": ("127.0.0.8", "127.0.0.9"),
    "internal.bootstrap.servers": ("192.0.2.1:9", "192.0.2.2:9"),
}
"""Two good values each, of which a configuration can have one only."""


@dataclass(frozen=True)
class Mutation:
    """``what`` was done, for people, and the ``text`` of the file with it."""

    what: str
    text: str


def mutations(text: str, count: int, seed: int = 0) -> list[Mutation]:
    """Return ``count`` different mutations of the configuration ``text``, the same ones each time."""
    tree = yaml.safe_load(text)
    made = {mutation.text: mutation for mutation in _all(tree)}
    return random.Random(seed).sample(list(made.values()), count)


def _all(tree: dict[str, Any]) -> Iterator[Mutation]:
    yield from _damaged_lines(tree)
    for path, value in _walk((), tree):
        key = _key(path)
        if any(path[: len(above)] == above and path != above for above in LIBRDKAFKA_MAPPINGS):
            yield _with(tree, path, [1], "is a list")
            yield _with(tree, path, f"{value}x", "is another one")
        elif key is None:  # an item of a list, or a name of the user's
            continue
        else:
            yield from _of_key(tree, path, value, key)
    for above in [(), ("audit",), ("admin",), ("quotas",), ("listeners", 0)]:
        if _get(tree, above) is not None:
            yield _with(tree, (*above, "threads"), 4, "is added")
            yield _with(tree, (*above, "max.connection.creation.rate.per.ip"), 4, "is added")
    yield _with(tree, ("quotas", "listener.name.nobody.max.connections"), 4, "is added")


def _of_key(tree: dict[str, Any], path: Path, value: Any, key: Key) -> Iterator[Mutation]:
    for wrong in WRONG[key.kind]:
        yield _with(tree, path, wrong, f"is {wrong!r}")
    if key.required:
        yield _edited(tree, path, lambda above, name: above.pop(name), "is left out")
    elif path[-1] not in NEEDED_BY_OTHERS:
        yield _edited(tree, path, lambda above, name: above.__setitem__(f"{name}x", above.pop(name)), "is retitled")
    if not key.section and not reloadable(path) and path[-1] != "name":
        yield _with(tree, path, _another(key, value), "is another one")


def _another(key: Key, value: Any) -> Any:
    if key.path[-1] in OTHERS:
        return next(other for other in OTHERS[key.path[-1]] if other != value)
    if key.kind == "boolean":
        return not value
    if key.kind == "integer":
        return value + 1 if value < 2**31 - 1 else value - 1
    if key.kind == "host:port":
        host, _, port = value.rpartition(":")
        return f"{host}:{(int(port) + 20_000) % 65_536 or 1}"
    if key.kind == "list of text":
        return [*value, "User:more" if "principals" in key.path[-1] else "more"]
    return f"{value}x"


def _damaged_lines(tree: dict[str, Any]) -> Iterator[Mutation]:
    lines = _text(tree).splitlines()
    for number, line in enumerate(lines, 1):
        broken = BROKEN_LINES[number % len(BROKEN_LINES)]
        yield Mutation(f"line {number} is followed by {broken!r}", _joined(lines[:number], broken, lines[number:]))
        if ": " in line and not line.lstrip().startswith("- ") and not line.endswith(("{", "[")):
            yield Mutation(f"line {number} stands there twice", _joined(lines[:number], line, lines[number:]))


def _joined(before: list[str], line: str, after: list[str]) -> str:
    return "\n".join([*before, line, *after, ""])


def _walk(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    if path:
        yield path, value
    for name, below in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield from _walk((*path, name), below)


def _key(path: Path) -> Key | None:
    found = split_listener_key(str(path[1])) if len(path) == 2 and path[0] == "quotas" else None
    return KEYS.get((*LISTENER_QUOTAS, USER_NAMED[LISTENER_QUOTAS], found[1]) if found else path_in_table(path))


def _get(tree: Any, path: Path) -> Any:
    for part in path:
        tree = tree[part] if isinstance(tree, list) or part in tree else None
        if tree is None:
            return None
    return tree


def _with(tree: dict[str, Any], path: Path, value: Any, what: str) -> Mutation:
    return _edited(tree, path, lambda above, name: above.__setitem__(name, value), what)


def _edited(tree: dict[str, Any], path: Path, edit: Callable[[Any, Any], object], what: str) -> Mutation:
    changed = copy.deepcopy(tree)
    edit(_get(changed, path[:-1]), path[-1])
    return Mutation(f"{format_path(path)} {what}", _text(changed))


def _text(tree: dict[str, Any]) -> str:
    return yaml.safe_dump(tree, sort_keys=False, width=10_000, allow_unicode=True)
