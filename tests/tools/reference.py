"""Writes the reference pages whose source is the code: ``python -m tests.tools.reference`` (``make docs``).

Each page has a test that compares it with its source, so that it cannot fall behind.
"""

from __future__ import annotations

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


def main() -> None:
    """Write every page."""
    for name, page in PAGES.items():
        (DOCS / name).write_text(page())
        print(f"docs/{name}")


if __name__ == "__main__":
    main()
