"""The differences between two configurations, and a fingerprint of one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from proxy.config.keys import Path, format_path, is_librdkafka_setting, printable
from proxy.config.model import Config, redacted, secrets_of
from proxy.config.values import Secret

HASH_LENGTH = 16
"""Hexadecimal digits of a configuration's hash."""

ROUNDS = 100_000
"""Iterations of the hash of a secret, so that it cannot be guessed where the rest of the configuration is known."""


HIDDEN = "***"
"""Stands for a value that is not shown."""


class Change(NamedTuple):
    """One key with another value, as text for a person. Secrets and settings below ``internal`` are ``HIDDEN``."""

    key: str
    old: str
    new: str


class Difference(NamedTuple):
    """One key whose values differ; None for no value. A listener that comes or goes is one difference."""

    path: Path
    running: Any
    wanted: Any

    def __str__(self) -> str:
        """Return why the change cannot be taken over. Values below ``internal`` are not shown."""
        text = f"{format_path(self.path)}: a change needs a restart"
        if self._is_hidden:
            return text
        return f"{text} (running: {_shown(self.running)}, file: {_shown(self.wanted)})"

    @property
    def change(self) -> Change:
        """The difference for a person."""
        old, new = (HIDDEN, HIDDEN) if self._is_hidden else (_shown(self.running), _shown(self.wanted))
        return Change(format_path(self.path), old, new)

    @property
    def _is_hidden(self) -> bool:
        if isinstance(self.running, Secret) or isinstance(self.wanted, Secret):
            return True
        return self.path[0] == "internal.bootstrap.servers" or is_librdkafka_setting(self.path)


def differences(running: Config, wanted: Config, pause: Callable[[], None] = lambda: None) -> list[Difference]:
    """Return the differences in the order of the keys. Listeners are compared by name; their numbers are those of
    ``wanted``.

    ``pause``: called often, so that the caller's process can do other work meanwhile.
    """
    before, after = ([listener.name for listener in config.listeners] for config in (running, wanted))
    other = _values(wanted, pause)
    one = {_renumbered(path, before, after): value for path, value in _values(running, pause).items()}
    for names, others, values in ((before, after, one), (after, before, other)):
        for name in names:
            if name not in others:
                number = _number(name, before, after)
                for path in [path for path in values if path[:2] == ("listeners", number)]:
                    del values[path]
                values["listeners", number] = name
    found = [Difference(path, one.get(path), other.get(path)) for path in one | other]
    return [difference for difference in found if difference.running != difference.wanted]


def _number(name: str, before: list[str], after: list[str]) -> int:
    """Return the number of a listener: the one in ``after``, or one behind all of these."""
    return after.index(name) if name in after else len(after) + [one for one in before if one not in after].index(name)


def _renumbered(path: Path, before: list[str], after: list[str]) -> Path:
    """Return the path of a value of the running configuration with the number that its listener has."""
    if path[0] != "listeners" or len(path) == 1:
        return path
    assert isinstance(path[1], int)
    return ("listeners", _number(before[path[1]], before, after), *path[2:])


def fingerprint(config: Config, pause: Callable[[], None] = lambda: None) -> str:
    """Return ``HASH_LENGTH`` hexadecimal digits, which are equal in every process for an equal configuration."""
    digest = hashlib.sha256()
    for line in sorted(json.dumps([path, _hashed(path, value)]) for path, value in _values(config, pause).items()):
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()[:HASH_LENGTH]


def _values(config: Config, pause: Callable[[], None]) -> dict[Path, Any]:
    values: dict[Path, Any] = {}
    for path, value in _leaves((), {**redacted(config), "internal": dict(config.internal)}):
        pause()
        values[path] = value
    return values | dict(secrets_of(config))


def _leaves(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, Mapping):
        for name, below in value.items():
            yield from _leaves((*path, name), below)
    elif path == ("listeners",):
        for number, below in enumerate(value):
            yield from _leaves((*path, number), below)
    else:
        yield path, value


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _hashed(path: Path, value: Any) -> Any:
    return {"hash": _hash(value, format_path(path))} if isinstance(value, Secret) else value


@lru_cache(maxsize=32)
def _hash(secret: Secret, salt: str) -> str:
    return hashlib.pbkdf2_hmac("sha256", secret.reveal().encode(), salt.encode(), ROUNDS).hex()
