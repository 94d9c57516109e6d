"""Generates docs/config.md, and the pages of all keys, from the model."""

from __future__ import annotations

import json
import re
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

`[]` stands for each item of a list, `<…>` for a name of yours. The name of a key leads to its description.

The column *change needs*: keys with `reload` act in the running sidecar. It reads the file again when that has changed,
and after SIGHUP, `brokerside reload` or `POST /reload`; no connection is closed for it. A file with a mistake, or with
another value for a key with `restart`, changes nothing at all: the sidecar continues with what it has, and logs why.
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

Another content of such a file needs a restart. What becomes of a renewed certificate that a setting below `internal`
names (`ssl.certificate.location`, …): [tls.md](tls.md#the-sidecars-own-connections).

The files of `tls` and `upstream.tls` of a listener are part of the configuration: it is read again when one of them has
changed, and their contents act by reload. The private key is shown nowhere ([tls.md](tls.md)).
"""


_PAGES = {
    "listeners": ("Listeners", {"listeners"}),
    "quotas": ("Quotas", {"quotas"}),
    "coordinator": ("The coordinator of consumer groups", {"coordinator"}),
    "observers": ("Observers and the audit", {"observer", "observers", "audit"}),
    "process": (
        "The process: connections, memory, log, admin port",
        {"admin", "workers", "socket", "connection", "connections", "upstream", "drain", "log"},
    ),
}
"""Title of each page, and the first words of the keys on it."""

_OTHER_PAGE = ("broker", "The broker and its cluster")
"""The page of all other keys."""


def pages() -> dict[str, str]:
    """Return the text of each page by its path below docs/: the list of all keys, and the pages that describe them."""
    head = "| key | default | change needs |\n|---|---|---|\n"
    rows, described = "", {name: f"# {title}\n\n{_ON_KEYS}\n" for name, title in _titles().items()}
    for name, title in _titles().items():
        rows += f"\n### {title}\n\n{head}"
        for key in _documented():
            if _page_of(key) == name:
                rows += _row(key)
                described[name] += _describe(key)
    index = (
        f"{_INTRODUCTION}\n{_KEYS}{rows}"
        f"\n{_ENVIRONMENT}\n{_variables()}\n{_SECRETS}\n## Complete example\n\n```yaml\n{example()}```\n"
    )
    return {"config.md": index, **{f"config/{name}.md": text for name, text in described.items()}}


_ON_KEYS = """\
Generated from `proxy/config/model.py` by `make docs`. [config.md](../config.md) lists all keys, and says when a change
of one takes effect.
"""


def _titles() -> dict[str, str]:
    return dict([_OTHER_PAGE]) | {name: title for name, (title, _) in _PAGES.items()}


def _page_of(key: Key) -> str:
    first = key.path[0].partition(".")[0]
    return next((name for name, (_, firsts) in _PAGES.items() if first in firsts), _OTHER_PAGE[0])


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


def _name(key: Key) -> str:
    return ".".join(key.path).replace(f".{ITEM}", ITEM)


def _row(key: Key) -> str:
    anchor = re.sub(r"[^\w-]", "", _name(key))  # as GitHub makes it
    unit = f" {key.unit}" if key.unit and not key.required and key.default is not None else ""
    link = f"[`{_name(key)}`](config/{_page_of(key)}.md#{anchor})"
    return f"| {link} | {_default(key)}{unit} | {_change(key)} |\n"


def _describe(key: Key) -> str:
    """Return the section of one key."""
    facts = [f"Type: {key.kind}", f"Default: {_default(key)}", f"Unit: {key.unit}" if key.unit else ""]
    facts.append(f"Change needs: {_change(key)}")
    allowed = "" if key.kind == "host:port" else key.allowed.replace(DEFAULT_ADDRESS, f"`{DEFAULT_ADDRESS}`")
    text = f"{key.meaning} Allowed: {allowed}." if allowed else key.meaning
    return f"\n## `{_name(key)}`\n\n{' · '.join(filter(None, facts))}\n\n{text}\n"


def _change(key: Key) -> str:
    return "reload" if reloadable(key.path) else "restart"


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
