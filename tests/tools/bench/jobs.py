"""The jobs: what an event costs from the topic to the tables, by part; how old events are when they have rows; what a
short run costs; and what the tables cost that are computed from others.

The topics are written here, and each job is a process of its own, ``tests/tools/bench/jobs_process.py``.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from itertools import product
from pathlib import Path
from urllib.parse import unquote

import pyarrow.parquet as pq
from msgspec import structs

from proxy.errors import LocalError
from proxy.local.workload import create_topics
from tests.tools.bench import derived_tables
from tests.tools.bench.contestants import Contestant
from tests.tools.bench.jobs_cost import Cost, JobProcess, cpu_by_work, parts
from tests.tools.bench.jobs_topics import PARTITIONS, events, fill, flush, new_producer, produce
from tests.tools.bench.scenarios import Figures, Measured, Scenario
from tests.tools.bench.stage import Sizes, Stage

COLD_KEYS = 500
EVERY_S = 0.5
FRESH_EVENTS = 5
"""Of each record; there is one each ``EVERY_S``. All have one client, which no other record has."""

FRESH_TIMEOUT = 300.0
"""Seconds until there are as many batches as wanted."""

FIRST_COMMITS = 2
"""That create the table, and write the first batch, after which the derived tables are computed."""


class Jobs(Scenario):
    """The job over topics of so many events and keys a minute, and all that belongs to it."""

    name, whom, most_rounds = "jobs", ("brokerside-audit",), 1

    def measure(self, stage: Stage, contestant: Contestant) -> Measured:
        sizes, folder = stage.sizes, stage.folder / self.name
        bootstrap = stage.start_cluster().internal_bootstrap
        with stage.everywhere():
            figures = _Run(bootstrap, folder, sizes).figures()
            figures |= derived_tables.figures(str(folder / "day"), sizes.table_rows)
        # All of it is CPU of its own processes, which others disturb little.
        return Measured(figures, 0.0)


class _Run:
    """All measurements of jobs. Their tables are below ``folder``."""

    def __init__(self, bootstrap: str, folder: Path, sizes: Sizes) -> None:
        self._bootstrap, self._folder, self._sizes = bootstrap, folder, sizes
        self._count = 0

    def figures(self) -> Figures:
        sizes = self._sizes
        topics = {f"{count}-{keys}": (count, keys) for count, keys in product(sizes.job_events, sizes.job_keys)}
        for topic, (count, keys) in topics.items():
            fill(self._bootstrap, topic, count, keys)
        with JobProcess(self._bootstrap, "continuous", self._folder / "clocks") as job:
            figures: Figures = {"new_cpu_s": job.start.cpu_s}
            for topic, (count, _) in topics.items():  # Java compiles
                self._job(job, topic, count)
            for topic, (count, _) in topics.items():
                figures |= self._warm(job, topic, count)
            figures |= freshness(job, self._bootstrap, self._folder / "fresh", sizes.job_batches)
        return figures | self._cold()

    def _warm(self, job: JobProcess, topic: str, count: int) -> Figures:
        reading, decoding, whole = job.do("read", topic), job.do("decode", topic), self._job(job, topic, count)
        own = {f"{name}_us": seconds / count * 1e6 for name, seconds in parts(whole, decoding, reading).items()}
        own |= {"cpu_us": whole.cpu_s / count * 1e6, "per_s": count / whole.wall}
        own |= {f"{kind}_mib": mib for kind, mib in whole.peak.items()}
        return {f"{name}_{topic}": value for name, value in own.items()}

    def _cold(self) -> Figures:
        """Figures of a short run: a process that starts, makes tables of few events, and ends."""
        count, topic = self._sizes.job_cold_events, "jobs-cold"
        fill(self._bootstrap, topic, count, COLD_KEYS)
        with JobProcess(self._bootstrap, "short") as job:
            done = self._job(job, topic, count)
        return {"cold_start_cpu_s": job.start.cpu_s, "cold_cpu_s": job.start.cpu_s + done.cpu_s}

    def _job(self, job: JobProcess, topic: str, count: int) -> Cost:
        self._count += 1
        cost = job.do("job", topic, str(self._folder / str(self._count)))
        if cost.result["events"] != count:
            raise LocalError(f"{topic}: the job has read {cost.result['events']} of {count} events")
        print(f"job {topic}: {cost.cpu_s:.1f} CPU s, {cost.wall:.1f} s", file=sys.stderr, flush=True)
        return cost


def freshness(job: JobProcess, bootstrap: str, tables: Path, batches: int) -> dict[str, float]:
    """Return seconds from events to rows, median and maximum, and CPU seconds of a batch; of so many ``batches``.

    Raises LocalError.
    """
    topic, log = "jobs-fresh", tables / "traffic/_delta_log"
    create_topics(bootstrap, {topic: {}}, PARTITIONS)
    producer = new_producer(bootstrap)
    job.begin("job", topic, str(tables), "continuous")
    sent: dict[str, float] = {}
    begun, before, warm_at = time.monotonic(), None, 0.0
    while (commits := len(list(log.glob("*.json")))) < FIRST_COMMITS + batches:
        if time.monotonic() - begun > FRESH_TIMEOUT:
            raise LocalError(f"{topic}: {commits} commits within {FRESH_TIMEOUT:.0f} s")
        if before is None and commits >= FIRST_COMMITS:
            before, warm_at = job.read(), time.time()
        client, now = f"probe-{len(sent)}", time.time()
        made = [
            structs.replace(
                event, seq=FRESH_EVENTS * len(sent) + event.seq, client_id=client, ts_request=int(now * 1e6)
            )
            for event in events(FRESH_EVENTS, 1)
        ]
        produce(producer, topic, made[0].seq, made)
        sent[client] = now
        time.sleep(EVERY_S)
    assert before is not None
    cpu = sum(cpu_by_work(before, job.read()).values())
    job.stop()
    flush(producer)
    committed = commit_times(tables / "traffic")
    ages = [committed[client] - at for client, at in sent.items() if at >= warm_at and client in committed]
    return {
        "fresh_p50_s": statistics.median(ages),
        "fresh_max_s": max(ages),
        "small_batch_cpu_s": cpu / batches,
    }


def commit_times(table: Path) -> dict[str, float]:
    """Return when the first row of each client was committed, in seconds since 1970, by its client id."""
    found: dict[str, float] = {}
    for commit in sorted(table.glob("_delta_log/*.json")):
        for line in commit.read_text().splitlines():
            if added := json.loads(line).get("add"):
                rows = pq.read_table(table / unquote(added["path"]), columns=["client_id"], partitioning=None)
                for client in rows["client_id"].unique().to_pylist():
                    found.setdefault(client, commit.stat().st_mtime)
    return found
