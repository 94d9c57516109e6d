import json
import logging
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import structlog
from msgspec import msgpack, structs
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.parser import text_string_to_metric_families

from observers.event_observer import AuditStats
from observers.observer_thread import ObserverStats
from proxy import __version__
from proxy.config import Secret
from proxy.coordinator.status import CoordinatorFields, CoordinatorStatus, HeldPartitionStatus, MetricTotal
from proxy.core.counters import ListenerCounters
from proxy.features.catalog import AUDIT_EVENT_SCHEMA, QUOTA_IP
from proxy.features.records import FinalizedFeatures, FinalizedRange, SupportedRange
from proxy.features.status import UPDATE_RESULTS, FeaturesStatus
from proxy.telemetry import RateLimitedLogger, configure_logging, logs
from proxy.telemetry.definitions import METRICS
from proxy.telemetry.log_writer import LogWriter
from proxy.telemetry.logs import KEPT_TAIL_LENGTH, MAX_LOGGED_ITEMS, MAX_TEXT_LENGTH, sanitize
from proxy.telemetry.metrics import render
from proxy.telemetry.snapshot import ProcessCounts, Snapshot, process_counts, sum_snapshots
from proxy.telemetry.text_log import render_text
from tests.unit.quotas_states import CONNECTIONS, RATE, busy, unlimited

CANARY = "c4n4ry-hunter2"


