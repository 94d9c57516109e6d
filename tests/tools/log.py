"""Waiting for what a process that was started says of itself."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

STARTED_WITHIN = 240


def said(log: Path, pattern: str, process: subprocess.Popen[bytes]) -> str:
    """Wait until ``pattern`` is in ``log``; return its group, or the whole."""
    deadline = time.monotonic() + STARTED_WITHIN
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(pattern, log.read_text()):
            return found[found.re.groups]
        time.sleep(0.1)
    raise AssertionError(f"nothing of {pattern!r} in\n{log.read_text()}")
