"""Writes ``proxy/core/schema_table.py`` from the message definitions inside kafka-clients jars.

Run ``python -m tests.tools.generate_schema NEWEST_JAR [OLDER_JAR …]``. A version of a message is as the first jar that
has it defines it.
"""

from __future__ import annotations

import sys
import textwrap
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.tools.generate_apis import REQUEST, ROOT, definition, renewed, versions

LINE = 120

TOPIC_NAMES = ("Name", "Topic", "TopicName")
"""What the field is called that names the topic a struct is about (others name further topics)."""

FILE = ROOT / "proxy" / "core" / "schema_table.py"
START = "REQUESTS: dict[int, str] = {\n"


def generate(jars: list[Path]) -> str:
    """Return the text of ``proxy/core/schema_table.py``."""
    known = [messages(path) for path in jars]
    requests, responses = (_table(kind, known) for kind in ("Request", "Response"))
    return renewed(FILE, jars, START, f"{requests}\nRESPONSES: dict[int, str] = {{\n{responses}")


def messages(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the live messages of one jar by kind (``Request`` or ``Response``) and api key."""
    found = {}
    with zipfile.ZipFile(path) as jar:
        for match in filter(None, map(REQUEST.fullmatch, jar.namelist())):
            for kind in ("Request", "Response"):
                message = definition(jar, match[0].replace("Request.json", f"{kind}.json"))
                if message["validVersions"] != "none":
                    found[kind, message["apiKey"]] = message
    return found


def _table(kind: str, known: list[dict[tuple[str, int], dict[str, Any]]]) -> str:
    keys = sorted({key for one in known for found, key in one if found == kind})
    rows = (_row(key, [one[kind, key] for one in known if (kind, key) in one]) for key in keys)
    return "".join(rows) + "}\n"


def _row(key: int, known: list[dict[str, Any]]) -> str:
    """Return the lines of one message; ``known`` holds its definitions, newest jar first."""
    parts = []
    newer = 1 << 15
    for message in known:
        low, high = versions(message["validVersions"])
        high = min(high, newer - 1)
        if low <= high:
            parts.append(_part(message, low, high))
            newer = low
    text = "; ".join(parts)
    short = f'    {key}: "{text}",\n'
    if len(short) <= LINE + 1:
        return short
    width = LINE - 10 if len(text) <= LINE - 10 else LINE - 11
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    body = "".join(f'        "{line} "\n' for line in lines[:-1])
    return f'    {key}: (\n{body}        "{lines[-1]}"\n    ),\n'


def _part(message: dict[str, Any], low: int, high: int) -> str:
    common = {struct["name"]: struct["fields"] for struct in message.get("commonStructs", ())}
    flexible = message["flexibleVersions"]
    since = "-" if flexible == "none" else flexible.removesuffix("+")
    return " ".join([f"{low}-{high}", since, *_fields(message["fields"], common, low, high)])


def _fields(
    fields: Iterable[dict[str, Any]], common: dict[str, list[dict[str, Any]]], low: int, high: int
) -> Iterator[str]:
    """Yield the text of those ``fields`` that live in any version from ``low`` to ``high``."""
    for field in fields:
        living = _range(field["versions"], low, high)
        if living is None:
            continue
        if "flexibleVersions" in field or field.get("taggedVersions", field["versions"]) != field["versions"]:
            raise ValueError(f"{field['name']}: flexible or tagged in other versions than those it is in")
        array = field["type"].startswith("[]")
        kind = field["type"].removeprefix("[]")
        nested = field.get("fields", common.get(kind))
        if nested is not None:
            kind = "{" + " ".join(_fields(nested, common, *living)) + "}"
        is_topic = field.get("entityType") == "topicName" and not array and field["name"] in TOPIC_NAMES
        text = field["name"] + "~" * is_topic
        text += f":[{kind}]" if array else f":{kind}"
        if living != (low, high):
            text += f"@{living[0]}-{living[1]}"
        nullable = _range(field.get("nullableVersions", "none"), *living)
        if nullable is not None:
            text += "?" if nullable == living else f"?{nullable[0]}-{nullable[1]}"
        if "tag" in field:
            text += f"#{field['tag']}"
            if field.get("default", "") != "":
                text += f"={field['default']}".lower()
        yield text


def _range(text: str, low: int, high: int) -> tuple[int, int] | None:
    """Return what of ``text`` (``3-13``, ``3+``, ``3`` or ``none``) lies from ``low`` to ``high``; None if nothing."""
    if text == "none":
        return None
    first, last = (int(text[:-1]), high) if text.endswith("+") else versions(text)
    first, last = max(first, low), min(last, high)
    return (first, last) if first <= last else None


if __name__ == "__main__":
    FILE.write_text(generate([Path(name) for name in sys.argv[1:]]))
