"""Writes the reference pages whose source is the code: ``python -m tests.tools.reference`` (``make docs``).

With ``--check`` (``make check``) it writes nothing, and fails where a page is not what its source gives.
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

DOCS = Path(__file__).parents[2] / "docs"

PAGES: dict[str, Callable[[], str]] = {
    "config.md": proxy.config.reference_markdown,
    "tags.md": proxy.interceptors.tags.reference_markdown,
    "protocol.md": proxy.protocol.reference.reference_markdown,
    "metrics.md": proxy.telemetry.reference.reference_markdown,
    "audit-event.md": observers.reference.markdown,
    "tables.md": spark_jobs.schemas.reference.markdown,
}


def main(arguments: list[str]) -> int:
    """Write every page, or name those that are out of date."""
    if arguments == ["--check"]:
        stale = [name for name, page in PAGES.items() if (DOCS / name).read_text() != page()]
        print(*(f"docs/{name} is out of date: run make docs" for name in stale), sep="\n", end="\n" if stale else "")
        return 1 if stale else 0
    for name, page in PAGES.items():
        (DOCS / name).write_text(page())
        print(f"docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
