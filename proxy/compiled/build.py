"""Builds the compiled twins: every .pyx below ``proxy/compiled`` and ``observers``.

``python -m proxy.compiled.build`` builds in place, beside the sources, only what has changed; an editable install does
the same. For a wheel they are built aside and put into it. Where that is not possible (no C compiler, no headers of
Python, or ``BROKERSIDE_PURE=1``) there are none and the pure twins run; a mistake in a .pyx is an error all the same.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDERS = ("proxy/compiled", "observers")


class NotBuilt(Exception):
    """There will be no compiled modules; the text says why."""

    def __init__(self, why: object) -> None:
        super().__init__(f"brokerside: pure Python, without compiled modules: {why}")


class BuildHook(BuildHookInterface[Any]):
    """Hatchling's hook, for wheels and for editable installs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, and tell hatchling what there is to add and that the wheel is of this platform."""
        root = Path(self.root)
        self.scratch = tempfile.TemporaryDirectory(prefix="brokerside-build-")
        try:
            built = build(root, root if version == "editable" else Path(self.scratch.name))
        except NotBuilt as reason:
            self.app.display_warning(str(reason))
            return
        self.app.display_info(f"brokerside: {len(built)} compiled modules")
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        if version != "editable":
            build_data["force_include"].update({str(path): name for name, path in built.items()})

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was built aside."""
        self.scratch.cleanup()


def build(root: Path, out: Path) -> dict[str, Path]:
    """Build every .pyx of the project at ``root`` into ``out``; return what was built by its path in the project.

    Raises NotBuilt where C cannot be compiled here, and Cython's own error where a .pyx is wrong.
    """
    if os.environ.get("BROKERSIDE_PURE", "0") not in ("", "0"):
        raise NotBuilt("BROKERSIDE_PURE is set")
    import setuptools  # what building needs is not there where nothing is built
    from Cython.Build import cythonize
    from setuptools.command.build_ext import build_ext
    from setuptools.errors import BaseError, CompileError, LinkError

    aside = root / "build" / "compiled" if out == root else out / "c"
    # Names and sources are relative to the project, and so is what cythonize writes into ``aside``.
    before = Path.cwd()
    os.chdir(root)
    try:
        extensions = cythonize(
            [
                setuptools.Extension(
                    ".".join(source.with_suffix("").parts), [str(source)], extra_compile_args=["-O2", "-g0"]
                )
                for folder in FOLDERS
                for source in sorted(Path(folder).glob("*.pyx"))
            ],
            build_dir=str(aside),
            include_path=["."],
            quiet=True,
        )
        command = build_ext(setuptools.Distribution({"name": "brokerside", "ext_modules": extensions}))
        command.build_lib = str(out)
        command.build_temp = str(aside / "objects")
        command.parallel = os.cpu_count()
        command.ensure_finalized()
        command.run()
        names = [command.get_ext_filename(extension.name) for extension in extensions]
    except (BaseError, CompileError, LinkError) as error:
        raise NotBuilt(error) from error
    finally:
        os.chdir(before)
    return {name: out / name for name in names}


def main() -> None:
    """Build in place and say what there is."""
    root = Path(__file__).parents[2]
    try:
        print(f"brokerside: {len(build(root, root))} compiled modules")
    except NotBuilt as reason:
        print(reason)


if __name__ == "__main__":
    main()
