"""Pinned jars, and the lock file that names every one of every set with its checksum and size.

The file has a ``[set]`` line, then one line for each jar: ``group:artifact:version sha256 bytes``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from proxy.errors import LocalError

_JAR = re.compile(r"([\w.-]+):([\w.-]+):([\w.-]+) ([0-9a-f]{64}) ([1-9]\d*)")
_SET = re.compile(r"\[([\w.-]+)\]")


@dataclass(frozen=True, order=True)
class Pin:
    """One jar: Maven coordinates, SHA-256 in hex, size in bytes."""

    group: str
    artifact: str
    version: str
    sha256: str
    size: int

    @property
    def file_name(self) -> str:
        """Name of its file in the cache folder."""
        return f"{self.artifact}-{self.version}.jar"

    @property
    def coordinates(self) -> str:
        """``group:artifact:version``."""
        return f"{self.group}:{self.artifact}:{self.version}"


Sets = Mapping[str, tuple[Pin, ...]]


def parse(text: str) -> dict[str, tuple[Pin, ...]]:
    """Read a lock file. Raises LocalError with the line number for a line that is neither a set nor a jar."""
    sets: dict[str, list[Pin]] = {}
    current: list[Pin] | None = None
    files: dict[str, Pin] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if heading := _SET.fullmatch(line):
            current = sets.setdefault(heading[1], [])
        elif (jar := _JAR.fullmatch(line)) and current is not None:
            pin = Pin(jar[1], jar[2], jar[3], jar[4], int(jar[5]))
            # One folder holds the jars of all sets.
            if files.setdefault(pin.file_name, pin) != pin:
                raise LocalError(f"jars.lock, line {number}: {pin.file_name} is already there as another jar")
            current.append(pin)
        else:
            raise LocalError(f"jars.lock, line {number}: {line!r} is not `group:artifact:version sha256 bytes`")
    return {name: tuple(pins) for name, pins in sets.items()}


def render(sets: Sets) -> str:
    """Write a lock file: what ``parse`` reads."""
    lines = ["# Every jar this project runs. Written by `python -m proxy.local.jars lock`; do not edit."]
    for name, pins in sets.items():
        lines += ["", f"[{name}]"]
        lines += [f"{pin.coordinates} {pin.sha256} {pin.size}" for pin in sorted(pins)]
    return "\n".join(lines) + "\n"
