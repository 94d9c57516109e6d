"""The answer of ``/quotas``, and what a person sees of it."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proxy.config import load
from proxy.limits.model import QuotasState
from proxy.quotas_view import build_view, format_text
from tests.unit.quotas_states import RATE, busy


def answer(state: QuotasState) -> dict[str, Any]:
    answered: dict[str, Any] = json.loads(msgspec.json.encode(build_view(state)))
    return answered


@pytest.mark.promise(
    "limits-operation.md",
    "`GET /quotas` has the limits, throttled connections, addresses and principals, with `null` for what is "
    "not limited.",
)
def test_what_is_not_limited_or_not_measured_is_null() -> None:
    limits = answer(busy())["limits"]
    assert limits[0] == {
        "scope": "broker",
        "listener": "",
        "quota": RATE,
        "limit": 200,
        "action": "enforce",
        "used": 187.25,
    }
    assert [(one["limit"], one["used"]) for one in limits[3:]] == [
        (None, 1200),
        (None, 1.5),
        (None, 34),
        (20, None),
        (500, None),
        (10, None),
        (100, None),
    ]
    addresses = answer(busy())["addresses"]
    assert [(one["rate"], one["rate_limit"]) for one in addresses] == [(22.9, 20), (None, None)]
    principals = answer(busy())["principals"]
    assert [(one["principal"], one["rate"], one["rate_limit"]) for one in principals] == [
        ("User:alice", 10.4, 10),
        ("User:bob", None, None),
    ]


@pytest.mark.promise(
    "limits-operation.md", "A problem with the cluster's quotas is the last line of `brokerside quotas`."
)
def test_a_problem_with_the_cluster_s_quotas_is_the_last_line() -> None:
    assert build_view(busy()).problem is None
    assert format_text(build_view(busy(), "something is wrong")).splitlines()[-2:] == [
        "",
        "problem: something is wrong",
    ]


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


@pytest.mark.promise("limits-operation.md", "`brokerside quotas` prints what this page shows.")
def test_what_a_person_sees_is_as_shown() -> None:
    shown = [
        line.split() for line in format_text(build_view(busy())).splitlines() if not line.startswith("REPLICATION")
    ]
    (block,) = re.findall(r"^```\n(LIMIT OF.*?)^```$", LIMITS, re.DOTALL | re.MULTILINE)
    assert [line.split() for line in block.splitlines()] == shown