@pytest.fixture
def logged(monkeypatch):
    """Configure logging, and return the text that came out since."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    read, write = os.pipe()
    writer = LogWriter(write, lambda dropped: None)
    monkeypatch.setattr(logs, "_writers", [writer])

    def start(level: str = "info", form: str = "json", **always: object):
        configure_logging(level, form, **always)

        def text() -> str:
            assert writer.flush(10)
            return os.read(read, 1 << 16).decode()

        return text

    yield start
    os.close(read)
    os.close(write)
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def parsed(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.promise("logging.md", "A line is one JSON object: time, level, logger, event and its fields.")
def test_a_line_is_json_with_event_level_time_and_keys(logged):
    text = logged("info", worker=2)
    structlog.get_logger("proxy.test").debug("left out")
    structlog.get_logger("proxy.test").info("listening", listener="CLIENT", connections=3)
    # Those of the standard library look the same.
    logging.getLogger("asyncio").error("Task was %s", "destroyed\n\x1b[31m")
    logging.getLogger("asyncio").info("chatter")
    line, other = parsed(text())
    assert list(line) == ["timestamp", "level", "logger", "event", "listener", "connections", "worker"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line.pop("timestamp"))
    assert line == {
        "level": "info",
        "logger": "proxy.test",
        "event": "listening",
        "listener": "CLIENT",
        "connections": 3,
        "worker": 2,
    }
    assert (other["event"], other["level"], other["logger"]) == ("Task was destroyed\\n\\x1b[31m", "error", "asyncio")
    assert other["worker"] == 2

    def fail():
        password = CANARY
        raise OSError(f"no{len(password) * 0}\nway")

    try:
        fail()
    except OSError:
        structlog.get_logger().exception("failed")
        logging.getLogger("lib").exception("failed")
    lines = parsed(text())
    assert len(lines) == 2
    for line in lines:  # an exception is one line, without local variables
        assert line["error"] == "OSError: no0\\nway"
        assert line["trace"][-1].endswith(" fail")
        assert CANARY not in json.dumps(line)


@pytest.mark.promise("logging.md", "Lines are text on a terminal and JSON elsewhere, unless log.format says otherwise.")
def test_lines_are_text_on_a_terminal_and_json_elsewhere_unless_configured(logged, monkeypatch):
    for form, terminal, is_json in (
        ("auto", True, False),
        ("auto", False, True),
        ("json", True, True),
        ("text", False, False),
    ):
        monkeypatch.setattr(logs.os, "isatty", lambda descriptor, it=terminal: it and descriptor == logs.STDERR)
        text = logged("info", form)
        structlog.get_logger("proxy.test").info("listening", listener="CLIENT", token=CANARY)
        line = text()
        assert line.startswith("{") == is_json, (form, terminal)
        assert CANARY not in line
        assert ("listener=CLIENT  token=***" in line) != is_json
    line = {
        "timestamp": "2026-11-24T07:05:01.123456Z",
        "level": "warning",
        "logger": "proxy.test",
        "event": "listening",
        "bind": "0.0.0.0:9092",
        "error": 'no "room" here',
        "empty": "",
        "keys": ["a", "b=c"],
        "count": 3,
        "last": None,
    }
    assert render_text(None, "warning", line) == (
        "2026-11-24 07:05:01.123Z warning listening              bind=0.0.0.0:9092  "
        'error="no \\"room\\" here"  empty=""  keys=["a","b=c"]  count=3  last=null'
    )


@pytest.mark.promise("security.md", "Values in log lines are escaped and cut, and what looks secret is ***.")
def test_values_are_escaped_and_cut_and_what_looks_secret_is_not_written():
    line = sanitize(None, "info", {"event": "e", "client_id": "a\nb\x1b[2J\x7f\x85\u202e\udc80é…"})
    assert line["client_id"] == "a\\nb\\x1b[2J\\x7f\\x85\\u202e\\udc80é…"
    long, exact = "x" * 32_768 + "z" * KEPT_TAIL_LENGTH, "y" * MAX_TEXT_LENGTH
    line = sanitize(None, "info", {"event": "e", "client_id": long, "exact": exact})
    assert line["client_id"] == "x" * (MAX_TEXT_LENGTH - KEPT_TAIL_LENGTH - 1) + "…" + "z" * KEPT_TAIL_LENGTH
    assert line["exact"] == exact
    deep = {"a": {"b": {"c": {"d": 1}}}}
    line = sanitize(None, "info", {"many": list(range(100)), "items": ["\n"], "deep": deep, "set": {1}, "raw": b"\n"})
    assert line == {
        "many": list(range(MAX_LOGGED_ITEMS)),
        "items": ["\\n"],
        "deep": {"a": {"b": {"c": "{'d': 1}"}}},
        "set": [1],
        "raw": "b'\\n'",
    }
    for key in (
        *("password", "sasl.password", "ssl.key.password", "token", "Authorization", "client_secret", "sasl_config"),
    ):
        line = sanitize(None, "info", {"event": "e", key: CANARY, "config": {key: [CANARY]}, "value": Secret(CANARY)})
        assert line == {"event": "e", key: "***", "config": {key: "***"}, "value": "***"}


@pytest.mark.promise("log-events.md", "Of a line that repeats one is written a second, with the number of the others.")
def test_lines_that_repeat_are_one_a_second_and_all_are_accounted_for():
    now, lines = [100.0], []

    class Log:
        def warning(self, event, **keys):
            lines.append((event, keys))

    repeated = RateLimitedLogger(Log(), clock=lambda: now[0])
    repeated.warning("other", n=2)
    for n in range(4):
        repeated.warning("full", n=n)
    assert lines == [("other", {"n": 2}), ("full", {"n": 0})], "the first is logged at once"
    now[0] += 0.999
    repeated.warning("full", n=4)
    now[0] += 0.001
    repeated.warning("full", n=5)
    now[0] += 1
    repeated.warning("full", n=6)
    assert lines[2:] == [("full", {"n": 5, "repeated": 5}), ("full", {"n": 6})]
    repeated.warning("full", n=7)
    repeated.warning("full", n=8)
    repeated.flush()
    assert len(lines) == 4
    now[0] += 1
    repeated.flush()
    repeated.flush()
    assert lines[4:] == [("full", {"n": 8, "repeated": 2})], "the last of a burst are reported by flush"
    repeated.warning("full", n=9)
    assert len(lines) == 5

    now[0] += 10
    repeated.flush()
    lines.clear()
    for _ in range(1000):
        repeated.warning("full")
        now[0] += 0.0137
    now[0] += 1
    repeated.flush()
    assert sum(keys.get("repeated", 1) for _, keys in lines) == 1000
    assert len(lines) <= 1000 * 0.0137 + 2


@pytest.mark.promise("logging.md", "A log that cannot be written is no error for the sidecar.")
def test_a_log_that_cannot_be_written_is_no_error() -> None:
    code = (
        "import os, structlog; from proxy.telemetry import configure_logging; configure_logging('info'); "
        "log = structlog.get_logger('x'); [log.warning('event', n=n) for n in range(3)]; "
        "os.write(1, b'went on\\n')"
    )
    with Path("/dev/full").open("w") as full:  # every write fails there
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=full, text=True, timeout=240, check=False
        )
    assert done.stdout == "went on\n"


OBSERVER = ObserverStats("a:B", 5, {"queue_full": 4}, 3, 2, 6, True, {"record_request": 7})
AUDIT = AuditStats(
    emitted=100, delivered=70, dropped={"queue_full": 15, "closed": 5}, spooled=8, queued=2, undelivered={1: 4, 2: 18},
    queued_bytes=5, spool_bytes=900, spool_problem="the spool /s cannot be used", replayed=12, replay_lost=1,
    observed=102, taken=102, problems={"compacted": "it is"}, records_delivered=4, bytes_delivered=3, hidden=2,
    partly_hidden=3, topic_look_ups=1, levels={2: 1}, searched={7.5: 1},
)  # fmt: skip


def scrape(snapshot: Snapshot) -> dict[tuple[str, ...], float]:
    """Samples by name and values of the labels, in the order of the definition."""
    text = render(snapshot)
    order = {f"brokerside_{definition.name}": definition.labels for definition in METRICS}
    return {
        (sample.name, *(sample.labels[label] for label in order.get(sample.name, sorted(sample.labels)))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


@pytest.mark.promise("metrics.md", "Each count of the data path has its metric, and its series exist from the start.")
def test_counts_of_the_data_path():
    snapshot = Snapshot({"A": ListenerCounters(), "B": ListenerCounters()})
    a, b = snapshot.listener_counters.values()
    a.accepted, a.active, a.upstream_failures = 9, 4, 1
    a.received["client"], a.received["broker"] = 100, 200
    a.closed["client_closed"] = 5
    a.accept_errors["EMFILE"] = 6
    a.pauses["broker"] = 7
    a.requests.update({0: 3, 18: 1})
    a.responses[0] = 2
    a.edited[18] = 12
    a.intercepted.update({(9999, "replied"): 1, (-5, "replied"): 2, (3, "closed"): 3, (30000, "replied"): 4})
    a.intercept_errors = 13
    snapshot.private_apis = {30000: "BrokerMetadata"}
    for counters in (a, b):
        counters.decoded["full"] = 8
        counters.invalid_frames["client", "invalid_size"] = 1
    snapshot.loop_lag = 0.25
    snapshot.log_lines_dropped = {"error": 14}

    found = scrape(snapshot)

    for expected in [
        ("connections_accepted_total", "A", 9),
        ("connections_accepted_total", "B", 0),
        ("connections_active", "A", 4),
        ("connections_closed_total", "A", "client_closed", 5),
        ("connections_closed_total", "B", "drain_timeout", 0),
        ("upstream_connect_failures_total", "A", 1),
        ("accept_errors_total", "A", "EMFILE", 6),
        ("bytes_total", "A", "client_to_broker", 100),
        ("bytes_total", "A", "broker_to_client", 200),
        ("read_pauses_total", "A", "client", 0),
        ("read_pauses_total", "A", "broker", 7),
        ("requests_total", "A", "Produce", 3),
        ("requests_total", "A", "ApiVersions", 1),
        ("responses_total", "A", "Produce", 2),
        ("intercepted_requests_total", "A", "unknown", "replied", 3),
        ("intercepted_requests_total", "A", "Metadata", "closed", 3),
        ("intercepted_requests_total", "A", "BrokerMetadata", "replied", 4),
        ("edited_responses_total", "A", "ApiVersions", 12),
        ("intercept_errors_total", "A", 13),
        ("intercept_errors_total", "B", 0),
        ("decode_total", "full", 16),
        ("decode_total", "malformed", 0),
        ("frames_invalid_total", "client", "invalid_size", 2),
        ("loop_lag_seconds", 0.25),
        ("log_lines_dropped_total", "error", 14),
        ("log_lines_dropped_total", "warning", 0),
        ("state", "ready", 1),
        ("state", "draining", 0),
        ("build_info", __version__, 1),
    ]:
        name, *labels, value = expected
        assert found[(f"brokerside_{name}", *labels)] == value, expected
    assert any(name.startswith("process_") for name, *_ in found)


@pytest.mark.promise("metrics.md", "Api keys that clients invent share one series.")
def test_series_are_there_from_the_start_and_bounded():
    for draining in (False, True):
        found = scrape(Snapshot({}, draining=draining))
        assert (found["brokerside_state", "ready"], found["brokerside_state", "draining"]) == (not draining, draining)

    snapshot = Snapshot({"A": ListenerCounters()})
    found = scrape(snapshot)
    decoded = {key[1]: value for key, value in found.items() if key[0] == "brokerside_decode_total"}
    assert decoded == {"full": 0, "malformed": 0, "unsupported": 0, "not_kept": 0}
    assert not [key for key in found if key[0].startswith(("brokerside_observer", "brokerside_audit"))]

    snapshot.listener_counters["A"].requests.update(dict.fromkeys(range(20_000, 30_000), 1))
    snapshot.listener_counters["A"].requests[-1] = 1
    series = {key: value for key, value in scrape(snapshot).items() if key[0] == "brokerside_requests_total"}
    assert series == {("brokerside_requests_total", "A", "unknown"): 10_001}, "api keys that clients invent"


def test_counts_of_observers_and_the_process():
    found = scrape(Snapshot({}, observers={"a:B": OBSERVER}, process=ProcessCounts(1.5, 2, 3, 4, 5, 6.0)))

    names = ("delivered_total", "failed_total", "queued", "slow_calls_total", "breaker_open")
    assert [found[f"brokerside_observer_{name}", "a:B"] for name in names] == [5, 3, 2, 6, 1]
    assert found["brokerside_observer_dropped_total", "a:B", "queue_full"] == 4
    assert found["brokerside_observer_errors_total", "a:B", "record_request"] == 7
    assert {key[0]: value for key, value in found.items() if key[0].startswith("process_")} == {
        "process_cpu_seconds_total": 1.5,
        "process_resident_memory_bytes": 2,
        "process_virtual_memory_bytes": 3,
        "process_open_fds": 4,
        "process_max_fds": 5,
        "process_start_time_seconds": 6.0,
    }


@pytest.mark.promise("metrics.md", "The OpenTelemetry logs have the audit's counts, under their own name.")
def test_the_opentelemetry_logs_have_the_counts_of_the_audit_under_their_own_name():
    counts = {
        ("emitted_total",): 100, ("delivered_total",): 70, ("dropped_total", "queue_full"): 15,
        ("dropped_total", "closed"): 5, ("spooled",): 8, ("queued",): 2, ("queued_bytes",): 5, ("left_total",): 0,
        ("spool_bytes",): 900, ("spool_failed",): 1, ("replayed_total",): 12, ("replay_lost_total",): 1,
        ("topic_problem", "compacted"): 1, ("observed_total",): 102, ("records_total",): 4, ("bytes_total",): 3,
        ("hidden_total",): 2, ("partly_hidden_total",): 3, ("topic_look_ups_total",): 1, ("undelivered", "1"): 4,
        ("undelivered", "2"): 18,
    }  # fmt: skip
    for kind, other in (("audit", "opentelemetry"), ("opentelemetry", "audit")):
        found = scrape(Snapshot({}, **{kind: structs.asdict(AUDIT)}))
        own = {key for key in counts if kind == "audit" or not key[0].startswith(("topic_", "undelivered"))}
        assert {key: value for key, value in found.items() if key[0].startswith(f"brokerside_{kind}_")} == {
            (f"brokerside_{kind}_{name}", *labels): counts[name, *labels] for name, *labels in own
        }
        assert not [key for key in found if key[0].startswith(f"brokerside_{other}_")]


def test_the_kernel_counts_this_process_as_prometheus_client_reads_it():
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    ours = process_counts()
    theirs = {sample.name: sample.value for family in registry.collect() for sample in family.samples}
    for mine, name, slack in (
        (ours.cpu_seconds, "cpu_seconds_total", {"abs": 0.5}),
        (ours.resident_bytes, "resident_memory_bytes", {"rel": 0.2}),
        (ours.virtual_bytes, "virtual_memory_bytes", {"rel": 0.2}),
        (ours.open_fds, "open_fds", {"abs": 2}),
        (ours.max_fds, "max_fds", {"abs": 0}),
        (ours.started_at, "start_time_seconds", {"abs": 2}),
    ):
        assert mine == pytest.approx(theirs[f"process_{name}"], **slack), name
    time.sleep(0.001)
    assert process_counts().started_at == ours.started_at, "it never changes"


def snapshot_of(**counts):
    counters = ListenerCounters(
        accepted=3,
        active=1,
        closed={"client_closed": 2},
        received={"client": 10, "broker": 20},
        requests={0: 5},
        invalid_frames={("client", "invalid_size"): 1},
    )
    return Snapshot({"A": counters}, **counts)


@pytest.mark.promise("metrics.md", "With several workers every number of a page is the sum over them.")
def test_counts_of_processes_are_summed_key_by_key():
    one, other = snapshot_of(workers={1: 4}, worker_restarts=2), snapshot_of(workers={2: 5})
    other.listener_counters["A"].closed = {"client_reset": 7}
    other.listener_counters["A"].requests = {0: 1, 18: 2}
    summed = sum_snapshots([one, other])
    assert summed.listener_counters["A"] == ListenerCounters(
        accepted=6,
        active=2,
        closed={"client_closed": 2, "client_reset": 7},
        received={"client": 20, "broker": 40},
        pauses={"client": 0, "broker": 0},
        requests={0: 6, 18: 2},
        invalid_frames={("client", "invalid_size"): 2},
    )
    assert (summed.workers, summed.worker_restarts) == ({1: 4, 2: 5}, 2)
    assert one == snapshot_of(workers={1: 4}, worker_restarts=2), "the parts stay as they are"

    calm = structs.replace(OBSERVER, breaker_open=False)
    other_audit = {**structs.asdict(AUDIT), "dropped": {"closed": 1}, "levels": {1: 1}}
    summed = sum_snapshots(
        [
            snapshot_of(),  # the main process has none
            snapshot_of(observers={"a:B": calm}, audit=structs.asdict(AUDIT)),
            snapshot_of(observers={"a:B": OBSERVER}, audit=other_audit),
        ]
    )
    assert summed.observers == {
        "a:B": ObserverStats("a:B", 10, {"queue_full": 8}, 6, 4, 12, True, {"record_request": 14})
    }
    assert (summed.audit["emitted"], summed.audit["dropped"]) == (200, {"queue_full": 15, "closed": 6})
    assert (summed.audit["undelivered"], summed.audit["levels"]) == ({1: 8, 2: 36}, {1: 1, 2: 1})

    main = snapshot_of(loop_lag=0.1, process=ProcessCounts(1.0, 10, 100, 5, 1024, 77.0))
    worker = snapshot_of(loop_lag=0.3, process=ProcessCounts(2.0, 20, 200, 6, 1024, 88.0))
    summed = sum_snapshots([main, worker])
    assert summed.loop_lag == 0.3, "where a sum would say nothing it is the worst, or the main process's"
    assert summed.process == ProcessCounts(3.0, 30, 300, 11, 1024, 77.0)

    snapshot = snapshot_of(observers={"a:B": OBSERVER}, audit=structs.asdict(AUDIT), workers={1: 2})
    assert msgpack.decode(msgpack.encode(snapshot), type=Snapshot) == snapshot, "on its way between processes"


@pytest.mark.promise("how-to/add-a-metric.md", "Names of metrics follow Prometheus.")
def test_names_follow_prometheus():
    names = [definition.name for definition in METRICS]

    assert len(set(names)) == len(names)
    for definition in METRICS:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", definition.name)
        assert definition.name.endswith("_total") == (definition.kind == "counter")
        assert definition.meaning.endswith(".")


def of(found: dict[tuple[str, ...], float], name: str) -> dict[tuple[str, ...], float]:
    return {key[1:]: value for key, value in found.items() if key[0] == f"brokerside_{name}"}


@pytest.mark.promise(
    "limits-operation.md",
    "The rates of the broker and of listeners are metrics without a limit too; that of an address only with one.",
)
def test_rates_of_listeners_are_there_without_a_limit_those_of_addresses_are_not():
    found, idle = (scrape(Snapshot({}, quotas=quotas)) for quotas in (busy(), unlimited("CLIENT")))
    assert of(found, "quota_limit") == {
        ("broker", "", RATE, "enforce"): 200,
        ("broker", "", CONNECTIONS, "enforce"): 5000,
        ("listener", "CLIENT", RATE, "observe"): 100,
        ("ip", "", RATE, "enforce"): 20,
        ("ip", "", CONNECTIONS, "observe"): 500,
        ("principal", "", RATE, "enforce"): 10,
        ("principal", "", CONNECTIONS, "enforce"): 100,
    }
    assert of(found, "broker_connection_accept_rate") == {(): 187.25}
    assert of(found, "connection_accept_rate") == {("CLIENT",): 150.5, ("REPLICATION",): 1.5}
    assert of(found, "ip_connection_accept_rate") == {("10.1.2.3",): 22.9}
    assert of(idle, "broker_connection_accept_rate") == {(): 0}
    assert of(idle, "connection_accept_rate") == {("CLIENT",): 0}
    for name in ("quota_limit", "ip_connection_accept_rate"):
        assert of(idle, name) == {}


@pytest.mark.promise("metrics.md", "Every kind of throttled connections is a series from the start, with the value 0.")
def test_every_kind_of_throttling_is_there_from_the_start():
    found = scrape(Snapshot({}, quotas=busy()))
    series = of(scrape(Snapshot({}, quotas=unlimited("CLIENT", "REPLICATION"))), "connections_throttled_total")
    assert len(series) == 2 * 18
    assert not any(series.values())
    throttled = of(found, "connections_throttled_total")
    assert throttled.keys() == series.keys()
    assert throttled["CLIENT", "ip", RATE, "hold"] == 90
    assert sum(throttled.values()) == 12 + 800 + 90 + 60 + 4 + 2
    for name, value in {
        "connection_accept_throttle_time_seconds_sum": 0.6,
        "connection_accept_throttle_time_seconds_count": 12,
        "ip_connection_accept_throttle_time_seconds_sum": 40.5,
        "ip_connection_accept_throttle_time_seconds_count": 90,
        "principal_connection_throttle_time_seconds_sum": 1.5,
        "principal_connection_throttle_time_seconds_count": 4,
        "acceptor_blocked_seconds_total": 2.5,
        "connections_waiting": 1,
        "connections_queued": 213,
        "connections_held": 7,
        "connections_admitted_total": 4321,
    }.items():
        assert of(found, name) == {("CLIENT",): value, ("REPLICATION",): 0}, name
    assert of(found, "quota_addresses") == {(RATE,): 41, (CONNECTIONS,): 57}
    assert of(found, "quota_principals") == {(RATE,): 1, (CONNECTIONS,): 2}


@pytest.mark.promise("metrics.md", "The coordinator's states are there from the start, and its counts with the first.")
def test_states_are_there_from_the_start_and_counts_with_the_first():
    status = CoordinatorStatus(
        level=1,
        partitions=3,
        held=[HeldPartitionStatus(0, "open", 4, 2, 1), HeldPartitionStatus(1, "mute", 5, 1, 1)],
        fields=CoordinatorFields(ping_purgatory=7, start_fetcher_purgatory=2),
        groups={"stable": 1, "failed": 1},
        consumers=3,
        quarantined_partitions=4,
        totals={
            "rebalances_total": [MetricTotal(("joined", "done"), 2, 2)],
            "rebalance_seconds": [MetricTotal(("stop",), 2, 0.75)],
            "ping_lateness_seconds_max": [MetricTotal((), 9, 0.25)],
        },
    )
    found = scrape(Snapshot({}, coordinator=status))
    states = {("nominal",): 0, ("opening",): 0, ("open",): 1, ("mute",): 1}
    assert of(found, "coordinator_partitions") == states
    assert sum(of(found, "coordinator_groups").values()) == 2
    for name, samples in {
        "consumers": {(): 3},
        "quarantined_partitions": {(): 4},
        "purgatory": {("ping",): 7, ("stop_fetcher",): 0, ("start_fetcher",): 2},
        "rebalances_total": {("joined", "done"): 2},
        "rebalance_seconds_count": {("stop",): 2},
        "rebalance_seconds_sum": {("stop",): 0.75},
        "ping_lateness_seconds_max": {(): 0.25},
        "pings_total": {},
    }.items():
        assert of(found, f"coordinator_{name}") == samples, name
    for nothing in (None, CoordinatorStatus("coordinator.enabled is false")):
        page = scrape(Snapshot({}, coordinator=nothing))
        assert not [name for name, *_ in page if name.startswith("brokerside_coordinator_")]


@pytest.mark.promise("metrics.md", "Every metric of feature levels is there from the start.")
def test_every_series_of_feature_levels_is_there_from_the_start():
    supported = {AUDIT_EVENT_SCHEMA: SupportedRange(1, 1), QUOTA_IP: SupportedRange(1, 1)}
    status = FeaturesStatus(
        loaded=True,
        epoch=7,
        supported=supported,
        record=FinalizedFeatures(7, {AUDIT_EVENT_SCHEMA: FinalizedRange(1, 2)}),
        in_use={AUDIT_EVENT_SCHEMA: 1, QUOTA_IP: 1},
        problems={AUDIT_EVENT_SCHEMA: "too high"},
        state="serving",
        updates=dict.fromkeys(UPDATE_RESULTS, 0) | {"ok": 2},
    )
    found = scrape(Snapshot({}, features=status))
    for name, samples in {
        "features_loaded": {(): 1},
        "features_epoch": {(): 7},
        "feature_level": {
            (AUDIT_EVENT_SCHEMA, "supported_min"): 1,
            (AUDIT_EVENT_SCHEMA, "supported_max"): 1,
            (AUDIT_EVENT_SCHEMA, "finalized_min"): 1,
            (AUDIT_EVENT_SCHEMA, "finalized_max"): 2,
            (AUDIT_EVENT_SCHEMA, "effective"): 1,
            (QUOTA_IP, "supported_min"): 1,
            (QUOTA_IP, "supported_max"): 1,
            (QUOTA_IP, "effective"): 1,
        },
        "features_incompatible": {(AUDIT_EVENT_SCHEMA,): 1, (QUOTA_IP,): 0},
        "features_controller": {(): 1},
        "feature_updates_total": {("ok",): 2, ("refused",): 0, ("failed",): 0},
    }.items():
        assert of(found, name) == samples, name
