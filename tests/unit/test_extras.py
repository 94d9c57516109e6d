"""What messages say to run for the packages of an extra: nothing that a package index may have by our name."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from proxy import extras

ROOT = Path(__file__).parents[2]


class Installed:
    def __init__(self, recorded: str | None) -> None:
        self.recorded = recorded

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self.recorded


@pytest.mark.parametrize(
    ("recorded", "target"),
    [
        ('{"url": "file:///opt/kafka%20tools/brokerside", "dir_info": {}}', "'/opt/kafka tools/brokerside[query]'"),
        ('{"url": "file:///tmp/brokerside-0.1.0-cp311.whl"}', "'/tmp/brokerside-0.1.0-cp311.whl[query]'"),
        (None, "'.[query]'"),
        ("what no installer writes", "'.[query]'"),
    ],
)
def test_an_extra_is_installed_from_where_the_package_came_from(
    monkeypatch: pytest.MonkeyPatch, recorded: str | None, target: str
) -> None:
    monkeypatch.setattr(extras, "distribution", lambda name: Installed(recorded))
    assert extras.install_command("query") == f"{sys.executable} -m pip install {target}"
    assert ("in a checkout" in extras.missing("duckdb", "query")) == (target == "'.[query]'")


TEXTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
TEXTS += [path for package in ("proxy", "observers", "spark_jobs") for path in (ROOT / package).rglob("*.py")]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_text_says_to_install_the_name_from_an_index(path: Path) -> None:
    assert re.findall(r"pip install\s+['\"]?brokerside\b.*", path.read_text()) == []
