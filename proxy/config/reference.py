"""Writes docs/config.md from the model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from proxy.config.environment import NOT_KEYS, variable
from proxy.config.keys import ITEM, KEYS, LIBRDKAFKA_MAPPINGS, LISTENER_QUOTAS, USER_NAMED, Key, is_single, reloadable
from proxy.config.values import Endpoint
from proxy.limits.model import DEFAULT_ADDRESS

_INTRODUCTION = """\
# Configuration

Generated from `proxy/config/model.py` by `make docs`.

One YAML file: `brokerside run -c FILE`. `brokerside check-config FILE` checks it without starting anything, and
reports all errors at once: key, value, what is allowed, line and column. Key names contain dots, and are written as
shown here. An unknown key is an error, so that no typing error goes unnoticed.
"""

_KEYS = """\
## Keys

`[]` stands for each item of a list, `<…>` for a name of yours.

The column *change needs*: keys with `reload` act in the running sidecar. It reads the file again when that has changed,
and after SIGHUP, `brokerside reload` or `POST /reload`; no connection is closed for it. A file with a mistake, or with
another value for a key with `restart`, changes nothing at all: the sidecar goes on with what it has, and logs why.
"""

_ENVIRONMENT = """\
## Environment variables

A variable overrides the file: `BROKERSIDE_` and the key in capitals, with `_` for `.` and `__` to step into a section.
Keys of type text or host:port and settings of librdkafka take the value as it is; all others read it as YAML. A list is
replaced as a whole, so there are no variables for the keys of one listener, nor for the quotas of one.
"""

_SECRETS = """\
## Secrets

A secret never stands in the configuration. Any setting below `internal` may be `{file: PATH}`, the text of another
file without its line end; a path that is not absolute is relative to the configuration's folder. Settings that hold a
secret (`sasl.password`, `ssl.key.password`, `ssl.key.pem`, `sasl.oauthbearer.client.secret`, …) must be, or come from
their variable, here `BROKERSIDE_INTERNAL__SASL_PASSWORD`. They are shown as `***` wherever the configuration is.

Other contents of such a file, or of one that a setting below `internal` names (`ssl.ca.location`, …), need a restart.

The files of `tls` and `upstream.tls` of a listener are part of the configuration: it is read again when one of them has
changed, and their contents act by reload. The private key is shown nowhere ([tls.md](tls.md)).
"""


def reference_markdown() -> str:
    """Return the whole page."""
    rows = "".join(_row(key) for key in _documented())
    head = "| key | type | default | unit | change needs | meaning |\n|---|---|---|---|---|---|\n"
    return (
        f"{_INTRODUCTION}\n{_KEYS}\n{head}{rows}"
        f"\n{_ENVIRONMENT}\n{_variables()}\n{_SECRETS}\n## Complete example\n\n```yaml\n{example()}```\n"
    )


def example() -> str:
    """Return a configuration that uses every key there is."""
    return "".join(f"{line}\n" for line in _example(())).replace("\n\n\n", "\n\n").strip("\n") + "\n"


def _example(above: tuple[str, ...]) -> Iterator[str]:
    """Give the lines of all keys below ``above``, without indentation."""
    for key in KEYS.values():
        if key.path[:-1] != above:
            continue
        name, value = key.path[-1], "" if key.example is None else key.example
        if key.path == LISTENER_QUOTAS:
            yield from (f"{name}.client.{line}" for line in _example((*key.path, USER_NAMED[key.path])))
        elif key.section and key.path not in USER_NAMED:
            is_list = key.kind.startswith("list")
            first, *lines = _example((*key.path, ITEM) if is_list else key.path)
            indent = 4 if is_list else 2
            blank = [""] * (not above)  # around sections at the top alone
            yield from blank
            yield f"{name}:"
            yield f"  - {first}" if is_list else f"  {first}"
            yield from (" " * indent + line for line in lines)
            yield from value.split("\n")[1:]
            yield from blank
        else:
            first, *lines = (f"{name}: {value or _literal(key.default)}").split("\n")
            yield first.rstrip()
            yield from lines


def _documented() -> list[Key]:
    """Return every key but the sections that only group others."""
    return [key for key in KEYS.values() if key.meaning]


def _row(key: Key) -> str:
    name = ".".join(key.path).replace(f".{ITEM}", ITEM)
    allowed = (
        "" if key.kind == "host:port" else f" Allowed: {key.allowed.replace(DEFAULT_ADDRESS, f'`{DEFAULT_ADDRESS}`')}."
    )
    change = "reload" if reloadable(key.path) else "restart"
    return f"| `{name}` | {key.kind} | {_default(key)} | {key.unit} | {change} | {key.meaning}{allowed} |\n"


def _default(key: Key) -> str:
    if key.required:
        return "required"
    if key.shown_default is not None:
        return key.shown_default
    return "none" if key.default is None else f"`{_literal(key.default)}`"


def _literal(value: Any) -> str:
    if callable(value):
        value = value()
    return str(value) if isinstance(value, Endpoint) or (isinstance(value, str) and value) else json.dumps(value)


def _variables() -> str:
    names = [variable(key.path) for key in _documented() if is_single(key.path)]
    names += [f"{variable(mapping)}__…" for mapping in LIBRDKAFKA_MAPPINGS]
    lines = "".join(f"* `{name}`\n" for name in names)
    others = ", ".join(f"`{name}`" for name in sorted(NOT_KEYS))
    return (
        f"{lines}\nAny other variable that begins with `BROKERSIDE_` is a mistake, but for those\n"
        f"of other commands ({others}) and\n"
        "those that Kubernetes sets in pods for services named `brokerside…`.\n"
    )
