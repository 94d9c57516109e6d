"""A store that speaks S3, on this machine; the jobs and the queries see nothing of it but its address."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

from tests.tools.environment import made
from tests.tools.log import said

SERVER = """
import threading
from moto.s3.responses import S3Response
from moto.server import main

put, one_at_a_time = S3Response.put_object, threading.Lock()

def put_object(self):
    with one_at_a_time:
        return put(self)

S3Response.put_object = put_object
main()
"""
"""moto, with one put after the other: it looks whether an object exists, and writes it later. S3 does both at once."""

KEY = {"access.key": "brokerside", "secret.key": "of-no-worth"}


@contextmanager
def object_store(log: Path, bucket: str) -> Iterator[str]:
    """Start it, empty but for a ``bucket``, and give its address, ``http://…``."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [made("s3") / "bin" / "python", "-c", SERVER, "-H", "127.0.0.1", "-p", "0"],
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        address = said(log, r"Running on (http://127\.0\.0\.1:\d+)", process)
        with urlopen(Request(f"{address}/{bucket}", method="PUT"), timeout=120):
            yield address
    finally:
        process.terminate()
        process.wait(120)


def of_spark(address: str, *, prefix: str = "spark.hadoop.") -> dict[str, str]:
    """Return Spark's settings for the store; without the prefix those of Hadoop."""
    reported = {**KEY, "endpoint": address, "endpoint.region": "us-east-1", "path.style.access": "true"}
    return {f"{prefix}fs.s3a.{name}": value for name, value in reported.items()}


def of_queries(address: str) -> dict[str, str]:
    """Return the same as environment variables, which all else reads."""
    return {
        "AWS_ACCESS_KEY_ID": KEY["access.key"], "AWS_SECRET_ACCESS_KEY": KEY["secret.key"], "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": address, "AWS_ALLOW_HTTP": "true",
    }  # fmt: skip
