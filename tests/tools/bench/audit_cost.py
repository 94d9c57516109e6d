"""What the audit and the metrics of requests cost a sidecar, by part: ``python -m tests.tools.bench.audit_cost``.

Starts a broker. The encoder of request events, the rollup and the counter of requests get the same exchanges, half of
them Produce and half Fetch with one partition each, 50 ms of traffic at a time as the data path hands them over: first
each alone (CPU of its thread), then inside the audit observer, paced, with everything that follows (CPU of all threads,
what reached the log): without a spool, with one, rolled up, and with other compression. Last, the same observer idle.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from observers.audit import AuditObserver
from observers.audit_filter import AuditFilter
from observers.audit_writer import RequestEventEncoder
from observers.channel_muting import ChannelMuting
from observers.event import SCHEMA_LEVEL
from observers.event_blocks import BlockBuilder, RecordWriter
from observers.event_observer import EventObserver
from observers.numbered_events import encode_numbered
from observers.request_counter import RequestCounter
from observers.rollup_writer import RollupAggregator
from observers.topic_names import TopicNames
from proxy.compiled.exchange import Exchange
from proxy.core.apis import APIS
from proxy.core.exchange import (
    AnsweredPartition,
    Connection,
    FetchedPartition,
    FetchRequest,
    FetchResponse,
    ProducedPartition,
    ProduceRequest,
    ProduceResponse,
    RecordSet,
    WantedPartition,
)
from proxy.local import cluster

EVENTS_A_SECOND = 20_000
FLUSH = 0.05
SECONDS = 4
ROUNDS = 3
IDLE_SECONDS = 5
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "mode: event": {},
    "a spool": {"spool.max.bytes": 1 << 30},
    "mode: rollup": {"mode": "rollup"},
    "mode: rollup, a spool": {"mode": "rollup", "spool.max.bytes": 1 << 30},
    "zstd at level 3": {"producer": {"compression.level": 3}},
    "lz4": {"producer": {"compression.type": "lz4"}},
    "no compression": {"producer": {"compression.type": "none"}},
}
"""What a user might set below ``audit``."""
HEAD = (
    f"| at {EVENTS_A_SECOND:,} requests/s | Python, CPU µs/request | librdkafka, CPU µs/request | raw B/request "
    "| B/request in the log |\n|---|---|---|---|---|"
)
API_NAMES = {key: api.name for key, api in APIS.items()}
TOPICS = [f"team-{n % 5}.orders-{n}".encode() for n in range(20)]
SERVICES = [f"service-{n % 17}" for n in range(50)]


def exchanges(count: int) -> list[Exchange]:
    """``count`` small requests of 50 clients, answered after a millisecond."""
    clients = [
        Connection(f"c{n}", "CLIENT", f"10.0.0.{n}", 40000, 0.0, f"User:svc-{n % 9}", "apache-kafka-java", "4.3.1")
        for n in range(50)
    ]
    return [_exchange(n, clients[n % 50], time.monotonic() + n / EVENTS_A_SECOND) for n in range(count)]


def _exchange(n: int, client: Connection, at: float) -> Exchange:
    topic, partition = TOPICS[n % 20], n % 12
    records = RecordSet(150 + n % 40, 1, 1, 2, 4000 + n % 50, 0, n, 7 * n)
    request: Any
    response: Any
    if n % 2:
        request = ProduceRequest(-1, 30_000, None, (ProducedPartition(topic, partition, records),), False)
        response = ProduceResponse(0, (AnsweredPartition(topic, partition, 0, 9 * n),), False)
    else:
        request = FetchRequest(-1, 500, 1, 7, n, (WantedPartition(topic, partition, n),), False)
        response = FetchResponse(0, 0, 7, (FetchedPartition(topic, partition, 0, n, records),), False)
    return Exchange(
        client, 0 if n % 2 else 1, 12, n, SERVICES[n % 50], at, 220, at + 0.001, 90, "answered", "full",
        request, response,
    )  # fmt: skip


def main() -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    observed = exchanges(EVENTS_A_SECOND)
    rounds = [(*_alone(observed), _rolled_up(observed), _counted(observed)) for _ in range(ROUNDS)]
    translate, envelope, roll, count = (statistics.median(each) * 1e9 for each in zip(*rounds, strict=True))
    print(f"translate {translate:.0f} ns and envelope {envelope:.0f} ns, or roll up {roll:.0f} ns a request")
    print(f"count for /metrics {count:.0f} ns a request")
    with tempfile.TemporaryDirectory(prefix="audit-cost-") as folder:
        state = cluster.up(Path(folder), advertise="broker", progress=False)
        try:
            rounds_of: dict[str, list[Whole]] = {case: [] for case in SETTINGS}
            for turn in range(ROUNDS):
                for number, (case, settings) in enumerate(SETTINGS.items()):
                    topic = f"cost-{number}-{turn}"
                    spool = {"spool.path": str(Path(folder) / "spool")} if "spool.max.bytes" in settings else {}
                    cost = whole(
                        observed, auditing(AuditObserver(), state.internal_bootstrap, topic, {**settings, **spool}, {})
                    )
                    size = sum(f.stat().st_size for f in state.nodes[0].data.glob(f"{topic}-[0-9]*/*.log"))
                    rounds_of[case].append(cost._replace(log=size / (len(observed) * SECONDS)))
            print(f"\n{HEAD}")
            for case, wholes in rounds_of.items():
                python, librdkafka, raw, log = map(statistics.median, zip(*wholes, strict=True))
                print(f"| {case} | {python:.2f} | {librdkafka:.2f} | {raw:.0f} | {log:.1f} |")
            _idle(state.internal_bootstrap)
        finally:
            cluster.down(Path(folder))


def _alone(observed: Sequence[Exchange]) -> tuple[float, float]:
    """Return CPU seconds an event of translating, and of making records of the result."""
    names = TopicNames(dict)
    encoder = RequestEventEncoder(API_NAMES, names, AuditFilter(names, topics={"audit"}, principals=()))
    builder, writer = BlockBuilder(), RecordWriter("ThK9ZFduS0ONy_eg3SRv7w", 1, "5f0c4c0d9a4b4e0f", "0.1.0")
    translate = envelope = 0.0
    gc.collect()
    for flush in _flushes(observed):
        begun = time.thread_time()
        made = encoder.encode_exchanges(flush, builder.seq + 1, 0.0)
        between = time.thread_time()
        for block in builder.add_chunks(made.chunks, made.last, 0.0):
            writer.encode_record(block.first, block.last, block.json(), level=SCHEMA_LEVEL, dropped=0, sent_at=0)
        translate += between - begun
        envelope += time.thread_time() - between
    return translate / len(observed), envelope / len(observed)


def _counted(observed: Sequence[Exchange]) -> float:
    """Return CPU seconds a request of counting it for ``/metrics``, its principal and topic included."""
    counter = RequestCounter(TopicNames(dict), ChannelMuting())
    gc.collect()
    begun = time.thread_time()
    for flush in _flushes(observed):
        counter.add_exchanges(flush)
    counter.publish()
    return (time.thread_time() - begun) / len(observed)


def _rolled_up(observed: Sequence[Exchange]) -> float:
    """Return CPU seconds a request of rolling up, and of the events that a second's requests become."""
    names = TopicNames(dict)
    rollup = RollupAggregator(API_NAMES, names, AuditFilter(names, topics={"audit"}, principals=()))
    gc.collect()
    begun = time.thread_time()
    for flush in _flushes(observed):
        rollup.add_exchanges(flush, 0, 0.0)
    encode_numbered(rollup.drain(), 1)
    return (time.thread_time() - begun) / len(observed)


