"""Builds the compiled modules: every .pyx below ``proxy`` and ``observers``.

``python -m proxy.compiled.build`` builds in place, beside the sources, only what has changed; an editable install does
the same. For a wheel they are built aside and put into it. Needed are a C compiler and Python's headers: ``CC``, else
the compiler that Python was built with, else cc, gcc or clang, else the one of the package ``ziglang``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDERS = ("proxy", "observers")
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ["-O2", "-g0"]
ZIG = "ziglang"
ZIG_FLAGS = ["-fno-sanitize=all"]
"""By default zig's compiler adds checks that end the process."""


class CannotBuild(Exception):
    """Nothing can be compiled here; the text says what is missing."""

    def __init__(self, why: object) -> None:
        super().__init__(f"brokerside: its compiled modules cannot be built: {why}")


class BuildHook(BuildHookInterface[Any]):
    """Hatchling's hook, for wheels and for editable installs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, and declare to hatchling the files to add and that the wheel is of this platform."""
        root = Path(self.root)
        self.scratch = tempfile.TemporaryDirectory(prefix="brokerside-build-")
        try:
            built = build(root, root if version == "editable" else Path(self.scratch.name))
        except CannotBuild as reason:
            self.scratch.cleanup()
            self.app.abort(str(reason))
        self.app.display_info(f"brokerside: {len(built)} compiled modules")
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        if version != "editable":
            build_data["force_include"].update({str(path): name for name, path in built.items()})

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was built aside."""
        self.scratch.cleanup()


NOTICEABLE = 0.2
"""Seconds that a module takes that is compiled; one that is up to date takes less."""


def build(root: Path, out: Path, done: Callable[[str], None] = lambda name: None) -> dict[str, Path]:
    """Build every module of the project at ``root`` into ``out``; return what was built by its path in the project.

    ``done`` is called with the name of each module that was compiled, on threads of the build.

    Raises CannotBuild where C cannot be compiled here, and Cython's own error where a source is wrong.
    """
    command = compiler()
    headers = Path(sysconfig.get_path("include"), "Python.h")
    if not headers.exists():
        raise CannotBuild(f"there is no {headers}; Python's headers come with the package python3-dev or python3-devel")
    import setuptools  # what building needs is not there where nothing is built
    from Cython.Build import cythonize
    from setuptools.command.build_ext import build_ext
    from setuptools.errors import BaseError, CompileError, LinkError

    aside = root / "build" / "compiled" if out == root else out / "c"
    flags = FLAGS + ZIG_FLAGS * (ZIG in command)
    # Names and sources are relative to the project, and so is what cythonize writes into ``aside``.
    with contextlib.chdir(root), _compiling_with(command):
        sources = [
            source for folder in FOLDERS for source in sorted(Path(folder).rglob("*.py*")) if _is_compiled(source)
        ]
        extensions = cythonize(
            [
                setuptools.Extension(
                    ".".join(source.with_suffix("").parts),
                    [str(source)],
                    extra_compile_args=flags,
                )
                for source in sources
            ],
            build_dir=str(aside),
            include_path=["."],
            quiet=True,
        )

        class Step(build_ext):  # type: ignore[misc]  # it is untyped
            def build_extension(self, ext: setuptools.Extension) -> None:
                began = time.monotonic()
                super().build_extension(ext)
                if time.monotonic() - began > NOTICEABLE:
                    done(ext.name)

        step = Step(setuptools.Distribution({"name": "brokerside", "ext_modules": extensions}))
        step.build_lib = str(out)
        step.build_temp = str(aside / "objects")
        step.parallel = os.cpu_count()
        step.ensure_finalized()
        try:
            step.run()
        except (BaseError, CompileError, LinkError) as error:
            raise CannotBuild(f"{error} (compiler: {command})") from error
        names = [step.get_ext_filename(extension.name) for extension in extensions]
    return {name: out / name for name in names}


def _is_compiled(source: Path) -> bool:
    """Whether ``source`` is Cython: a .pyx, or a .py whose first line holds directives for Cython."""
    if source.suffix == ".py":
        with source.open() as lines:
            return lines.readline().startswith("# cython:")
    return source.suffix == ".pyx"


def compiler() -> str:
    """Return the command of the C compiler. Raises CannotBuild where there is none."""
    if given := os.environ.get("CC"):
        return given
    own = sysconfig.get_config_var("CC") or ""
    if own and shutil.which(own.split()[0]):
        return str(own)
    for name in COMPILERS:
        if shutil.which(name):
            return name
    if importlib.util.find_spec(ZIG):
        return f"{sys.executable} -m {ZIG} cc"
    raise CannotBuild("there is no C compiler (cc, gcc, clang) on PATH; Debian: apt-get install gcc libc6-dev")


@contextlib.contextmanager
def _compiling_with(command: str) -> Iterator[None]:
    """The variables that setuptools goes by, for compiling and for linking."""
    before = dict(os.environ)
    os.environ["CC"] = command
    if ZIG in command:  # it refuses options of the linker that Python was built with
        os.environ.setdefault("LDSHARED", f"{command} -shared")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def main() -> int:
    """Build in place and say what there is."""
    root = Path(__file__).parents[2]
    try:
        built = build(root, root, lambda name: print(f"  {name}", flush=True))
    except CannotBuild as reason:
        print(reason, file=sys.stderr)
        return 1
    for left in {path for folder in FOLDERS for path in (root / folder).rglob("*.so")} - set(built.values()):
        left.unlink()  # its source is gone; a library goes before a Python module of the same name
    print(f"brokerside: {len(built)} compiled modules")
    return 0


if __name__ == "__main__":
    sys.exit(main())
