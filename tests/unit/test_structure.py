"""The structure that packages say they have: maps of their modules, one meaning for a name, no circles of imports."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools import reference
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
    files = {path.stem for path in (ROOT / folder).glob("*.py*") if path.suffix in (".py", ".pyx")}
    return files - {"__init__", "__main__"} | {path.parent.name for path in (ROOT / folder).glob("*/__init__.py")}


@pytest.mark.promise("CONTRIBUTING.md", "The map of a package names every module, and nothing else.")
def test_a_map_names_every_module_of_its_folder_and_nothing_else() -> None:
    assert {"proxy", "proxy/net", "observers", "spark_jobs", "spark_jobs/tables"} <= MAPS.keys()
    for folder, text in MAPS.items():
        named = {entry[1] for entry in ENTRY.finditer(text)} | {file[1] for file in FILE.finditer(text)}
        assert named - there(folder) == set(), folder
        assert there(folder) - named == set(), folder


PATH = re.compile(r"`((?:proxy|observers|spark_jobs|tests|deploy|docs)/[\w./-]+)`")
"""A file or folder of the project, in a page."""

PAGES = sorted(path.relative_to(ROOT) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.promise("README.md", "Every file and link that a page of the documentation names exists.")
def test_files_and_links_of_pages_lead_somewhere() -> None:
    assert len(PAGES) > 50
    missing = []
    for page in PAGES:
        text = (ROOT / page).read_text()
        missing += [(page, name) for name in PATH.findall(text) if not (ROOT / name).exists()]
        prose = re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
        for target in re.findall(r"\]\(([^)\s]+)\)", prose):
            name, _, anchor = target.partition("#")
            file = (ROOT / page).parent / name if name else ROOT / page
            if target.startswith("http"):
                continue
            if not file.exists() or (anchor and anchor not in anchors(file.read_text())):
                missing.append((page, target))
    assert missing == []


@pytest.mark.promise("CONTRIBUTING.md", "Generated pages are what their sources say.")
def test_generated_files_are_what_their_sources_say(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """But the page of the tests themselves, which make check compares."""
    page = ROOT / "docs/promises.md"
    monkeypatch.setattr(reference.promises, "page", lambda: page.read_text() if page.exists() else None)
    assert reference.main(["--check"]) == 0, capsys.readouterr().out


@pytest.mark.promise("install.md", "No page or message says to install Brokerside from a package index.")
def test_no_text_says_to_install_the_name_from_an_index() -> None:
    """A package index may have a stranger's package by our name."""
    sources = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    for path in (*(ROOT / page for page in PAGES), *sources):
        assert re.findall(r"pip install\s+['\"]?brokerside\b.*", path.read_text()) == [], path


@pytest.mark.promise("CONTRIBUTING.md", "make check finds circles of imports, through compiled modules too.")
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


ROOT = Path(__file__).parents[2]

CALL = re.compile(
    r"""\b(?:log|_?rate_limited)\.(info|warning|error|exception)\(\s*"(\w+)"(?: if [^,]* else "(\w+)")?"""
)
"""A call that logs: its level, the event, and the event of the other case."""

OF_THE_MACHINE = re.compile(r"""_?effects\.log\(\s*"(info|warning|error)",\s*"(\w+)"|_log_(member)\("(\w+)\"""")
"""The same in the coordinator, whose events others write. Those of a member are of level ``info``."""

PASSED_ON = {
    "unsupported_request": "warning", "protected_topic": "warning", "log_lines_dropped": "warning",
    "audit_closed": "info", "opentelemetry_closed": "info",
    "backlog_cut": "warning", "descriptors_low": "warning", "memory_low": "warning",
}  # fmt: skip
"""Events that are not logged by such a call."""

LEVELS = {"exception": "error"}


@pytest.mark.promise("log-events.md", "The page has every event that the sources log, with its level.")
def test_the_page_has_every_event_with_its_level() -> None:
    logged = defaultdict(set)
    for package in ("proxy", "observers"):
        for path in (ROOT / package).rglob("*.py*"):
            if path.suffix in (".py", ".pyx"):
                for level, *events in CALL.findall(path.read_text()):
                    for event in filter(None, events):
                        logged[event].add(LEVELS.get(level, level))
    for path in (ROOT / "proxy" / "coordinator").glob("*.py"):
        for level, event, member, event_of_member in OF_THE_MACHINE.findall(path.read_text()):
            logged[event or event_of_member].add("info" if member else level)
    page = (ROOT / "docs" / "log-events.md").read_text()
    listed = re.findall(r"^\| `(\w+)` \| (\w+) \|", page, re.MULTILINE)
    assert len(listed) == len(dict(listed))
    assert {event: {level} for event, level in listed} == logged | {
        event: {level} for event, level in PASSED_ON.items()
    }
