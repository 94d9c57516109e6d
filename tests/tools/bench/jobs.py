"""The jobs: what an event costs from the topic to the tables; how old events are when they have rows; what a
short run costs; and what the tables cost that are computed from others.

The topics are written here, and each job is a process of its own, ``tests/tools/bench/jobs_process.py``.
"""

from __future__ import annotations

import json
import random
import select
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow.parquet as pq
from confluent_kafka import Producer
from msgspec import structs

from observers.event import EVENTS_PER_RECORD, Envelope, RequestEvent, TopicPartition, encoder
from proxy.errors import LocalError
from proxy.local.workload import create_topics
from tests.tools.bench import derived_tables
from tests.tools.bench.contestants import Contestant
from tests.tools.bench.measure import cpu_seconds, family, peak_mib, reset_peaks
from tests.tools.bench.scenarios import Figures, Measured, Scenario
from tests.tools.bench.stage import Sizes, Stage

JOB_TIMEOUT = 3_600.0
"""Seconds for one job."""

SAMPLE_S = 10.0
"""Seconds between two readings meanwhile: a Python worker ends when it has been idle for a minute."""

EXIT_TIMEOUT = 60.0

PROGRAM = Path(__file__).with_name("jobs_process.py")


COLD_KEYS = 500
EVERY_S = 0.5
FRESH_EVENTS = 5
"""Of each record; there is one each ``EVERY_S``. All have one client, which no other record has."""

FRESH_TIMEOUT = 300.0
"""Seconds until there are as many batches as wanted."""

FIRST_COMMITS = 2
"""That create the table, and write the first batch, after which the derived tables are computed."""


class Cost(NamedTuple):
    """Of a job: seconds, CPU seconds, MiB by kind of process (of Python workers the sum), and what it says itself."""

    wall: float
    cpu_s: float
    peak: Mapping[str, float]
    result: Mapping[str, Any]


