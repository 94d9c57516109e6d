"""The stub broker and the load generator, in C so that they are never what limits a measurement; built when needed."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from proxy.errors import LocalError
from proxy.local.jars import cache_dir

SOURCES = Path(__file__).parent
FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror")
TIMEOUT = 60.0


def build() -> Path:
    """Return the folder of the two programs, compiled where they are not in the cache yet; their sources say how they
    are called. Raises LocalError where there is no compiler, or where it fails."""
    sources = sorted(SOURCES.glob("*.[ch]"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    folder = cache_dir() / "bench" / f"native-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    for program in (folder / "stub", folder / "load"):
        if not program.exists():
            _compile(SOURCES / f"{program.name}.c", program)
    return folder


def _compile(source: Path, program: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise LocalError(
            "the benchmark needs a C compiler, and there is none on PATH; Debian: apt-get install gcc libc6-dev"
        )
    part = program.with_suffix(".part")
    done = subprocess.run(
        [compiler, *FLAGS, "-o", str(part), str(source)], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    if done.returncode:
        raise LocalError(f"{compiler} cannot compile {source.name}:\n{done.stderr}")
    part.rename(program)
