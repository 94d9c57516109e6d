"""How long calls of the script take."""

from __future__ import annotations

from random import Random
from typing import Any


def timed(random: Random, least: int = 300, muted: int = 0, wait: int = 0) -> dict[str, Any]:
    upstream = _latency(random, least)
    return {"latency_us": upstream + 40 + random.randrange(60) + muted + wait, "upstream_us": upstream + muted + wait}


def _latency(random: Random, least: int = 300) -> int:
    """µs: most of them short, some a hundred times as long."""
    return int(least * 1.23 ** (random.random() ** 10 * 30)) + random.randrange(least)
