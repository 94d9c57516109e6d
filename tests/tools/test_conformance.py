"""The comparison of limits with a real broker's, as small as it gets."""

from __future__ import annotations

import subprocess
import sys

import pytest

TIMED = (" at ", " of the broker's", "later on", "right after", "held at most", "rises by", "acts within", "at once by")
"""In checks that a busy machine fails."""


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.promise("conformance.md", "The same connects meet the same limits at a broker and at its sidecar.")
def test_a_quick_run_compares_each_schedule() -> None:
    command = [sys.executable, "-m", "tests.tools.conformance", "--quick"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    *_, summary = [line for line in run.stdout.splitlines() if "checks hold" in line] or [run.stderr]
    wrong = [line for line in run.stdout.splitlines() if line.startswith("NOT: ")]
    held, _, all_ = summary.split()[:3]
    assert int(all_) - int(held) == len(wrong), summary
    assert run.returncode == bool(wrong)
    assert [line for line in wrong if not any(words in line for words in TIMED)] == []
    for row in ("listener limit 20/s", "default ip limit 2/s", "ip limit 20/s", "max.connections 10", "a higher limit"):
        assert f"| {row}" in run.stdout, row
