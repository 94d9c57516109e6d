"""The benchmark, as small as it gets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.bench.report import markdown
from tests.tools.bench.results import Results


@pytest.mark.promise(
    "performance.md", "bench.json has every measurement of a run, and its tables can be printed again."
)
@pytest.mark.slow
def test_a_run_measures_a_sidecar_beside_no_proxy_and_its_tables_are_printed_again(tmp_path: Path) -> None:
    options = ["--quick", "--only", "direct,brokerside", "--scenarios", "small,storm", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "tests.tools.bench", *options]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert run.returncode == 0, run.stdout + run.stderr
    for line in ("### Small requests", "### Storm", "| no proxy", "| brokerside, no observer", "### Versions"):
        assert f"\n{line}" in run.stdout, line
    assert markdown(Results.load(tmp_path / "bench.json")) in run.stdout
    assert "<svg" in (tmp_path / "bench.svg").read_text()
    measured = json.loads((tmp_path / "bench.json").read_text())["measurements"]
    assert [(one["scenario"], one["contestant"], one["error"]) for one in measured] == [
        ("small", "direct", ""), ("small", "brokerside", ""), ("storm", "direct", ""), ("storm", "brokerside", "")
    ]  # fmt: skip
    sidecar = measured[1]["figures"]
    assert sidecar["per_s"] > 0
    assert sidecar["p50_us"] <= sidecar["p99_us"]
    assert sidecar["cpu_us"] == pytest.approx(sidecar["user_us"] + sidecar["system_us"])
