"""docs/log-events.md has every event that the sources log, and its level."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

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
