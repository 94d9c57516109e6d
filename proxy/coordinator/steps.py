"""Work that is done a part at a time, so that no call of the coordinator takes long."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[int, None, T]
"""Yields after each part how many units of work it was: members, threads or partitions. A unit takes about 2 µs."""

SLICE = 500
"""Units of work in one call of the coordinator: about a millisecond."""

AT_ONCE = 10
"""Threads or partitions that take one unit where a set or a sort takes all of them at once."""
