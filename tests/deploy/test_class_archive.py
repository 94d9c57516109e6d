"""``brokerside jobs archive``, which the image of the jobs is built with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from proxy.local.jars import resolve

pytestmark = [pytest.mark.deploy, pytest.mark.spark]

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
