"""The example observer, as docs/observers.md has it."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "observers.md"


def example() -> str:
    """Its text."""
    match = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert match is not None
    return match[1]
