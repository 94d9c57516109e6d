"""Environment variables that override the file: ``BROKERSIDE_`` and the key, in capitals.

``__`` steps into a section and ``_`` stands for ``.``: ``BROKERSIDE_ADMIN__BIND`` is ``bind`` of ``admin``,
``BROKERSIDE_BROKER_ID`` is ``broker.id``. Text and librdkafka's settings take the value as it is, every other key reads
it as YAML. Lists are replaced as a whole.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from proxy.config.document import ConfigDocument, Problem, parse_variable
from proxy.config.keys import KEYS, LIBRDKAFKA_MAPPINGS, Path, is_single, printable
from proxy.config.secret_files import is_secret
from proxy.config.values import Secret

PREFIX = "BROKERSIDE_"

NOT_KEYS = frozenset(
    {
        *("BROKERSIDE_CACHE", "BROKERSIDE_MAVEN_REPOSITORY"),
        *("BROKERSIDE_ADMIN", "BROKERSIDE_TABLES"),
    }
)
"""Variables of other commands: the cache folder, the Maven repository, and defaults of their options."""

_SERVICE_LINK = re.compile(
    r"\w+_SERVICE_HOST=.*|\w+_SERVICE_PORT(_\w+)?=[0-9]+|\w+_PORT(_[0-9]+_(TCP|UDP|SCTP))?=(tcp|udp|sctp)://.*"
    r"|\w+_PORT_[0-9]+_(TCP|UDP|SCTP)_(PROTO|PORT|ADDR)=.*"
)
"""Variables that Kubernetes sets in every pod for a service whose name begins with ``brokerside``."""

TEXT = {"text", "host:port"}
"""Kinds of keys that take a variable's value as it is."""


def apply_environment(document: ConfigDocument, environ: Mapping[str, str]) -> Iterator[Problem]:
    """Put the values of ``environ`` into ``document``. Yields a problem for each variable that is no key."""
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in NOT_KEYS:
            continue
        path = _path(name)
        if path is None:
            if not _SERVICE_LINK.fullmatch(f"{name}={environ[name]}"):
                yield _unknown(name)
            continue
        try:
            _put(document, path, _value(path, environ[name]))
        except ValueError as error:
            yield Problem((printable(name),), f"its value {error}", final=True)
        else:
            document.came_from_variable(path, name)


def variable(path: Path) -> str:
    """Return the name of the variable that sets the key at ``path``."""
    return PREFIX + "__".join(str(part).upper().replace(".", "_") for part in path)


def _path(name: str) -> tuple[str, ...] | None:
    if name in _VARIABLES:
        return _VARIABLES[name]
    for mapping in LIBRDKAFKA_MAPPINGS:
        above = variable(mapping) + "__"
        if name.startswith(above) and len(name) > len(above):
            return (*mapping, name.removeprefix(above).lower().replace("_", "."))
    return None


def _value(path: tuple[str, ...], text: str) -> Any:
    key = KEYS.get(path)
    if key is None:
        return Secret(text) if is_secret(path[-1]) else text
    return text if key.kind in TEXT else parse_variable(path, text)


def _put(document: ConfigDocument, path: tuple[str, ...], value: Any) -> None:
    """Set the value, and make missing sections. Does nothing where a section is no mapping, which is reported later."""
    values = document.values
    for part in path[:-1]:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            return
    values[path[-1]] = value


def _unknown(name: str) -> Problem:
    near = difflib.get_close_matches(name, _VARIABLES, n=1, cutoff=0.8)
    hint = f"did you mean {near[0]}?" if near else "allowed: keys of docs/config.md as BROKERSIDE_SECTION__KEY"
    return Problem((printable(name),), f"is set, and is no key ({hint})")


_VARIABLES = {variable(path): path for path in KEYS if is_single(path)}
