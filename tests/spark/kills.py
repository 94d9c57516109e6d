"""``python -m tests.spark.kills``: a job is killed at many instants, and its tables are those of one batch.

One topic, one root: before each run there are new records, poison and repeated ones among them; the run is killed with
its JVM at an instant that the seed chooses, and the next one continues. At last one run ends in good order, and every
table is compared with what the same functions make of the whole topic at once.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from observers.cluster_events import CommittedPartition, EndOffset, EndOffsetsEvent
from proxy.local import cluster as local_cluster
from proxy.local.jars import resolve
from spark_jobs import kafka
from spark_jobs.batch import WholeTopic
from spark_jobs.decode import DecodeOptions
from spark_jobs.definitions import load
from spark_jobs.run import run
from spark_jobs.schemas import DERIVED, STREAMED, TABLES
from spark_jobs.session import spark_conf, spark_session
from spark_jobs.tables import registry
from spark_jobs.tables.produced import mirror_sides
from tests.ledger.stored import rows
from tests.spark import derived
from tests.spark.conftest import FEW_ROWS, AuditTopic
from tests.spark.envelopes import (
    FETCH,
    METADATA,
    MINUTE,
    NOON,
    PRODUCE,
    connection,
    encoded,
    event,
    gap,
    group,
    inventory,
    partition,
    rollup,
    status,
    throttle,
)  # fmt: skip
from tests.spark.frames import kept
from tests.spark.killed_driver import INSTANTS
from tests.spark.merge import merge_rows

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
    """One topic and one root, and the runs over them."""

    def __init__(self, audit: AuditTopic, folder: Path, jars: Sequence[Path], seed: int) -> None:
        self._audit = audit
        self._random = random.Random(seed)
        self._jars = jars
        self._sent: list[bytes] = []
        self.envelopes = self.poison = 0
        mirror = folder / "mirror.yaml"
        mirror.write_text(MIRROR)
        self._definitions = [str(file) for file in (mirror, EXAMPLES / "slo.yaml", EXAMPLES / "prices.yaml")]
        self._arguments: dict[str, Any] = {
            "bootstrap_servers": audit.bootstrap,
            "topic": audit.name,
            "tables": str(folder / "tables"),
            "definitions": self._definitions,
            "available_now": True,
            "master": "local[2]",
            "conf": FEW_ROWS,
            "records_per_batch": RECORDS_PER_BATCH,
        }

    def send(self) -> None:
        """Write ten records: eight envelopes of every kind of event, one that was there before, and poison."""
        for _ in range(8):
            at = NOON + self._random.randrange(4) * DAY + self._random.randrange(5) * MINUTE
            kinds = (
                event(PRODUCE, partition(producer_id=7, base_sequence=self.envelopes), ts_request=at),
                event(FETCH, partition(), ts_request=at),
                rollup(minute=at - at % MINUTE),
                connection(ts=at, connection_id=f"c{self.envelopes}"),
                throttle(ts_first=at, ts_last=at),
                inventory("orders", "clicks"),
                event(METADATA, operation="Create", ts_request=at),
                group(ts_first=at, ts_last=at, committed=(CommittedPartition("orders", 0, self.envelopes, at),)),
                EndOffsetsEvent(0, at, (EndOffset("orders", 0, 2 * self.envelopes, at),)),
                gap(1, 2),
                status(ts=at),
            )
            first = 1 + len(kinds) * self.envelopes
            self._sent.append(encoded(*kinds, first_seq=first, sent_at=at, schema_level=2))
            self.envelopes += 1
            self._audit.send(self._sent[-1], partition=self._random.randrange(2))
        self._audit.send(self._random.choice(self._sent), b"poison", partition=self._random.randrange(2))
        self.poison += 1

    def kill(self, instant: str | None = None) -> tuple[str, bool]:
        """Run the job until ``instant``, by default a random one, or shortly after it; return which, and whether it
        came to it."""
        delay = 0.0 if instant else self._random.choice((0.0, 0.0, self._random.random()))
        instant = instant or self._random.choice(INSTANTS)
        arguments = json.dumps(self._arguments | {"jars": [str(jar) for jar in self._jars]})
        command = [sys.executable, "-m", "tests.spark.killed_driver", instant, "1", str(delay), arguments]
        done = subprocess.run(command, timeout=600, check=False, capture_output=True, text=True)
        if done.returncode not in (0, -signal.SIGKILL):
            raise AssertionError(f"{instant}: {done.returncode}: {done.stderr[-3000:]}")
        return instant + (f" + {delay:.2f} s" if delay else ""), done.returncode != 0

    def finish(self, _: SparkSession) -> None:
        """Run the job to its end, in the session that there is."""
        arguments = self._arguments | {"jars": [], "definitions": load(self._definitions)}
        arguments.pop("records_per_batch")
        run(**arguments)

    def differences(self, spark: SparkSession) -> dict[str, int]:
        """Return how many rows of each table differ from one batch over the topic; and requests missing or twice."""
        source = kafka.AuditTopicSource(self._audit.bootstrap, self._audit.name)
        records = kafka.read_range(spark, source, kafka.fetch_offset_range(spark, source))
        definitions = load(self._definitions)
        batch = WholeTopic(records, DecodeOptions(tuple(STREAMED), mirror_sides(definitions.mirrors)))
        whole = {name: kept(merge_rows(batch.table(name), table)) for name, table in STREAMED.items()}
        expected_rows = {name: rows.select(_columns(name)).toArrow() for name, rows in whole.items()}
        batch.release()
        for name in DERIVED.keys() - registry.tables_without_definitions(DERIVED, definitions):
            inputs = {each: expected_rows[each] for each in TABLES[name].derived_from}
            expected_rows[name] = derived.computed(name, inputs, definitions)
        found: dict[str, int] = {}
        root = Path(self._arguments["tables"])
        for name in (*STREAMED, *DERIVED):
            if name in expected_rows:
                expected = _counted(expected_rows[name].to_pylist())
                there = _counted(rows(root, name))
                found[name] = ((there - expected) + (expected - there)).total()
        requests = sum(row["requests"] for row in rows(root, "traffic"))
        found["requests too many or too few"] = abs(requests - REQUESTS_OF_AN_ENVELOPE * self.envelopes)
        found["dead letters too many or too few"] = abs(len(rows(root, "dead_letters")) - self.poison)
        return found


def _columns(name: str) -> list[str]:
    return [column.name for column in TABLES[name].columns]


def _counted(of: Sequence[dict[str, Any]]) -> Counter[str]:
    return Counter(str(sorted(row.items())) for row in of)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--instants", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    say: Callable[[str], None] = lambda text: print(text, flush=True)  # noqa: E731
    with tempfile.TemporaryDirectory(prefix="brokerside-kills-") as name:
        folder = Path(name)
        jars = resolve("spark-4.2.0", progress=False)
        bootstrap = local_cluster.up(folder / "cluster", advertise="broker", progress=False).internal_bootstrap
        try:
            sweep = Sweep(AuditTopic(bootstrap), folder, jars, arguments.seed)
            killed = 0
            with suppress(KeyboardInterrupt):  # what was killed so far is compared
                while killed < arguments.instants:
                    started = time.monotonic()
                    sweep.send()
                    instant, reached = sweep.kill()
                    killed += reached
                    say(
                        f"{killed}/{arguments.instants} {instant}: {time.monotonic() - started:.0f} s"
                        + " ended" * (not reached)
                    )
            with spark_session("kills", spark_conf("local[2]", jars, FEW_ROWS, short=True)) as spark:
                sweep.finish(spark)
                found = sweep.differences(spark)
        finally:
            local_cluster.down(folder / "cluster")
    say(f"{killed} kills, {sweep.envelopes} envelopes; rows that differ from one batch: {found}")
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
