"""A job is killed with its JVM, and its tables are those of one batch.

One topic, one root: before each run there are new records, poison and repeated ones among them; the run is killed at an
instant, and the next one continues. At last one run ends in good order, and every table is compared with what the same
functions make of the whole topic at once.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from observers.cluster_events import CommittedPartition, EndOffset, EndOffsetsEvent
from spark_jobs import compaction, io, kafka, maintenance, sink
from spark_jobs.definitions import load
from spark_jobs.run import run
from spark_jobs.stored_table import StoredTable
from tests.ledger.tables import tables_of
from tests.spark import envelopes as made
from tests.spark.conftest import FEW_ROWS, AuditTopic
from tests.spark.envelopes import FETCH, METADATA, MINUTE, NOON, PRODUCE, encoded, event, partition
from tests.spark.stored import read
from tests.tools.topic import messages

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(900)]

DAY = 24 * 60 * MINUTE
REQUESTS_OF_AN_ENVELOPE = 3 + 3

MIRROR = """
apiVersion: brokerside/v1
kind: Mirror
metadata: {name: copy}
spec: {sourceClusterId: cluster, targetClusterId: elsewhere}
"""

RECORDS_PER_BATCH = 60
"""More than a run adds: what those before it left behind, killed in their first batch, does not pile up."""

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples" / "definitions"


class Sweep:
    def __init__(self, audit: AuditTopic, folder: Path, jars: Sequence[Path]) -> None:
        self._audit = audit
        self._random = random.Random(1)
        self._jars = jars
        self._sent: list[bytes] = []
        self.envelopes = self.poison = 0
        mirror = folder / "mirror.yaml"
        mirror.write_text(MIRROR)
        self._definitions = [str(file) for file in (mirror, EXAMPLES / "slo.yaml", EXAMPLES / "prices.yaml")]
        self._arguments: dict[str, Any] = {
            "bootstrap_servers": audit.bootstrap, "topic": audit.name, "tables": str(folder / "tables"),
            "definitions": self._definitions, "available_now": True, "master": "local[2]", "conf": FEW_ROWS,
        }  # fmt: skip

    def send(self) -> None:
        """Write ten records: eight envelopes of every kind of event, one that was there before, and poison."""
        for _ in range(8):
            at = NOON + self._random.randrange(4) * DAY + self._random.randrange(5) * MINUTE
            kinds = (
                event(PRODUCE, partition(producer_id=7, base_sequence=self.envelopes), ts_request=at),
                event(FETCH, partition(), ts_request=at), made.rollup(minute=at - at % MINUTE),
                made.connection(ts=at, connection_id=f"c{self.envelopes}"), made.throttle(ts_first=at, ts_last=at),
                made.inventory("orders", "clicks"), event(METADATA, operation="Create", ts_request=at),
                made.group(ts_first=at, ts_last=at, committed=(CommittedPartition("orders", 0, self.envelopes, at),)),
                EndOffsetsEvent(0, at, (EndOffset("orders", 0, 2 * self.envelopes, at),)),
                made.gap(1, 2),
                made.status(ts=at),
            )  # fmt: skip
            first = 1 + len(kinds) * self.envelopes
            self._sent.append(encoded(*kinds, first_seq=first, sent_at=at, schema_level=2))
            self.envelopes += 1
            self._audit.send(self._sent[-1], partition=self._random.randrange(2))
        self._audit.send(self._random.choice(self._sent), b"poison", partition=self._random.randrange(2))
        self.poison += 1

    def kill(self, instant: str) -> None:
        arguments = json.dumps(self._arguments | {"jars": [str(jar) for jar in self._jars]})
        command = [sys.executable, "-m", "tests.spark.test_killed_job", instant, arguments]
        done = subprocess.run(command, timeout=600, check=False, capture_output=True, text=True)
        assert done.returncode == -signal.SIGKILL, f"{instant}: {done.returncode}: {done.stderr[-3000:]}"

    def finish(self) -> None:
        run(**self._arguments | {"jars": [], "definitions": load(self._definitions)})

    def differences(self) -> dict[str, int]:
        """Return how many rows of each table differ from one batch over the topic; and requests missing or twice."""
        values = [message.value() for message in messages(self._audit.bootstrap, self._audit.name)]
        root, found = Path(self._arguments["tables"]), {}
        for name, whole in tables_of(values, load(self._definitions)).items():
            if name != "dead_letters":  # which say where the record is
                expected, there = _counted(whole.to_pylist()), _counted(read(root, name))
                found[name] = ((there - expected) + (expected - there)).total()
        requests = sum(row["requests"] for row in read(root, "traffic"))
        found["requests too many or too few"] = abs(requests - REQUESTS_OF_AN_ENVELOPE * self.envelopes)
        found["dead letters too many or too few"] = abs(len(read(root, "dead_letters")) - self.poison)
        return found


def _counted(of: Sequence[dict[str, Any]]) -> Counter[str]:
    return Counter(str(sorted(row.items())) for row in of)


@pytest.mark.promise("jobs.md", "A job that is killed at any instant leaves no record out and counts none twice.")
@pytest.mark.slow
def test_what_a_killed_job_leaves(spark: SparkSession, audit: AuditTopic, tmp_path: Path, jars: Sequence[Path]) -> None:
    """SIGKILL to Python and JVM, the last time after all tables were written and before Spark knew."""
    sweep = Sweep(audit, tmp_path, jars)
    for instant in ("after traffic", "before joining traffic", "after batch"):
        sweep.send()
        sweep.kill(instant)
    (checkpoint,) = (tmp_path / "tables" / "_checkpoints").glob(f"*/{audit.name}")
    planned, committed = ({file.name for file in (checkpoint / name).glob("[0-9]*")} for name in ("offsets", "commits"))
    assert len(planned - committed) == 1
    sweep.finish()
    assert {name: count for name, count in sweep.differences().items() if count} == {}


def main(instant: str, arguments: dict[str, Any]) -> None:
    """Run a job whose driver is killed, with its JVM, at ``instant``: before or after what ``around`` names."""

    def at(now: str) -> None:
        if now == instant:
            gateway: Any = SparkContext._gateway
            os.kill(gateway.proc.pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)

    def around(owner: Any, name: str, what: Callable[..., str]) -> None:
        inner = getattr(owner, name)

        def wrapped(*given: Any, **options: Any) -> Any:
            at(f"before {what(*given, **options)}")
            made = inner(*given, **options)
            at(f"after {what(*given, **options)}")
            return made

        setattr(owner, name, wrapped)

    def replacing(stored: StoredTable, *given: Any, data_change: bool = True, **options: Any) -> str:
        return ("" if data_change else "joining ") + Path(stored.path).name

    around(io, "append_once", lambda session, rows, path, *given: Path(path).name)
    around(StoredTable, "replace_files", replacing)
    around(sink.TableSink, "__call__", lambda *given: "batch")
    kafka.MAX_RECORDS_PER_BATCH = RECORDS_PER_BATCH
    maintenance.MAINTENANCE_INTERVAL_S, maintenance.VACUUM_INTERVAL_S, compaction.MIN_FILES_TO_COMPACT = 0.0, 0.0, 2
    jars, definitions = map(Path, arguments["jars"]), load(arguments["definitions"])
    run(**arguments | {"jars": list(jars), "definitions": definitions})


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
