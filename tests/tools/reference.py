"""Writes the reference pages whose source is the code: ``python -m tests.tools.reference`` (``make docs``).

With ``--check`` (``make check``) it writes nothing, and fails where a page is not what its source gives.
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

DOCS = Path(__file__).parents[2] / "docs"

FOLDERS = ("audit-event", "config", "tables")
"""Folders of generated pages alone."""


def pages() -> dict[str, str]:
    """Return the text of every generated page, by its path below docs/."""
    return {
        **proxy.config.reference.pages(),
        "tags.md": proxy.interceptors.tags.reference_markdown(),
        **proxy.protocol.reference.pages(),
        "metrics.md": proxy.telemetry.reference.reference_markdown(),
        **observers.reference.pages(),
        **spark_jobs.schemas.reference.pages(),
    }


def main(arguments: list[str]) -> int:
    """Write every page, or name those that are out of date."""
    made = pages()
    there = {str(path.relative_to(DOCS)) for folder in FOLDERS for path in (DOCS / folder).glob("*")}
    stale = [name for name, text in made.items() if not (DOCS / name).exists() or (DOCS / name).read_text() != text]
    stale += sorted(there - made.keys())
    if arguments == ["--check"]:
        print(*(f"docs/{name} is out of date: run make docs" for name in stale), sep="\n", end="\n" if stale else "")
        return 1 if stale else 0
    for name in stale:
        path = DOCS / name
        if name in made:
            path.parent.mkdir(exist_ok=True)
            path.write_text(made[name])
        else:
            path.unlink()
        print(f"docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
