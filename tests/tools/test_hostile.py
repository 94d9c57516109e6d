"""The attacks, as short as they get."""

from __future__ import annotations

import subprocess
import sys

import pytest

TIMED = ("small honest requests", "/livez", "SIGTERM ends it")
"""Checks that a busy machine fails."""

CHECKS = (
    "small honest requests", "small honest requests that failed", "foreign addresses in Metadata",
    "records that were acknowledged to java", "records that were acknowledged to librdkafka", "records stored twice",
    "records that failed", "peak RSS", "descriptors at most", "/livez", "accepted = active + waiting + held + closed",
    "partitions that honest consumers lost", "honest consumers that failed", "messages to honest consumers",
    "registry records from a client", "audit events from a client", "/config and /quotas under a foreign name",
    "log lines dropped, stderr unread", "the sidecar runs to the end", "SIGTERM ends it",
)  # fmt: skip
ATTACKS = ("frames", "spoof", "forge", "rebinding")


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(900)
@pytest.mark.promise(
    "security.md", "Honest clients lose no record while attackers do all they can from their addresses."
)
def test_a_short_attack_breaks_no_promise() -> None:
    command = [sys.executable, "-m", "tests.tools.hostile", "--seconds", "12", "--quiet", "2", "--only", *ATTACKS]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=840)
    found = {line[5:].partition(": ")[0]: line for line in run.stdout.splitlines()}
    assert tuple(found) == CHECKS, run.stdout + run.stderr
    assert [line for what, line in found.items() if not line.startswith("ok ") and what not in TIMED] == []
    assert run.returncode == any(line.startswith("NOT") for line in found.values())
