"""Runs the modules that are compiled from .py as Python, as a plugin of pytest: ``-p tests.tools.interpreted``.

So they can be stepped through, and coverage sees them. What is Cython alone (.pyx) stays compiled.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


class SourceFinder(MetaPathFinder):
    """Finds the .py of a module that has a compiled twin beside it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        source = ROOT.joinpath(*fullname.split(".")).with_suffix(".py")
        if fullname.startswith("proxy.") and source.with_suffix(".pxd").exists() and source.exists():
            return spec_from_file_location(fullname, source)
        return None


sys.meta_path.insert(0, SourceFinder())
