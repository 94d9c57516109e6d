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


class Difference(NamedTuple):
    """One key whose values differ; None for no value."""

    path: Path
    running: Any
    wanted: Any

    def __str__(self) -> str:
        """Return why the change cannot be taken over. Values below ``internal`` are not shown."""
        text = f"{format_path(self.path)}: a change needs a restart"
        if isinstance(self.running, Secret) or isinstance(self.wanted, Secret):
            return text
        if self.path[0] == "internal.bootstrap.servers" or is_librdkafka_setting(self.path):
            return text
        return f"{text} (running: {_shown(self.running)}, file: {_shown(self.wanted)})"


def differences(running: Config, wanted: Config, pause: Callable[[], None] = lambda: None) -> list[Difference]:
    """Return the differences in the order of the keys. Other numbers of listeners are one difference, of their names.

    ``pause``: called often, so that the caller's process can do other work meanwhile.
    """
    one, other = _values(running, pause), _values(wanted, pause)
    if len(running.listeners) != len(wanted.listeners):
        for values, config in ((one, running), (other, wanted)):
            for path in [path for path in values if path[0] == "listeners"]:
                del values[path]
            values["listeners",] = [listener.name for listener in config.listeners]
    found = [Difference(path, one.get(path), other.get(path)) for path in one | other]
    return [difference for difference in found if difference.running != difference.wanted]


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
        if path[-1:] in (("tls",), ("upstream.tls",)):
            yield path, "given"  # whether there is TLS at all is a difference of its own
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
