"""The tables of the scripted load, made or read in another way, hold the same rows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.query import query
from spark_jobs.schemas import STREAMED, TABLES
from spark_jobs.session import SHORT_RUN_OPTIONS
from spark_jobs.stored_table import StoredTable
from tests.ledger.build import DEFINITIONS, Built
from tests.ledger.stored import rows
from tests.spark.conftest import FEW_ROWS
from tests.spark.object_store import object_store, of_queries, of_spark
from tests.spark.spark_cluster import DRIVER, executors, spark_cluster

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = "s3://tables/brokerside"

OF_ONE_CLUSTER = (*STREAMED, "slo", "topics", "quota_advice")
"""Tables whose rows are each of one cluster; no other cluster has a part in them."""


def ordered(found: Iterable[dict[str, Any]]) -> list[str]:
    return sorted(str(sorted(row.items())) for row in found)


def of_east(root: Path, table: str) -> list[dict[str, Any]]:
    return [row for row in rows(root, table) if "east" in (row.get("cluster_id"), (row.get("topic") or "")[-4:])]


@pytest.mark.promise(
    "jobs.md", "The job runs on a Spark cluster and on object storage, and writes the same tables there."
)
def test_a_cluster_of_spark_writes_the_same_to_an_object_store(
    ledger_root: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command as people run it: the driver here, executors in processes that know only what they are sent."""
    with (
        object_store(tmp_path / "store.log", "tables") as store,
        spark_cluster(tmp_path, cores=2, memory="1g") as master,
    ):
        for name, value in of_queries(store).items():
            monkeypatch.setenv(name, value)
        for command in (("run", "--available-now"), ("backfill",)):
            _ended(_start(ledger_root, "east", store, master, *command))
            assert any((folder / "spark_jobs.zip").exists() for folder in executors(tmp_path))
            for table in OF_ONE_CLUSTER:
                found = of_east(ledger_root.root, table)
                assert found, table
                assert ordered(rows(ROOT, table)) == ordered(found), (*command, table)
        assert max(StoredTable(f"{ROOT}/traffic", {}).files_by_day.values()) == 1
        assert (
            query(ROOT, "SELECT sum(requests) FROM traffic")[1]
            == query(ledger_root.root, "SELECT sum(requests) FROM traffic WHERE cluster_id = 'east'")[1]
        )


@pytest.mark.promise(
    "jobs.md", "Two Kafka clusters can share tables on an object store: two jobs fill them at the same time."
)
def test_two_jobs_fill_the_same_tables_of_an_object_store_at_the_same_time(
    ledger_root: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with object_store(tmp_path / "store.log", "tables") as store:
        jobs = [
            _start(ledger_root, cluster, store, "local[1]", "run", "--available-now") for cluster in ledger_root.topics
        ]
        try:
            for job in jobs:
                _ended(job)
        finally:
            for job in jobs:
                job.kill()
        for name, value in of_queries(store).items():
            monkeypatch.setenv(name, value)
        for table in TABLES:
            assert ordered(rows(ROOT, table)) == ordered(rows(ledger_root.root, table)), table


def _start(ledger: Built, cluster: str, store: str, master: str, *command: str) -> subprocess.Popen[str]:
    java = {"spark.driver.extraJavaOptions": SHORT_RUN_OPTIONS}
    executor = {"spark.executor.memory": "700m", "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    conf = DRIVER | FEW_ROWS | java | of_spark(store) | executor
    return subprocess.Popen(
        [sys.executable, "-m", "proxy", "jobs", *command, "--master", master,
         "--bootstrap-servers", ledger.bootstrap, "--topic", ledger.topics[cluster],
         "--tables", ROOT, "--definitions", str(DEFINITIONS),
         *(f"--conf={name}={value}" for name, value in conf.items())],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def _ended(job: subprocess.Popen[str]) -> None:
    with job:
        try:
            _, error = job.communicate(timeout=500)
        finally:
            job.kill()
        assert job.returncode == 0, error
