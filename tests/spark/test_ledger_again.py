"""The tables of the scripted load, made or read in another way, hold the same rows."""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.find_spark_home import _find_spark_home

from spark_jobs.query import query
from spark_jobs.schemas import STREAMED, TABLES
from spark_jobs.session import SHORT_RUN_OPTIONS
from spark_jobs.stored_table import StoredTable
from tests.ledger.build import DEFINITIONS, Built
from tests.spark.conftest import FEW_ROWS
from tests.spark.object_store import object_store, of_queries, of_spark
from tests.spark.stored import read
from tests.tools.log import said

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = "s3://tables/brokerside"

OF_ONE_CLUSTER = (*STREAMED, "slo", "topics", "quota_advice")
"""Tables whose rows are each of one cluster; no other cluster has a part in them."""


def ordered(found: Iterable[dict[str, Any]]) -> list[str]:
    return sorted(str(sorted(row.items())) for row in found)


@pytest.mark.promise(
    "jobs.md", "The job runs on a Spark cluster and on object storage, and writes the same tables there."
)
def test_a_cluster_of_spark_writes_the_same(
    ledger_root: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command as people run it: the driver here, executors in processes that know only what they are sent."""
    with object_store(tmp_path / "store.log", "tables") as store, spark_cluster(tmp_path) as master:
        for name, value in of_queries(store).items():
            monkeypatch.setenv(name, value)
        for command in (("run", "--available-now"), ("backfill",)):
            _ended(_start(ledger_root, "east", store, master, *command))
            assert any(tmp_path.glob("work/app-*/*/spark_jobs.zip")), "executors were sent the code"
            for table in OF_ONE_CLUSTER:
                rows = read(ledger_root.root, table)
                found = [row for row in rows if "east" in (row.get("cluster_id"), (row.get("topic") or "")[-4:])]
                assert found, table
                assert ordered(read(ROOT, table)) == ordered(found), (*command, table)
        assert max(StoredTable(f"{ROOT}/traffic", {}).files_by_day.values()) == 1
        sql = "SELECT sum(requests) FROM traffic WHERE cluster_id = 'east'"
        assert query(ROOT, sql)[1] == query(ledger_root.root, sql)[1]


@pytest.mark.promise(
    "jobs.md", "Two Kafka clusters can share tables on an object store: two jobs fill them at the same time."
)
def test_two_jobs_fill_the_same_tables_at_once(
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
            assert ordered(read(ROOT, table)) == ordered(read(ledger_root.root, table)), table


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


HOST = "127.0.0.1"

DRIVER = {"spark.driver.host": HOST, "spark.driver.bindAddress": HOST, "spark.ui.enabled": "false"}
"""What a driver on this machine needs to say, for no one else is to reach it."""


@contextmanager
def spark_cluster(folder: Path) -> Iterator[str]:
    """Start a cluster that keeps its files in ``folder``, and give its address, ``spark://…``."""
    with _daemon(folder, "master", "--port", "0") as master:
        address = said(folder / "master.log", r"Starting Spark master at (spark://\S+)", master)
        sizes = ("--cores", "2", "--memory", "1g", "--work-dir", str(folder / "work"))
        with _daemon(folder, "worker", *sizes, address) as worker:
            said(folder / "worker.log", r"Successfully registered with master", worker)
            yield address


@contextmanager
def _daemon(folder: Path, name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    home = Path(_find_spark_home())
    program = [home / "bin" / "spark-class", f"org.apache.spark.deploy.{name}.{name.capitalize()}"]
    # The web pages listen where SPARK_LOCAL_IP says, and nowhere else; with the first compiler level they start sooner.
    env = os.environ | {
        "SPARK_HOME": str(home), "SPARK_LOCAL_IP": HOST, "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1", "PYSPARK_PYTHON": sys.executable,
    }  # fmt: skip
    with (folder / f"{name}.log").open("wb") as log:
        command = [*program, "--host", HOST, "--webui-port", "0", *arguments]
        process = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(120)
