"""Writes the rows of ``proxy/core/apis.py`` from the message definitions inside kafka-clients jars.

Run ``python -m tests.tools.generate_apis NEWEST_JAR [OLDER_JAR …]``. The range of versions of an api spans all jars
given; its other columns come from the first jar that still has it.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

REQUEST = re.compile(r"common/message/(\w+)Request\.json")
COMMENT = re.compile(r"(^|\s)//.*$", re.MULTILINE)

ROOT = Path(__file__).parents[2]
FILE = ROOT / "proxy" / "core" / "apis.py"
START = "APIS: dict[int, Api] = {\n"


def definition(jar: zipfile.ZipFile, name: str) -> dict[str, Any]:
    """Return one message definition: JSON with comments, in old jars with junk after its end."""
    text = COMMENT.sub("", jar.read(name).decode())
    parsed: dict[str, Any] = json.JSONDecoder().raw_decode(text.lstrip())[0]
    return parsed


def definitions(path: Path) -> dict[int, dict[str, Any]]:
    """Return the live requests of one jar by api key. Raises ValueError where a response disagrees with its request."""
    found: dict[int, dict[str, Any]] = {}
    with zipfile.ZipFile(path) as jar:
        for match in filter(None, map(REQUEST.fullmatch, jar.namelist())):
            request = definition(jar, match[0])
            response = definition(jar, match[0].replace("Request.json", "Response.json"))
            for column in ("apiKey", "validVersions", "flexibleVersions"):
                if request.get(column) != response.get(column):
                    raise ValueError(f"{path.name}: {match[1]}: {column} differs between request and response")
            if request["validVersions"] != "none":
                found[request["apiKey"]] = request
    return found


def versions(text: str) -> tuple[int, int]:
    """Parse ``3-13`` or ``0``."""
    low, _, high = text.partition("-")
    return int(low), int(high or low)


def row(key: int, known: list[dict[str, Any]]) -> str:
    """Return the table's line of one api; ``known`` holds its definitions, newest jar first."""
    newest = known[0]
    ranges = [versions(one["validVersions"]) for one in known]
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    flexible = newest["flexibleVersions"]
    since = None if flexible == "none" else int(flexible.removesuffix("+"))
    listeners = (
        "(" + ", ".join(f'"{name}"' for name in newest["listeners"]) + ("," * (len(newest["listeners"]) == 1)) + ")"
    )
    name = newest["name"].removesuffix("Request")
    return f'    {key}: Api("{name}", {low}, {high}, {since}, {listeners}),\n'


def generate(jars: list[Path]) -> str:
    """Return the text of ``proxy/core/apis.py``."""
    known = [definitions(path) for path in jars]
    keys = sorted(set().union(*known))
    rows = (row(key, [one[key] for one in known if key in one]) for key in keys)
    return renewed(FILE, jars, START, "".join(rows) + "}\n")


def renewed(file: Path, jars: list[Path], start: str, rows: str) -> str:
    """Return the text of ``file`` with the names of these jars at its top, and with these rows after ``start``."""
    head = file.read_text().partition(start)[0]
    lines = (f"#   {path.name} sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}\n" for path in jars)
    return re.sub(r"(^#   .*\n)+", "".join(lines), head, count=1, flags=re.MULTILINE) + start + rows


if __name__ == "__main__":
    FILE.write_text(generate([Path(name) for name in sys.argv[1:]]))
