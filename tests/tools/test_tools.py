"""The tools whose figures the documentation has, as small as they get; and the list of defects."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.bench.report import markdown
from tests.tools.bench.results import Results
from tests.tools.defects import ROOT, defects, problems

TIMED = ("small honest requests", "/livez", "SIGTERM ends it")
"""Checks of the attacks that a busy machine fails."""

CHECKS = (
    "small honest requests", "small honest requests that failed", "foreign addresses in Metadata",
    "records that were acknowledged", "records stored twice", "peak RSS", "descriptors at most", "/livez",
    "accepted = active + waiting + held + closed", "partitions that honest consumers lost",
    "honest consumers that failed", "messages to honest consumers", "registry records from a client",
    "audit events from a client", "/config and /quotas under a foreign name", "log lines dropped, stderr unread",
    "the sidecar runs to the end", "SIGTERM ends it",
)  # fmt: skip
ATTACKS = ("frames", "spoof", "forge", "rebinding")

ALWAYS = ("all accepted", "each is accepted or refused", "with no byte", "are let through")
"""In checks of limits that hold however busy the machine is."""


def run(tool: str, *options: str, timeout: float = 840) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"tests.tools.{tool}", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)


@pytest.mark.promise(
    "performance.md", "bench.json has every measurement of a run, and its tables can be printed again."
)
@pytest.mark.slow
def test_a_run_measures_a_sidecar_beside_no_proxy_and_its_tables_are_printed_again(tmp_path: Path) -> None:
    options = ["--quick", "--only", "direct,brokerside", "--scenarios", "small,storm", "--out", str(tmp_path)]
    done = run("bench", *options, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    for line in ("### Small requests", "### Storm", "| no proxy", "| brokerside, no observer", "### Versions"):
        assert f"\n{line}" in done.stdout, line
    assert markdown(Results.load(tmp_path / "bench.json")) in done.stdout
    assert "<svg" in (tmp_path / "bench.svg").read_text()
    measured = json.loads((tmp_path / "bench.json").read_text())["measurements"]
    assert [(one["scenario"], one["contestant"], one["error"]) for one in measured] == [
        ("small", "direct", ""), ("small", "brokerside", ""), ("storm", "direct", ""), ("storm", "brokerside", "")
    ]  # fmt: skip
    sidecar = measured[1]["figures"]
    assert sidecar["per_s"] > 0
    assert sidecar["p50_us"] <= sidecar["p99_us"]
    assert sidecar["cpu_us"] == pytest.approx(sidecar["user_us"] + sidecar["system_us"])


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(900)
@pytest.mark.promise("conformance.md", "The same connects meet the same limits at a broker and at its sidecar.")
def test_a_quick_run_compares_each_schedule() -> None:
    done = run("conformance", "--quick")
    *_, summary = [line for line in done.stdout.splitlines() if "checks hold" in line] or [done.stderr]
    wrong = [line for line in done.stdout.splitlines() if line.startswith("NOT: ")]
    held, _, all_ = summary.split()[:3]
    assert int(all_) - int(held) == len(wrong), summary
    assert done.returncode == bool(wrong)
    assert [line for line in wrong if any(words in line for words in ALWAYS)] == []
    for row in ("listener limit 20/s", "default ip limit 2/s", "ip limit 20/s", "max.connections 10"):
        assert f"| {row}" in done.stdout, row


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(900)
@pytest.mark.promise(
    "security.md", "Honest clients lose no record while attackers do all they can from their addresses."
)
def test_a_short_attack_breaks_no_promise() -> None:
    done = run("hostile", "--seconds", "12", "--quiet", "2", "--only", *ATTACKS)
    found = {line[5:].partition(": ")[0]: line for line in done.stdout.splitlines()}
    assert tuple(found) == CHECKS, done.stdout + done.stderr
    assert [line for what, line in found.items() if not line.startswith("ok ") and what not in TIMED] == []
    assert done.returncode == any(line.startswith("NOT") for line in found.values())


@pytest.mark.promise("CONTRIBUTING.md", "Each listed defect fits the code, and names tests that should catch it.")
def test_each_defect_can_be_planted_and_names_its_tests() -> None:
    assert list(problems(defects(), ROOT)) == []
