"""The structure that packages say they have: maps of their modules, one meaning for a name, no circles of imports."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools.import_circles import PACKAGES, ROOT, circles, graph_of

ENTRY = re.compile(r"^ {0,2}(\w+)(\.pyx?|/)?  +\S", re.MULTILINE)
"""A line of a map: ``name.py  text``, ``folder/  text``, or ``folder  text``."""

FILE = re.compile(r"\b(\w+)\.pyx?\b")
"""A file that is named anywhere in a map."""


def maps() -> Iterator[tuple[str, str]]:
    """Each folder whose docstring has a map, and the map: its paragraphs with a line that begins with a file."""
    for init in sorted(init for package in PACKAGES for init in (ROOT / package).rglob("__init__.py")):
        paragraphs = (ast.get_docstring(ast.parse(init.read_text())) or "").split("\n\n")
        whole = "\n\n".join(each for each in paragraphs if any(entry[2] for entry in ENTRY.finditer(each)))
        if whole:
            yield str(init.parent.relative_to(ROOT)), whole


MAPS = dict(maps())


def there(folder: str) -> set[str]:
    """The modules and packages of a folder."""
    files = {path.stem for path in (ROOT / folder).glob("*.py*") if path.suffix in (".py", ".pyx")}
    return files - {"__init__", "__main__"} | {path.parent.name for path in (ROOT / folder).glob("*/__init__.py")}


def test_packages_have_maps() -> None:
    assert {"proxy", "proxy/net", "observers", "spark_jobs", "spark_jobs/tables"} <= MAPS.keys()


@pytest.mark.parametrize("folder", MAPS)
def test_a_map_names_every_module_of_its_folder_and_nothing_else(folder: str) -> None:
    named = {entry[1] for entry in ENTRY.finditer(MAPS[folder])} | {file[1] for file in FILE.finditer(MAPS[folder])}
    assert named - there(folder) == set()
    assert there(folder) - named == set()


PATH = re.compile(r"`((?:proxy|observers|spark_jobs|tests|deploy|docs)/[\w./-]+)`")
"""A file or folder of the project, in a page."""

PAGES = sorted(path.relative_to(ROOT) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = {found[1] for found in PATH.finditer((ROOT / page).read_text())}
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = re.sub(
        r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    )
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        file = (ROOT / page).parent / name if name else ROOT / page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file.read_text()), target


def test_classes_and_methods_that_the_architecture_names_exist() -> None:
    """``Class`` and ``Class.method``, anywhere in the sources."""
    files = [
        path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.suffix in (".py", ".pyx", ".pxi")
    ]
    defined = set(re.findall(r"\b(?:class|def|cdef int) (\w+)", "\n".join(path.read_text() for path in files)))
    page = (ROOT / "docs/architecture.md").read_text()
    named = {name for found in re.findall(r"`([A-Z]\w+(?:\.\w+)?)`", page) for name in found.split(".")}
    assert len(named) > 20
    assert named - defined == set()


def test_no_two_classes_share_a_name() -> None:
    places = defaultdict(list)
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py*")):
        if path.suffix in (".py", ".pyx"):
            for name in re.findall(r"^ *(?:cdef )?class (\w+)", path.read_text(), re.MULTILINE):
                places[name].append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_circles_of_imports_are_found(tmp_path: Path) -> None:
    """Through the package that a module is in, in a function, and through a compiled module; not those of types."""
    files = {
        "__init__.py": "from made_up.door import Door",
        "door.py": "def open():\n    from made_up.room import Room",
        "room.pyx": "cimport cython\nfrom made_up.wall cimport (\n    Wall,\n)\ncdef class Room:\n    pass",
        "wall.pxd": "from libc.stdint cimport int64_t\nfrom made_up cimport Door\ncdef struct Wall:\n    int64_t x",
        "types.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from made_up.user import User",
        "user.py": "from made_up.types import Type",
    }
    (tmp_path / "made_up").mkdir()
    for name, text in files.items():
        (tmp_path / "made_up" / name).write_text(text)
    (found,) = circles(graph_of(tmp_path, ["made_up"]))
    assert found == "made_up -> made_up.door -> made_up.room -> made_up.wall -> made_up"
