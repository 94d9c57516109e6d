"""Writes the files whose source is the code, or another file: ``python -m tests.tools.reference`` (``make docs``).

With ``--check`` (``make check``) it writes nothing, and fails where a file is not what its source gives.
"""

from __future__ import annotations

import sys
from pathlib import Path

import observers.reference
import proxy.config.reference
import proxy.interceptors.tags
import proxy.protocol.reference
import proxy.telemetry.reference
import spark_jobs.schemas.reference
from tests.tools import promises
from tests.tools.values_schema import values_schema

ROOT = Path(__file__).parents[2]
CHART = "deploy/helm/brokerside"
RULES = "deploy/prometheus/brokerside.rules.yaml"

FOLDERS = ("docs/audit-event", "docs/config", "docs/tables")
"""Folders of generated files alone."""


def files() -> dict[str, str]:
    pages = {
        **proxy.config.reference.pages(),
        "tags.md": proxy.interceptors.tags.reference_markdown(),
        **proxy.protocol.reference.pages(),
        "metrics.md": proxy.telemetry.reference.reference_markdown(),
        **observers.reference.pages(),
        **spark_jobs.schemas.reference.pages(),
    }
    return {
        **{f"docs/{name}": text for name, text in pages.items()},
        "docs/promises.md": promises.page(),
        f"{CHART}/values.schema.json": values_schema(),
        # A chart reads no files outside of its folder.
        f"{CHART}/files/brokerside.rules.yaml": (ROOT / RULES).read_text(),
    }


def main(arguments: list[str]) -> int:
    made = files()
    there = {str(path.relative_to(ROOT)) for folder in FOLDERS for path in (ROOT / folder).glob("*")}
    stale = [name for name, text in made.items() if _read(ROOT / name) != text]
    stale += sorted(there - made.keys())
    if arguments == ["--check"]:
        print(*(f"{name} is out of date: run make docs" for name in stale), sep="\n", end="\n" if stale else "")
        return 1 if stale else 0
    for name in stale:
        path = ROOT / name
        if name in made:
            path.parent.mkdir(exist_ok=True)
            path.write_text(made[name])
        else:
            path.unlink()
        print(name)
    return 0


def _read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