class JobProcess:
    """A process that does what it is asked. Use as a context manager."""

    def __init__(self, bootstrap: str, kind: str) -> None:
        """``kind``: "short" or "continuous". Raises LocalError."""
        self._cpu: dict[int, float] = {}
        begun = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(PROGRAM), bootstrap, kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.start = self._cost(begun, 0.0)
        """Until there is a session."""

    def __enter__(self) -> JobProcess:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        with self._process:  # closes its output
            try:
                self._process.wait(EXIT_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def do(self, *arguments: str) -> Cost:
        begun, before = time.monotonic(), self.begin(*arguments)
        return self._cost(begun, before)

    def begin(self, *arguments: str) -> float:
        """Begin a job, and return the CPU seconds before it."""
        assert self._process.stdin is not None
        before = self.cpu_s()
        reset_peaks(family(self._process.pid))
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()
        return before

    def stop(self) -> None:
        """End a job that lasts until SIGTERM. Raises LocalError."""
        self._process.send_signal(signal.SIGTERM)
        self._result()

    def cpu_s(self) -> float:
        """CPU of all its processes so far, and of those that have ended as it was read last."""
        self._cpu |= {pid: used for pid in family(self._process.pid) if (used := cpu_seconds([pid]))}
        return sum(self._cpu.values())

    def _cost(self, begun: float, before: float) -> Cost:
        result = self._result()
        wall, used = time.monotonic() - begun, self.cpu_s() - before
        peak: defaultdict[str, float] = defaultdict(float)
        for pid in family(self._process.pid):
            peak[self._kind(pid)] += peak_mib(pid)
        return Cost(wall, used, peak, result)

    def _result(self) -> dict[str, Any]:
        output = self._process.stdout
        assert output is not None
        deadline = time.monotonic() + JOB_TIMEOUT
        while not select.select([output], [], [], SAMPLE_S)[0]:
            self.cpu_s()
            if time.monotonic() > deadline:
                raise LocalError(f"{PROGRAM.name} has not done its work after {JOB_TIMEOUT:.0f} s")
        line = output.readline()
        if not line:
            raise LocalError(f"{PROGRAM.name} ended with {self._process.wait()}")
        result: dict[str, Any] = json.loads(line)
        return result

    def _kind(self, pid: int) -> str:
        if pid == self._process.pid:
            return "driver"
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            return "workers"
        return "java" if name == "java" else "workers"


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
        with JobProcess(self._bootstrap, "continuous") as job:
            figures: Figures = {"new_cpu_s": job.start.cpu_s}
            for topic, (count, _) in topics.items():  # Java compiles
                self._job(job, topic, count)
            for topic, (count, _) in topics.items():
                figures |= self._warm(job, topic, count)
            figures |= freshness(job, self._bootstrap, self._folder / "fresh", sizes.job_batches)
        return figures | self._cold()

    def _warm(self, job: JobProcess, topic: str, count: int) -> Figures:
        whole = self._job(job, topic, count)
        own = {"cpu_us": whole.cpu_s / count * 1e6, "per_s": count / whole.wall}
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
        cost = job.do(topic, str(self._folder / str(self._count)))
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
    job.begin(topic, str(tables), "continuous")
    sent: dict[str, float] = {}
    begun, before, warm_at = time.monotonic(), None, 0.0
    while (commits := len(list(log.glob("*.json")))) < FIRST_COMMITS + batches:
        if time.monotonic() - begun > FRESH_TIMEOUT:
            raise LocalError(f"{topic}: {commits} commits within {FRESH_TIMEOUT:.0f} s")
        if before is None and commits >= FIRST_COMMITS:
            before, warm_at = job.cpu_s(), time.time()
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
    cpu = job.cpu_s() - before
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


# ---- topics of audit records -----------------------------------------------------------------------------------------

APIS = [("Produce", 0, 13), ("Fetch", 1, 18), ("Metadata", 3, 13), ("Heartbeat", 12, 4), ("OffsetCommit", 8, 9)]
"""Names, keys and versions of requests, in the shares of a busy broker."""

SHARES = [45, 40, 3, 7, 5]
SOFTWARE = [("apache-kafka-java", "4.3.1"), ("confluent-kafka-python", "2.16.1-rdkafka-2.16.0"), (None, None)]

EVERY_US = 200
"""Time between two events: a broker of 5,000 requests/s."""

KEYS_OF_CLIENT = 9
"""Rows that a client has in each minute of ``traffic``: five of its requests, four of its topics."""

PARTITIONS = 4
FLUSH_TIMEOUT = 180.0


def fill(bootstrap: str, topic: str, count: int, keys: int) -> None:
    """Create a topic with ``count`` requests, which make about ``keys`` rows of ``traffic`` a minute."""
    create_topics(bootstrap, {topic: {}}, PARTITIONS)
    producer = new_producer(bootstrap)
    made = events(count, round(keys / KEYS_OF_CLIENT))
    for first in range(1, count + 1, EVENTS_PER_RECORD):
        produce(producer, topic, first, list(islice(made, EVENTS_PER_RECORD)))
    flush(producer)


def new_producer(bootstrap: str) -> Producer:
    return Producer({"bootstrap.servers": bootstrap, "compression.type": "zstd", "linger.ms": 50})


def produce(producer: Producer, topic: str, first: int, some: Sequence[RequestEvent]) -> None:
    """Produce one record of events, which are numbered from ``first`` on."""
    last, sent_at = first + len(some) - 1, some[-1].ts_request
    envelope = Envelope(1, "ThK9ZFduS0ONy_eg3SRv7w", 1, "5f0c4c0d9a4b4e0f", "0.1.0", first, last, 0, sent_at, [*some])
    producer.produce(topic, encoder.encode(envelope), partition=first // EVENTS_PER_RECORD % PARTITIONS)
    producer.poll(0)


def flush(producer: Producer) -> None:
    """Wait until all records are acknowledged. Raises LocalError."""
    if left := producer.flush(FLUSH_TIMEOUT):
        raise LocalError(f"{left} records of events were not acknowledged within {FLUSH_TIMEOUT:.0f} s")


def events(count: int, clients: int) -> Iterator[RequestEvent]:
    """Requests of ``clients`` of two topics each; a third of the fetches waits for data in vain."""
    chance = random.Random(1)
    for seq, (api, key, version) in enumerate(chance.choices(APIS, SHARES, k=count), 1):
        client = chance.randrange(clients)
        waits = key == 1 and chance.random() < 0.33
        parts = 0 if key > 1 or waits else chance.choice((1, 1, 2, 3))
        latency = 500_000 if waits else int(chance.lognormvariate(7, 1))
        software, software_version = SOFTWARE[client % len(SOFTWARE)]
        yield RequestEvent(
            seq=seq,
            listener="CLIENT",
            connection_id=f"c{client}",
            correlation_id=seq % 1_000_000,
            api_key=key,
            api=api,
            api_version=version,
            principal=f"User:team-{client % 40}",
            client_ip=f"10.0.{client // 250}.{client % 250}",
            ts_request=1_795_260_000_000_000 + seq * EVERY_US,
            latency_us=latency,
            upstream_us=max(latency - 40, 1),
            request_bytes=300,
            response_bytes=60,
            decode="full" if key < 2 else "none",
            client_id=f"service-{client}",
            client_software_name=software,
            client_software_version=software_version,
            max_wait_ms=500 if key == 1 else 0,
            acks=-1 if key == 0 else None,
            topics=tuple(_part(chance, key, 2 * client + chance.randrange(2)) for _ in range(parts)),
        )


def _part(chance: random.Random, key: int, number: int) -> TopicPartition:
    records, produced = chance.randrange(1, 60), key == 0
    return TopicPartition(
        topic=f"team-{number % 5}.orders-{number}",
        partition=chance.randrange(12),
        topic_id=f"{number:_>20}AA",
        bytes=200 * records,
        records=records,
        producer_id=1_000 + number if produced else -1,
        producer_epoch=0 if produced else -1,
        base_sequence=chance.randrange(1_000_000) if produced else -1,
        base_offset=chance.randrange(10_000_000),
    )