def _flushes(observed: Sequence[Exchange]) -> Iterator[Sequence[Exchange]]:
    step = round(EVENTS_A_SECOND * FLUSH)
    for at in range(0, len(observed), step):
        yield observed[at : at + step]


@contextlib.contextmanager
def auditing(
    observer: EventObserver, bootstrap: str, topic: str, audit: Mapping[str, Any], own: Mapping[str, Any]
) -> Iterator[EventObserver]:
    """Start ``observer`` with the settings of the section ``audit``, and its own; close it at the end."""
    observer.configure(
        {
            "broker.id": 1,
            "boot.id": topic,
            "worker": 2,  # emits no inventory
            "sidecar.version": "0",
            "internal": {"bootstrap.servers": bootstrap},
            "topic.names": TopicNames(dict),
            "audit": {"topic": topic, **audit},
            "settings": own,
            "api.names": API_NAMES,
        }
    )
    while not observer._outbox._sender.ready.is_set():
        time.sleep(0.01)
    yield observer
    observer.close(20)


class Whole(NamedTuple):
    """CPU µs a request, of Python's threads and of librdkafka's; bytes a request, encoded and in the log."""

    python: float
    librdkafka: float
    raw: float
    log: float = 0.0


def whole(observed: Sequence[Exchange], auditing: contextlib.AbstractContextManager[EventObserver]) -> Whole:
    """What all of ``observed`` cost, again and again for some seconds."""
    with auditing as observer:
        before = _threads()
        due = time.monotonic()
        for _ in range(SECONDS):
            for flush in _flushes(observed):
                observer.record_exchanges(flush, 0)
                due += FLUSH
                time.sleep(max(0.0, due - time.monotonic()))
        time.sleep(2)  # what is rolled up is emitted by then
        while (stats := observer.stats()).delivered < stats.emitted and not stats.dropped:
            time.sleep(FLUSH)
        spent = _since(before)
    events = len(observed) * SECONDS
    if stats.dropped:
        sys.exit(f"lost: {dict(stats.dropped)}")
    librdkafka = sum(used.cpu for name, used in spent.items() if name.startswith("rdk:"))
    python = sum(used.cpu for used in spent.values()) - librdkafka
    return Whole(python / events / 1e3, librdkafka / events / 1e3, stats.bytes_delivered / events)


