"""docs/limits*.md and the README name keys and metrics that exist, and their examples can be copied."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from proxy.config import load
from proxy.quotas_view import build_view, format_text
from proxy.telemetry.definitions import METRICS
from tests.unit.quotas_states import busy

ROOT = Path(__file__).parents[2]
LIMITS = "".join(page.read_text() for page in sorted((ROOT / "docs").glob("limits*.md")))
README = (ROOT / "README.md").read_text()

EXAMPLES = [
    textwrap.dedent(example)
    for page in (LIMITS, README)
    for example in re.findall(r"^ *```yaml\n(.*?)^ *```$", page, re.DOTALL | re.MULTILINE)
]

REST = {
    "broker.id": "broker.id: 1\n",
    "internal.bootstrap.servers": "internal.bootstrap.servers: 127.0.0.1:19094\n",
    "listeners": "listeners: [{name: CLIENT, bind: '0.0.0.0:9092', upstream: '127.0.0.1:19092'}]\n",
}


@pytest.mark.promise("limits.md", "The examples of configurations on this page can be copied.")
def test_examples_of_configurations_are_right(tmp_path: Path) -> None:
    for example in EXAMPLES:
        path = tmp_path / "brokerside.yaml"
        path.write_text(
            "".join(line for key, line in REST.items() if not re.search(f"^{key}:", example, re.M)) + example
        )
        load(path, environ={})


def test_metrics_exist() -> None:
    names = {
        f"brokerside_{metric.name}{suffix}"
        for metric in METRICS
        for suffix in (("_sum", "_count") if metric.kind == "summary" else ("",))
    }
    assert set(re.findall(r"brokerside_[a-z_]+", LIMITS)) <= names


@pytest.mark.promise("limits-operation.md", "`brokerside quotas` prints what this page shows.")
def test_what_a_person_sees_is_as_shown() -> None:
    shown = [
        line.split() for line in format_text(build_view(busy())).splitlines() if not line.startswith("REPLICATION")
    ]
    (block,) = re.findall(r"^```\n(LIMIT OF.*?)^```$", LIMITS, re.DOTALL | re.MULTILINE)
    assert [line.split() for line in block.splitlines()] == shown
