"""The comparison of limits with a real broker's, as small as it gets."""

from __future__ import annotations

import subprocess
import sys

import pytest

ALWAYS = ("all accepted", "each is accepted or refused", "with no byte", "are let through", "closes no connection")
"""In checks that hold however busy the machine is."""


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(900)
@pytest.mark.promise("conformance.md", "The same connects meet the same limits at a broker and at its sidecar.")
def test_a_quick_run_compares_each_schedule() -> None:
    command = [sys.executable, "-m", "tests.tools.conformance", "--quick"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=840)
    *_, summary = [line for line in run.stdout.splitlines() if "checks hold" in line] or [run.stderr]
    wrong = [line for line in run.stdout.splitlines() if line.startswith("NOT: ")]
    held, _, all_ = summary.split()[:3]
    assert int(all_) - int(held) == len(wrong), summary
    assert run.returncode == bool(wrong)
    assert [line for line in wrong if any(words in line for words in ALWAYS)] == []
    for row in ("listener limit 20/s", "default ip limit 2/s", "ip limit 20/s", "max.connections 10", "a higher limit"):
        assert f"| {row}" in run.stdout, row
