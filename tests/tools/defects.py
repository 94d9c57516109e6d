"""Whether the tests catch defects of the product: ``python -m tests.tools.defects --copy DIR``.

Plants each defect of ``defects.toml`` in a copy of the project, and runs the tests that should catch it, then the rest.
Ends with 1 where one is not caught.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct, convert

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_suffix(".toml")

SUITES = {"named": None, "not-slow": ("-n", "3", "-m", "not slow"), "all": ("-n", "2")}
"""What runs after the tests that a defect names: the arguments of pytest."""

FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


class Defect(Struct, forbid_unknown_fields=True):
    """``old``, which is once in ``file``, becomes ``new``. ``tests``: files that should catch it, cheapest first."""

    id: str
    promise: str
    file: str
    old: str
    new: str
    tests: list[str]


def defects() -> list[Defect]:
    return convert(tomllib.loads(FILE.read_text())["defect"], list[Defect])


def problems(listed: Sequence[Defect], root: Path) -> Iterator[str]:
    ids = [one.id for one in listed]
    for one in listed:
        count = (root / one.file).read_text().count(one.old) if (root / one.file).exists() else 0
        if count != 1:
            yield f"{one.id}: {one.file} has the text {count} times"
        yield from (f"{one.id}: there is no {test}" for test in one.tests if not (root / test).is_file())
        if ids.count(one.id) > 1 or one.old == one.new or not one.tests:
            yield f"{one.id}: an id of its own, a change and a test are needed"


class Copy:
    """A clone of the project with an environment of its own."""

    def __init__(self, folder: Path) -> None:
        """``folder``: what it has beside HEAD, if it is there, is lost."""
        self._folder = folder
        self._python = str(folder / ".venv/bin/python")
        self._is_stale = False
        if not folder.exists():
            subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
        self._run("git", "fetch", "--quiet", str(ROOT), "HEAD")
        self._run("git", "checkout", "--quiet", "--force", "--detach", "FETCH_HEAD")
        self._run("make", "setup")
        self._build()  # what an interrupted run has left is older than its source

    @contextmanager
    def planted(self, defect: Defect) -> Iterator[None]:
        path = self._folder / defect.file
        sound = path.read_text()
        is_compiled = path.suffix in (".pyx", ".pxi", ".pxd") or sound.startswith("# cython:")
        path.write_text(sound.replace(defect.old, defect.new))
        try:
            if is_compiled or self._is_stale:
                self._build()
            self._is_stale = is_compiled
            yield
        finally:
            path.write_text(sound)

    def failing_test(self, *arguments: str) -> str | None:
        """Run pytest; return the first test that fails, None without."""
        command = [self._python, "-m", "pytest", "-x", "-q", *arguments]
        done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return None
        if found := FAILED.search(done.stdout):
            return found[1]
        if done.returncode > 1:
            raise SystemExit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return "a test that does not end"

    def _build(self) -> None:
        self._run(self._python, "-m", "proxy.compiled.build")

    def _run(self, *command: str) -> None:
        subprocess.run(command, cwd=self._folder, stdout=subprocess.DEVNULL, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.defects", description=__doc__)
    parser.add_argument("--copy", type=Path, required=True, help="a folder for the copy, which is used again")
    parser.add_argument("--only", nargs="+", metavar="ID", help="these defects")
    parser.add_argument("--suite", choices=SUITES, default="not-slow", help="also run; default: as make test")
    options = parser.parse_args()
    if ROOT.is_relative_to(options.copy.resolve()):
        parser.error("the copy is a folder of its own")
    listed = [one for one in defects() if not options.only or one.id in options.only]
    if found := list(problems(listed, ROOT)):
        parser.error("\n".join(found))
    copy, suite, missed = Copy(options.copy.resolve()), SUITES[options.suite], 0
    for defect in listed:
        began = time.monotonic()
        with copy.planted(defect):
            test = copy.failing_test("-n", "0", *defect.tests) or (suite and copy.failing_test(*suite))
        said = f"caught by {test} after {time.monotonic() - began:.0f} s" if test else "not caught"
        print(f"{defect.id}: {said}", flush=True)
        missed += not test
    print(f"{len(listed) - missed} of {len(listed)} defects are caught")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
