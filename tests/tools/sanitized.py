"""``python -m tests.tools.sanitized MODULE ARGS…``: run a module of the project with AddressSanitizer and
UndefinedBehaviorSanitizer in every compiled module.

The sources are copied aside and built there with gcc, so the modules of this folder stay as they are. The first finding
ends the process with a report on stderr and a status other than 0. Python's own allocator is replaced by malloc, since
a read beyond a small object would else stay inside one of Python's arenas.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("proxy", "observers", "tests")
SANITIZE = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
DISABLED = "-fno-sanitize=alignment"
"""Cython reads integers where they lie: x86-64 and arm64 allow it."""

OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1",  # CPython keeps memory on exit
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "PYTHONMALLOC": "malloc",
}

LOCATE = "import proxy.compiled.walk; print(proxy.compiled.walk.__file__)"


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    if not shutil.which("gcc"):
        print("gcc with its sanitizers (libasan, libubsan) is needed", file=sys.stderr)
        return 2
    runtimes = [_runtime(name) for name in ("libasan.so", "libubsan.so")]
    with tempfile.TemporaryDirectory(prefix="brokerside-sanitized-") as name:
        aside = Path(name)
        for folder in FOLDERS:
            shutil.copytree(ROOT / folder, aside / folder, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        built = subprocess.run(
            [sys.executable, "-m", "proxy.compiled.build"],
            cwd=aside,
            env={**os.environ, "CC": "gcc", "CFLAGS": f"{SANITIZE} {DISABLED}", "LDFLAGS": SANITIZE},
            check=False,
        )
        if built.returncode:
            return built.returncode
        environ = {**os.environ, **OPTIONS, "LD_PRELOAD": " ".join(runtimes)}
        located = subprocess.check_output([sys.executable, "-c", LOCATE], cwd=aside, env=environ, text=True).strip()
        if not located.startswith(name):
            print(f"{located} would be tested, not what was built in {name}", file=sys.stderr)
            return 2
        return subprocess.run([sys.executable, "-m", *sys.argv[1:]], cwd=aside, env=environ, check=False).returncode


def _runtime(library: str) -> str:
    """Return the path of a runtime of gcc; it has to be loaded before Python."""
    return subprocess.run(
        ["gcc", f"-print-file-name={library}"], capture_output=True, text=True, check=True
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
