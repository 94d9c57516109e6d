"""The image of the jobs, built, and run over what a real sidecar has sent; the archive of classes that it has."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.local.cluster import ClusterState
from proxy.local.jars import resolve
from proxy.local.sidecars import SidecarProcess
from tests.deploy.podman import Podman, jobs, podman
from tests.deploy.running import Running, output_of, transfer, until

pytestmark = [pytest.mark.deploy, pytest.mark.kafka, pytest.mark.timeout(1200)]

RECORDS = 300
USER = 65532


@pytest.fixture(scope="module")
def images() -> Podman:
    return podman()


@pytest.fixture(scope="module")
def image(images: Podman) -> str:
    return jobs(images)


@pytest.fixture
def sidecar(cluster: ClusterState) -> Iterator[SidecarProcess]:
    folder = cluster.nodes[0].home.parent
    made = SidecarProcess.start(folder / "sidecar-1.yaml", folder / "sidecar-1.log", cluster.nodes[0].admin)
    yield made
    assert made.stop()


@pytest.mark.promise("install.md", "The image of the jobs turns what passed a sidecar into tables, without any right.")
def test_what_passed_a_sidecar_becomes_tables(
    images: Podman, image: str, cluster: ClusterState, sidecar: SidecarProcess, topic: str, tmp_path: Path
) -> None:
    running = Running(sidecar.admin)
    transfer(cluster.nodes[0].advertised, topic, RECORDS)
    until(lambda: running.metric("brokerside_audit_queued") == 0, "all events are delivered")
    state = tmp_path / "state"
    state.mkdir()
    os.chown(state, USER, USER)

    # With -Xshare:on Java ends if it cannot use the archive of classes that the image has.
    images(
        "run", "--rm", "--network", "host", "--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges",
        "--tmpfs", "/tmp:mode=1777", "--memory", "4g", "--env", "JAVA_TOOL_OPTIONS=-Xshare:on",
        "--volume", f"{state}:/var/lib/brokerside",
        image, "jobs", "run", "--available-now", "--bootstrap-servers", cluster.internal_bootstrap,
        "--tables", "/var/lib/brokerside/tables",
        timeout=600,
    )  # fmt: skip

    sql = f"SELECT sum(records) AS records FROM traffic WHERE api = 'Produce' AND topic = '{topic}'"
    found = output_of(sys.executable, "-m", "proxy", "query", "--tables", state / "tables", sql, "-o", "json")
    assert json.loads(found) == [{"records": RECORDS}]
    owned = {path.stat().st_uid for path in state.rglob("*")}
    assert owned == {USER}


SESSION = """
from proxy.local.jars import resolve
from spark_jobs.session import spark_conf, spark_session

conf = spark_conf("local[1]", resolve("spark-4.2.0"), {}, short=True)
with spark_session("archive", conf) as spark:
    print(spark.range(3).count())
"""

CHECK = """
from proxy.local.jars import resolve
from spark_jobs.class_archive import check_archive
from spark_jobs.errors import JobError
from spark_jobs.session import class_archive

jars = resolve("spark-4.2.0")
try:
    check_archive(class_archive(jars), jars)
except JobError:
    print("JobError")
"""


@pytest.mark.spark
@pytest.mark.promise("jobs.md", "Java starts with the archive that jobs archive makes, or without it.")
def test_java_starts_with_the_archive_that_was_made(tmp_path: Path) -> None:
    jars = tmp_path / "jars"
    jars.mkdir()
    for jar in resolve("spark-4.2.0", progress=False):
        shutil.copy2(jar, jars)
    environment = {**os.environ, "BROKERSIDE_CACHE": str(tmp_path)}
    made = _run(environment, "-m", "proxy", "jobs", "archive")
    assert made == f"{jars}/classes.jsa"
    assert sorted(path.suffix for path in jars.iterdir() if path.suffix != ".jar") == [".jsa"]

    environment["JAVA_TOOL_OPTIONS"] = "-Xshare:on"  # Java ends if it cannot use an archive
    assert _run(environment, "-c", SESSION) == "3"
    Path(made).chmod(0o644)
    Path(made).write_bytes(b"not an archive")
    with pytest.raises(subprocess.CalledProcessError):
        _run(environment, "-c", SESSION)
    del environment["JAVA_TOOL_OPTIONS"]
    assert _run(environment, "-c", SESSION) == "3", "it is ignored"
    assert _run(environment, "-c", CHECK) == "JobError", "jobs archive would not leave it there"


def _run(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, stdout=subprocess.PIPE, text=True, timeout=280, check=True
    )
    return done.stdout.strip()