def _idle(bootstrap: str) -> None:
    """What an audit without events costs, in all threads of this process (the main one sleeps)."""
    with auditing(AuditObserver(), bootstrap, "cost-idle", {}, {}) as observer:
        observer.record_exchanges(exchanges(1), 0)
        time.sleep(2)
        before = _threads()
        time.sleep(IDLE_SECONDS)
        for comm, used in sorted(_since(before).items()):
            print(
                f"idle: {comm}: {used.cpu / IDLE_SECONDS / 1e6:.2f} ms a second, "
                f"{used.switches / IDLE_SECONDS:.1f} wake-ups a second"
            )


class Used(NamedTuple):
    cpu: int
    """Nanoseconds."""
    switches: int
    """Times that it went to sleep."""


def _threads() -> dict[str, tuple[str, Used]]:
    """Name and use of every thread of this process, by id."""
    threads = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            cpu = int((task / "schedstat").read_text().split()[0])
            status = (task / "status").read_text()
            name = (task / "comm").read_text().strip()
        except OSError:
            continue  # it has just ended
        threads[task.name] = (name, Used(cpu, int(status.partition("voluntary_ctxt_switches:")[2].split()[0])))
    return threads


def _since(before: dict[str, tuple[str, Used]]) -> dict[str, Used]:
    """What was used since ``before``, by name of thread."""
    spent: dict[str, Used] = {}
    for task, (name, used) in _threads().items():
        _, base = before.get(task, (name, Used(0, 0)))
        total = spent.get(name, Used(0, 0))
        spent[name] = Used(total.cpu + used.cpu - base.cpu, total.switches + used.switches - base.switches)
    return spent


if __name__ == "__main__":
    main()
