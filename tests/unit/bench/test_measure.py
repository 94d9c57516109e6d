"""Reading the kernel's figures."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from proxy.errors import LocalError
from tests.bench.contestants import sum_of
from tests.bench.measure import (
    Clock,
    Memory,
    awaiting,
    cpu_seconds,
    family,
    parse_busy,
    parse_rollup,
    parse_ticks,
    pinned,
)

ROLLUP = """\
55d0c0a00000-7ffd3b9f5000 ---p 00000000 00:00 0    [rollup]
Rss:               15448 kB
Pss:                8990 kB
Pss_Dirty:          7000 kB
"""


def test_memory_is_read_from_the_rollup() -> None:
    assert parse_rollup(ROLLUP) == Memory(rss=15448, pss=8990)


def test_busy_is_everything_but_idle_and_waiting() -> None:
    assert parse_busy("cpu  100 20 30 5000 400 1 2 3 77 88\ncpu0 1 1 1 1 1 1 1 1 1 1\n") == 156


def test_ticks_are_read_whatever_a_process_is_called() -> None:
    assert parse_ticks("77 (a ) b) S 1 77 77 0 -1 4194304 500 0 0 0 120 45 6 7 20 0 1 0 9000 1000 300") == (120, 45)


def test_the_share_of_system_time_is_of_what_was_used_between() -> None:
    before = Clock(wall=10.0, measured=1.0, ours=5.0, machine=100.0, user=50, system=50)
    assert Clock(12.0, 2.0, 7.0, 103.0, user=60, system=80).system_share(before) == 0.75
    assert before.system_share(before) == 0.0


def test_a_metric_is_summed_over_its_labels_and_no_others() -> None:
    text = '# HELP a_total x\n# TYPE a_total counter\na_total{l="1"} 3.0\na_total{l="2"} 1e2\na_total_more 7.0\n'
    assert sum_of(text, "a_total") == 103.0
    assert sum_of(text, "b_total") == 0.0


def test_cpu_of_this_process_only_grows() -> None:
    before = cpu_seconds([os.getpid()])
    sum(range(100_000))
    assert cpu_seconds([os.getpid()]) > before > 0


def test_a_process_that_is_gone_counts_nothing() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert family(child.pid) == []
    assert cpu_seconds([child.pid]) == 0.0


def test_children_belong_to_the_family() -> None:
    nested = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen([sys.executable, "-c", nested], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        found = family(parent.pid)
        parent.communicate(b"\n")
    assert found[0] == parent.pid
    assert len(found) == 2


def test_foreign_is_what_the_machine_did_beyond_ours() -> None:
    before = Clock(wall=10.0, measured=1.0, ours=5.0, machine=100.0)
    assert Clock(wall=12.0, measured=2.0, ours=7.0, machine=103.0).foreign(before) == 0.5
    assert Clock(wall=12.0, measured=2.0, ours=9.0, machine=103.0).foreign(before) == 0.0


def test_an_error_of_the_system_says_what_was_awaited() -> None:
    with (
        pytest.raises(LocalError, match="no answer within 1 s: TimeoutError: timed out"),
        awaiting("answer within 1 s"),
    ):
        raise TimeoutError("timed out")


def test_pinning_ends() -> None:
    before = os.sched_getaffinity(0)
    with pinned({min(before)}):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before
