"""Finding Java: ``$JAVA_HOME/bin/java``, else the ``java`` on PATH; 17 or newer, as Kafka 4 and Spark 4 need."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from proxy.errors import LocalError, describe_os_error

OLDEST_JAVA = 17
JAVA_VERSION_TIMEOUT = 30.0
"""Seconds that ``java -version`` may take; it takes about 0.1."""

_ADVICE = f"install Java {OLDEST_JAVA} or newer, and put it on PATH or set JAVA_HOME to it"


def java() -> Path:
    """Return the Java to run. Raises LocalError if there is none, or if it is too old."""
    path = _find()
    found = parse_version(java_banner(path))
    if found is None:
        raise LocalError(f"{path} does not say its version when called with -version; {_ADVICE}")
    if found < OLDEST_JAVA:
        raise LocalError(f"{path} is Java {found}, and Java {OLDEST_JAVA} or newer is needed; {_ADVICE}")
    return path


@cache
def java_banner(path: Path) -> str:
    """Return what ``java -version`` prints: version, build and vendor."""
    try:
        done = subprocess.run(
            [path, "-version"], capture_output=True, text=True, timeout=JAVA_VERSION_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LocalError(f"{path} cannot be run ({describe_os_error(error)}); {_ADVICE}") from None
    return done.stderr + done.stdout


def parse_version(banner: str) -> int | None:
    """Return the feature release in a banner (``"17.0.15"`` → 17, ``"1.8.0_392"`` → 8), None if there is none."""
    match = re.search(r'version "(?:1\.)?(\d+)', banner)
    return int(match[1]) if match else None


def _find() -> Path:
    home = os.environ.get("JAVA_HOME")
    if home:
        path = Path(home) / "bin" / "java"
        if not path.is_file():
            raise LocalError(f"JAVA_HOME is {home}, but there is no {path}; correct it or unset it")
        return path
    found = shutil.which("java")
    if found is None:
        raise LocalError(f"there is no Java on this machine's PATH; {_ADVICE}")
    return Path(found)
