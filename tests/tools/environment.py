"""Environments of their own for tools whose packages are not to be among ours, made once from ``deploy/locks/``."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from proxy.local.jars import cache_dir

LOCKS = Path(__file__).parents[2] / "deploy" / "locks"


def made(name: str) -> Path:
    """Return the environment of ``<name>.txt``; make it if it is not there, which needs the package index."""
    lock = LOCKS / f"{name}.txt"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    environment = cache_dir() / f"{name}-{version}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    if not (environment / "complete").exists():
        uv = Path(sys.executable).parent / "uv"
        python = environment / "bin" / "python"
        new = ("venv", "--quiet", "--clear", "--python", sys.executable, environment)
        filled = ("pip", "install", "--quiet", "--python", python, "--require-hashes", "-r", lock)
        for command in (new, filled):
            subprocess.run([uv, *command], check=True, timeout=280)
        (environment / "complete").touch()
    return environment
