"""Circles of imports between modules: ``python -m tests.tools.import_circles`` prints them, and fails if there are any.

import-linter finds those between siblings, folders included. This sees what it cannot: compiled modules, and modules
that import the package that they are in.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import grimp

ROOT = Path(__file__).parents[2]
PACKAGES = ("proxy", "observers", "spark_jobs")

IMPORT = re.compile(r"^[ \t]*((?:from [\w.]+ )?c?import (?:\([^)]*\)|[^\n(]+))", re.MULTILINE)
"""An import of Cython, of C or of Python."""


def main() -> int:
    found = circles(graph_of(ROOT, PACKAGES))
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


def graph_of(root: Path, packages: Iterable[str]) -> grimp.ImportGraph:
    """All imports that happen between the modules of ``packages``; a .pxd is part of its module.

    None of the packages may be loaded: Python would find them where they are.
    """
    with TemporaryDirectory() as folder:
        for package in packages:
            for path in sorted((root / package).rglob("*.p*")):
                copy = (Path(folder) / path.relative_to(root)).with_suffix(".py")
                if path.suffix in (".py", ".pyx", ".pxd"):
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    with copy.open("a") as file:
                        file.write(path.read_text() if path.suffix == ".py" else _python(path.read_text()))
        sys.path.insert(0, folder)
        try:
            return grimp.build_graph(*packages, exclude_type_checking_imports=True, cache_dir=None)
        finally:
            sys.path.remove(folder)


def circles(graph: grimp.ImportGraph) -> list[str]:
    """The shortest circle through each import, each circle once."""
    found: dict[frozenset[str], str] = {}
    for importer in sorted(graph.modules):
        for imported in sorted(graph.find_modules_directly_imported_by(importer)):
            back = graph.find_shortest_chain(imported, importer)
            if back:
                found.setdefault(frozenset(back), " -> ".join((importer, *back)))
    return list(found.values())


def _python(cython: str) -> str:
    return "".join(f"{found[1].replace('cimport', 'import', 1)}\n" for found in IMPORT.finditer(cython))


if __name__ == "__main__":
    sys.exit(main())
