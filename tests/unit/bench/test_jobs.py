"""What the cost of a job is made of."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.bench import jobs_clocks
from tests.bench.job_tables import JOB_GRIDS, PARTS, WHO
from tests.bench.jobs_cost import NOTHING, Cost, Reading, cpu_by_work, parts
from tests.bench.jobs_freshness import commit_times
from tests.bench.measure import peak_mib, reset_peaks, thread_seconds
from tests.bench.report import grid_rows
from tests.unit.bench.samples import results


def test_cpu_is_of_what_a_thread_does_or_else_of_its_process() -> None:
    before = Reading({1: "driver", 2: "java"}, {1: 1.0, 2: 10.0}, {1: {1: ("python", 1.0)}, 2: {20: ("java", 4.0)}})
    after = Reading(
        {1: "driver", 2: "java", 3: "workers"},
        {1: 3.0, 2: 30.0, 3: 5.0},
        {
            1: {1: ("python", 1.5), 11: ("tokio-runtime-w", 0.5)},
            2: {
                20: ("java", 5.0),
                21: ("C2 CompilerThre", 6.0),
                22: ("GC Thread#1", 2.0),
                23: ("Executor task l", 7.0),
            },
            3: {3: ("python", 5.0)},
        },
    )
    spent = cpu_by_work(before, after)
    assert spent == {
        "driver": 1.5, "commit": 0.5, "compile": 6.0, "collect": 2.0, "tasks": 7.0, "java": 5.0, "workers": 5.0
    }  # fmt: skip
    assert sum(spent.values()) == 27.0


def test_a_thread_that_was_there_before_counts_what_it_used_since() -> None:
    before = Reading({2: "java"}, {2: 10.0}, {2: {21: ("C1 CompilerThre", 4.0)}})
    after = Reading({2: "java"}, {2: 13.0}, {2: {21: ("C1 CompilerThre", 5.0)}})
    assert cpu_by_work(before, after) == {"java": 2.0, "compile": 1.0}
    assert cpu_by_work(NOTHING, after) == {"java": 8.0, "compile": 5.0}


def test_a_worker_that_ended_counts_with_what_was_last_read_of_it() -> None:
    before = Reading({8: "workers", 9: "workers"}, {8: 1.0, 9: 5.0}, {8: {}, 9: {}})
    meanwhile = Reading({8: "workers", 9: "workers"}, {8: 1.5, 9: 7.0}, {8: {}, 9: {}})
    after = before.then(meanwhile).then(Reading({8: "workers"}, {8: 2.0}, {8: {}}))
    assert cpu_by_work(before, after) == {"workers": 3.0}


def test_parts_add_up_to_the_whole_job() -> None:
    def cost(clocks: dict[str, float] | None = None, **cpu: float) -> Cost:
        return Cost(
            1.0, {"tasks": 0.0, "workers": 0.0, "collect": 0.0, "compile": 0.0, "commit": 0.0} | cpu, clocks, {}, {}
        )

    clocks = {"decode": 2.0, "digests": 0.5, "size": 0.1, "sums": 3.0, "rows": 0.4, "merge": 0.5, "tables": 0.3}
    job = cost(
        clocks | {"commit": 0.2}, tasks=5.0, workers=7.0, driver=1.0, java=2.0, commit=0.1, collect=0.6, compile=0.7
    )
    found = parts(job, cost({}, tasks=3.0), cost({}, tasks=2.0))
    assert list(found) == list(PARTS)
    assert sum(found.values()) == pytest.approx(job.cpu_s)
    assert found == pytest.approx({
        "kafka": 2.0, "python": 1.5, "decode": 2.0, "digests": 0.5, "sums": 3.1, "rows": 0.4, "shuffle": 2.5,
        "tables": 0.3, "commit": 0.3, "collect": 0.6, "compile": 0.7, "rest": 2.5,
    })  # fmt: skip


def test_work_inside_of_other_work_counts_as_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = itertools.count()
    monkeypatch.setattr(jobs_clocks.time, "thread_time", lambda: float(next(readings)))
    watch = jobs_clocks.Stopwatch()
    inner = watch.timed("inner", lambda: None)
    watch.timed("outer", lambda: [inner(), inner()])()
    assert watch.spent == {"": 1.0, "outer": 3.0, "inner": 2.0}


def test_getting_an_item_counts_and_using_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = itertools.count()
    monkeypatch.setattr(jobs_clocks.time, "thread_time", lambda: float(next(readings)))
    watch = jobs_clocks.Stopwatch()
    assert list(watch.iterated("items", "ab")) == ["a", "b"]
    assert watch.spent == {"": 3.0, "items": 3.0}


def test_clocks_of_all_threads_are_summed_once(tmp_path: Path) -> None:
    for seconds in (1.0, 2.0):
        watch = jobs_clocks.Stopwatch()
        watch.spent["sums"] = seconds
        watch.write(str(tmp_path))
    assert jobs_clocks.take(str(tmp_path)) == {"sums": 3.0}
    assert jobs_clocks.take(str(tmp_path)) == {}


def test_a_row_is_as_old_as_the_first_commit_that_has_it(tmp_path: Path) -> None:
    table = tmp_path / "table"
    for number, clients in enumerate((["a"], ["a", "b"])):
        write_deltalake(
            table, pa.table({"client_id": clients, "day": ["x"] * len(clients)}), mode="append", partition_by=["day"]
        )
        os.utime(table / f"_delta_log/{number:020}.json", (number, number))
    assert commit_times(table) == {"a": 0.0, "b": 1.0}


def test_threads_and_peaks_of_this_process_are_read() -> None:
    name, seconds = thread_seconds(os.getpid())[os.getpid()]
    assert name
    assert seconds > 0
    held = bytearray(b"x") * (64 << 20)
    assert peak_mib(os.getpid()) > len(held) >> 20
    del held
    with_it = peak_mib(os.getpid())
    reset_peaks([os.getpid()])
    assert peak_mib(os.getpid()) < with_it
    assert peak_mib(2**22 + 1) == 0.0


def test_topics_that_were_not_measured_have_no_column() -> None:
    made = results({("jobs", WHO): {"cpu_us_1000000-500": [6.25], "kafka_us_1000000-500": [1.0]}})
    assert grid_rows(made, JOB_GRIDS[0]) == [
        ["2 CPUs", "1,000,000 × 500"], ["the whole job", "6.25"], ["… reading from Kafka", "1.00"]
    ]  # fmt: skip
