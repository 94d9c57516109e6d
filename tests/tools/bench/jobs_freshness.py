"""How long it takes from an event to its committed row, and what a small batch costs, in a job that runs on."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from urllib.parse import unquote

import pyarrow.parquet as pq
from msgspec import structs

from proxy.errors import LocalError
from tests.tools.bench.jobs_cost import JobProcess, cpu_by_work
from tests.tools.bench.jobs_topics import PARTITIONS, events, flush, new_producer, produce
from tests.tools.bench.kafka import create_topic

EVERY_S = 0.5
EVENTS = 5
"""Of each record; there is one each ``EVERY_S``. All have one client, which no other record has."""

TIMEOUT = 300.0
"""Seconds until there are as many batches as wanted."""

FIRST_COMMITS = 2
"""That create the table, and write the first batch, after which the derived tables are computed."""


def freshness(job: JobProcess, bootstrap: str, tables: Path, batches: int) -> dict[str, float]:
    """Return seconds from events to rows, median and maximum, and CPU seconds of a batch; of so many ``batches``.

    Raises LocalError.
    """
    topic, log = "jobs-fresh", tables / "traffic/_delta_log"
    create_topic(bootstrap, topic, PARTITIONS)
    producer = new_producer(bootstrap)
    job.begin("job", topic, str(tables), "continuous")
    sent: dict[str, float] = {}
    begun, before, warm_at = time.monotonic(), None, 0.0
    while (commits := len(list(log.glob("*.json")))) < FIRST_COMMITS + batches:
        if time.monotonic() - begun > TIMEOUT:
            raise LocalError(f"{topic}: {commits} commits within {TIMEOUT:.0f} s")
        if before is None and commits >= FIRST_COMMITS:
            before, warm_at = job.read(), time.time()
        client, now = f"probe-{len(sent)}", time.time()
        made = [
            structs.replace(event, seq=EVENTS * len(sent) + event.seq, client_id=client, ts_request=int(now * 1e6))
            for event in events(EVENTS, 1)
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
        "small_batch_events": EVENTS * len(ages) / batches,
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
