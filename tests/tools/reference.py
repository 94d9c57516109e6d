"""Writes the files whose source is the code, or another file: ``python -m tests.tools.reference`` (``make docs``).

With ``--check`` (``make check``) it writes nothing, and fails where a file is not what its source gives.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import observers.reference
import proxy.config
import proxy.interceptors.tags
import proxy.protocol.reference
import proxy.telemetry.reference
import spark_jobs.schemas.reference
from tests.tools.values_schema import values_schema

ROOT = Path(__file__).parents[2]
CHART = "deploy/helm/brokerside"
RULES = "deploy/prometheus/brokerside.rules.yaml"

FILES: dict[str, Callable[[], str]] = {
    "docs/config.md": proxy.config.reference_markdown,
    "docs/tags.md": proxy.interceptors.tags.reference_markdown,
    "docs/protocol.md": proxy.protocol.reference.reference_markdown,
    "docs/metrics.md": proxy.telemetry.reference.reference_markdown,
    "docs/audit-event.md": observers.reference.markdown,
    "docs/tables.md": spark_jobs.schemas.reference.markdown,
    f"{CHART}/values.schema.json": values_schema,
    f"{CHART}/files/brokerside.rules.yaml": (ROOT / RULES).read_text,  # a chart reads no files outside of its folder
}


def main(arguments: list[str]) -> int:
    """Write every file, or name those that are out of date."""
    if arguments == ["--check"]:
        stale = [name for name, content in FILES.items() if _read(ROOT / name) != content()]
        print(*(f"{name} is out of date: run make docs" for name in stale), sep="\n", end="\n" if stale else "")
        return 1 if stale else 0
    for name, content in FILES.items():
        (ROOT / name).write_text(content())
        print(name)
    return 0


def _read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
