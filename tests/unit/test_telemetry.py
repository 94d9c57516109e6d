import json
import logging
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pytest
import structlog
from msgspec import msgpack, structs
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.parser import text_string_to_metric_families

from observers.event_observer import AuditStats
from observers.observer_thread import ObserverStats
from proxy import __version__
from proxy.config import Secret
from proxy.core.counters import ListenerCounters
from proxy.telemetry import RateLimitedLogger, configure_logging, logs
from proxy.telemetry.definitions import METRICS
from proxy.telemetry.log_writer import LogWriter
from proxy.telemetry.logs import KEPT_TAIL_LENGTH, MAX_LOGGED_ITEMS, MAX_TEXT_LENGTH, sanitize
from proxy.telemetry.metrics import render
from proxy.telemetry.reference import reference_markdown
from proxy.telemetry.snapshot import ProcessCounts, Snapshot, process_counts, sum_snapshots
from proxy.telemetry.text_log import render_text

CANARY = "c4n4ry-hunter2"


@pytest.fixture
def logged(monkeypatch):
    """Configure logging, and return the lines that came out since, as objects."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    read, write = os.pipe()
    writer = LogWriter(write, lambda dropped: None)
    monkeypatch.setattr(logs, "_writers", [writer])

    def start(level: str = "info", **always: object):
        configure_logging(level, "json", **always)

        def lines():
            assert writer.flush(10)
            return [json.loads(line) for line in os.read(read, 1 << 16).splitlines()]

        return lines

    yield start
    os.close(read)
    os.close(write)
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_line_is_json_with_event_level_time_and_keys(logged):
    lines = logged()

    structlog.get_logger("proxy.test").info("listening", listener="CLIENT", connections=3)

    (line,) = lines()
    assert list(line) == ["timestamp", "level", "logger", "event", "listener", "connections"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line.pop("timestamp"))
    assert line == {
        "level": "info",
        "logger": "proxy.test",
        "event": "listening",
        "listener": "CLIENT",
        "connections": 3,
    }


def test_a_line_for_people_has_time_level_event_and_keys():
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


@pytest.mark.parametrize(
    ("form", "terminal", "is_json"),
    [("auto", True, False), ("auto", False, True), ("json", True, True), ("text", False, False)],
)
def test_lines_are_text_on_a_terminal_and_json_elsewhere_unless_configured(monkeypatch, form, terminal, is_json):
    read, write = os.pipe()
    writer = LogWriter(write, lambda dropped: None)
    monkeypatch.setattr(logs, "_writers", [writer])
    monkeypatch.setattr(logs.os, "isatty", lambda descriptor: terminal and descriptor == logs.STDERR)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        configure_logging("info", form)
        structlog.get_logger("proxy.test").info("listening", listener="CLIENT", token="c4n4ry")
        assert writer.flush(10)
        line = os.read(read, 1 << 16).decode()
    finally:
        structlog.reset_defaults()
        root.handlers[:] = handlers
        root.setLevel(level)
        os.close(read)
        os.close(write)
    assert line.startswith("{") == is_json
    assert "c4n4ry" not in line
    assert ("listener=CLIENT  token=***" in line) != is_json


def test_lines_below_the_level_are_left_out(logged):
    lines = logged("warning")
    log = structlog.get_logger()

    log.info("quiet")
    log.warning("loud")

    assert [line["event"] for line in lines()] == ["loud"]


def test_keys_that_every_line_has(logged):
    lines = logged("info", worker=2)

    structlog.get_logger().info("ours")
    logging.getLogger("asyncio").error("another's")

    assert [line["worker"] for line in lines()] == [2, 2]


def test_the_standard_librarys_lines_look_the_same(logged):
    lines = logged("debug")

    logging.getLogger("asyncio").error("Task was %s", "destroyed\n\x1b[31m")
    logging.getLogger("asyncio").info("chatter")

    (line,) = lines()
    assert (line["event"], line["level"], line["logger"]) == ("Task was destroyed\\n\\x1b[31m", "error", "asyncio")


def test_exceptions_become_one_line_without_local_variables(logged):
    lines = logged()

    def fail():
        password = CANARY
        raise OSError(f"no{len(password) * 0}\nway")

    try:
        fail()
    except OSError:
        structlog.get_logger().exception("failed")
        logging.getLogger("lib").exception("failed")

    for line in lines():
        assert line["error"] == "OSError: no0\\nway"
        assert line["trace"][-1].endswith(" fail")
        assert CANARY not in json.dumps(line)


def test_control_characters_are_escaped():
    line = sanitize(None, "info", {"event": "e", "client_id": "a\nb\x1b[2J\x7f\x85\u202e\udc80é…"})

    assert line["client_id"] == "a\\nb\\x1b[2J\\x7f\\x85\\u202e\\udc80é…"


def test_text_is_cut():
    line = sanitize(
        None, "info", {"event": "e", "client_id": "x" * 32_768 + "z" * KEPT_TAIL_LENGTH, "exact": "y" * MAX_TEXT_LENGTH}
    )

    assert line["client_id"] == "x" * (MAX_TEXT_LENGTH - KEPT_TAIL_LENGTH - 1) + "…" + "z" * KEPT_TAIL_LENGTH
    assert line["exact"] == "y" * MAX_TEXT_LENGTH


def test_containers_are_cut_and_cleaned():
    deep = {"a": {"b": {"c": {"d": 1}}}}
    line = sanitize(None, "info", {"many": list(range(100)), "items": ["\n"], "deep": deep, "set": {1}, "raw": b"\n"})

    assert line == {
        "many": list(range(MAX_LOGGED_ITEMS)),
        "items": ["\\n"],
        "deep": {"a": {"b": {"c": "{'d': 1}"}}},
        "set": [1],
        "raw": "b'\\n'",
    }


@pytest.mark.parametrize(
    "key", ["password", "sasl.password", "ssl.key.password", "token", "Authorization", "client_secret", "sasl_config"]
)
def test_what_looks_secret_is_not_written(key):
    line = sanitize(None, "info", {"event": "e", key: CANARY, "config": {key: [CANARY]}, "value": Secret(CANARY)})

    assert line == {"event": "e", key: "***", "config": {key: "***"}, "value": "***"}


class TestRepeated:
    @pytest.fixture
    def now(self):
        return [100.0]

    @pytest.fixture
    def lines(self):
        return []

    @pytest.fixture
    def repeated(self, now, lines):
        class Log:
            def warning(self, event, **keys):
                lines.append((event, keys))

        return RateLimitedLogger(Log(), clock=lambda: now[0])

    def test_the_first_is_logged_at_once(self, repeated, lines):
        repeated.warning("full", n=1)
        repeated.warning("other", n=2)

        assert lines == [("full", {"n": 1}), ("other", {"n": 2})]

    def test_those_within_a_second_are_counted_with_the_next(self, repeated, lines, now):
        for n in range(4):
            repeated.warning("full", n=n)
        now[0] += 0.999
        repeated.warning("full", n=4)
        now[0] += 0.001
        repeated.warning("full", n=5)
        now[0] += 1
        repeated.warning("full", n=6)

        assert lines == [("full", {"n": 0}), ("full", {"n": 5, "repeated": 5}), ("full", {"n": 6})]

    def test_the_last_of_a_burst_are_reported_by_flush(self, repeated, lines, now):
        for n in range(3):
            repeated.warning("full", n=n)
        repeated.flush()
        assert lines == [("full", {"n": 0})]

        now[0] += 1
        repeated.flush()
        repeated.flush()
        assert lines[1:] == [("full", {"n": 2, "repeated": 2})]

        repeated.warning("full", n=3)
        assert len(lines) == 2

    def test_every_occurrence_is_accounted_for(self, repeated, lines, now):
        for _ in range(1000):
            repeated.warning("full")
            now[0] += 0.0137
        now[0] += 1
        repeated.flush()

        assert sum(keys.get("repeated", 1) for _, keys in lines) == 1000
        assert len(lines) <= 1000 * 0.0137 + 2


def of(*listeners: str) -> Snapshot:
    return Snapshot({listener: ListenerCounters() for listener in listeners})


OBSERVER = ObserverStats("a:B", 5, {"queue_full": 4}, 3, 2, 6, True, {"record_request": 7})
AUDIT = AuditStats(
    emitted=100,
    delivered=70,
    dropped={"queue_full": 15, "closed": 5},
    spooled=8,
    queued=2,
    undelivered={1: 4, 2: 18},
    queued_bytes=5,
    spool_bytes=900,
    spool_problem="the spool /s cannot be used",
    replayed=12,
    replay_lost=1,
    observed=102,
    taken=102,
    problems={"compacted": "it is"},
    records_delivered=4,
    bytes_delivered=3,
    hidden=2,
    partly_hidden=3,
    topic_look_ups=1,
    levels={2: 1},
    searched={7.5: 1},
)


def scrape(snapshot: Snapshot) -> dict[tuple[str, ...], float]:
    """Samples by name and values of the labels, in the order of the definition."""
    text = render(snapshot)
    order = {f"brokerside_{definition.name}": definition.labels for definition in METRICS}
    return {
        (sample.name, *(sample.labels[label] for label in order.get(sample.name, sorted(sample.labels)))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_counts_of_the_data_path():
    snapshot = of("A", "B")
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


def test_the_state_is_one_of_two():
    for draining in (False, True):
        found = scrape(Snapshot({}, draining=draining))
        assert (found["brokerside_state", "ready"], found["brokerside_state", "draining"]) == (not draining, draining)


def test_without_observers_the_decode_counters_are_there_and_zero():
    found = scrape(of("A"))

    decoded = {key[1]: value for key, value in found.items() if key[0] == "brokerside_decode_total"}
    assert decoded == {"full": 0, "malformed": 0, "unsupported": 0, "not_kept": 0}
    assert not [key for key in found if key[0].startswith(("brokerside_observer", "brokerside_audit"))]


def test_api_keys_that_clients_invent_share_one_series():
    snapshot = of("A")
    snapshot.listener_counters["A"].requests.update(dict.fromkeys(range(20_000, 30_000), 1))
    snapshot.listener_counters["A"].requests[-1] = 1

    series = {key: value for key, value in scrape(snapshot).items() if key[0] == "brokerside_requests_total"}

    assert series == {("brokerside_requests_total", "A", "unknown"): 10_001}


def test_counts_of_observers():
    found = scrape(Snapshot({}, observers={"a:B": OBSERVER}))

    names = ("delivered_total", "failed_total", "queued", "slow_calls_total", "breaker_open")
    assert [found[f"brokerside_observer_{name}", "a:B"] for name in names] == [5, 3, 2, 6, 1]
    assert found["brokerside_observer_dropped_total", "a:B", "queue_full"] == 4
    assert found["brokerside_observer_errors_total", "a:B", "record_request"] == 7


def test_counts_of_the_audit():
    found = scrape(Snapshot({}, audit=structs.asdict(AUDIT)))

    assert {key: value for key, value in found.items() if key[0].startswith("brokerside_audit")} == {
        ("brokerside_audit_emitted_total",): 100,
        ("brokerside_audit_delivered_total",): 70,
        ("brokerside_audit_dropped_total", "queue_full"): 15,
        ("brokerside_audit_dropped_total", "closed"): 5,
        ("brokerside_audit_spooled",): 8,
        ("brokerside_audit_queued",): 2,
        ("brokerside_audit_queued_bytes",): 5,
        ("brokerside_audit_left_total",): 0,
        ("brokerside_audit_spool_bytes",): 900,
        ("brokerside_audit_spool_failed",): 1,
        ("brokerside_audit_replayed_total",): 12,
        ("brokerside_audit_replay_lost_total",): 1,
        ("brokerside_audit_topic_problem", "compacted"): 1,
        ("brokerside_audit_observed_total",): 102,
        ("brokerside_audit_records_total",): 4,
        ("brokerside_audit_bytes_total",): 3,
        ("brokerside_audit_hidden_total",): 2,
        ("brokerside_audit_partly_hidden_total",): 3,
        ("brokerside_audit_topic_look_ups_total",): 1,
        ("brokerside_audit_undelivered", "1"): 4,
        ("brokerside_audit_undelivered", "2"): 18,
    }


def test_the_opentelemetry_logs_have_the_counts_of_the_audit_under_their_own_name():
    found = scrape(Snapshot({}, opentelemetry=structs.asdict(AUDIT)))
    audit = scrape(Snapshot({}, audit=structs.asdict(AUDIT)))

    own = {key: value for key, value in found.items() if key[0].startswith("brokerside_opentelemetry_")}
    assert not [key for key in found if key[0].startswith("brokerside_audit")]
    assert own == {
        (key[0].replace("_audit_", "_opentelemetry_"), *key[1:]): value
        for key, value in audit.items()
        if key[0].startswith("brokerside_audit_")
        and not key[0].startswith(("brokerside_audit_topic_", "brokerside_audit_undelivered"))
    }
    assert (own["brokerside_opentelemetry_delivered_total",], len(own)) == (70, 17)


def test_counts_of_the_process():
    found = scrape(Snapshot({}, process=ProcessCounts(1.5, 2, 3, 4, 5, 6.0)))

    assert {key[0]: value for key, value in found.items() if key[0].startswith("process_")} == {
        "process_cpu_seconds_total": 1.5,
        "process_resident_memory_bytes": 2,
        "process_virtual_memory_bytes": 3,
        "process_open_fds": 4,
        "process_max_fds": 5,
        "process_start_time_seconds": 6.0,
    }


def test_the_kernel_counts_this_process_as_prometheus_client_reads_it():
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    ours = process_counts()
    theirs = {sample.name: sample.value for family in registry.collect() for sample in family.samples}

    assert ours.cpu_seconds == pytest.approx(theirs["process_cpu_seconds_total"], abs=0.5)
    assert ours.resident_bytes == pytest.approx(theirs["process_resident_memory_bytes"], rel=0.2)
    assert ours.virtual_bytes == pytest.approx(theirs["process_virtual_memory_bytes"], rel=0.2)
    assert ours.open_fds == pytest.approx(theirs["process_open_fds"], abs=2)
    assert ours.max_fds == theirs["process_max_fds"]
    assert ours.started_at == pytest.approx(theirs["process_start_time_seconds"], abs=2)


def test_the_time_of_the_start_never_changes() -> None:
    first = process_counts().started_at
    time.sleep(0.001)
    assert process_counts().started_at == first


class TestTotal:
    """Several processes, one page."""

    def snapshot(self, **counts):
        counters = ListenerCounters(
            accepted=3,
            active=1,
            closed={"client_closed": 2},
            received={"client": 10, "broker": 20},
            requests={0: 5},
            invalid_frames={("client", "invalid_size"): 1},
        )
        return Snapshot({"A": counters}, **counts)

    def test_counts_are_summed_key_by_key(self):
        one, other = self.snapshot(workers={1: 4}, worker_restarts=2), self.snapshot(workers={2: 5})
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
        assert one == self.snapshot(workers={1: 4}, worker_restarts=2), "the parts stay as they are"

    def test_observers_and_the_audit_are_summed_by_name(self):
        calm = structs.replace(OBSERVER, breaker_open=False)
        parts = [
            self.snapshot(),  # the main process has none
            self.snapshot(observers={"a:B": calm}, audit=structs.asdict(AUDIT)),
            self.snapshot(
                observers={"a:B": OBSERVER},
                audit={**structs.asdict(AUDIT), "dropped": {"closed": 1}, "levels": {1: 1}},
            ),
        ]

        summed = sum_snapshots(parts)

        assert summed.observers == {
            "a:B": ObserverStats("a:B", 10, {"queue_full": 8}, 6, 4, 12, True, {"record_request": 14})
        }
        assert (summed.audit["emitted"], summed.audit["dropped"]) == (200, {"queue_full": 15, "closed": 6})
        assert (summed.audit["undelivered"], summed.audit["levels"]) == ({1: 8, 2: 36}, {1: 1, 2: 1})

    def test_where_a_sum_would_say_nothing_it_is_the_worst_or_the_main_process_s(self):
        main = self.snapshot(loop_lag=0.1, process=ProcessCounts(1.0, 10, 100, 5, 1024, 77.0))
        worker = self.snapshot(loop_lag=0.3, process=ProcessCounts(2.0, 20, 200, 6, 1024, 88.0))

        summed = sum_snapshots([main, worker])

        assert summed.loop_lag == 0.3
        assert summed.process == ProcessCounts(3.0, 30, 300, 11, 1024, 77.0)

    def test_a_snapshot_survives_its_way_from_one_process_to_another(self):
        snapshot = self.snapshot(observers={"a:B": OBSERVER}, audit=structs.asdict(AUDIT), workers={1: 2})

        assert msgpack.decode(msgpack.encode(snapshot), type=Snapshot) == snapshot


def test_the_page_is_that_of_the_definitions():
    page = Path(__file__).parents[2] / "docs" / "metrics.md"

    assert page.read_text() == reference_markdown(), "docs/metrics.md is out of date: run make docs"


def test_names_follow_prometheus():
    names = [definition.name for definition in METRICS]

    assert len(set(names)) == len(names)
    for definition in METRICS:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", definition.name)
        assert definition.name.endswith("_total") == (definition.kind == "counter")
        assert definition.meaning.endswith(".")


def test_a_log_that_cannot_be_written_is_no_error() -> None:
    with Path("/dev/full").open("w") as full:  # every write fails there
        done = _log_to(full)
    assert done.stdout == "went on\n"


def _log_to(stderr: IO[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-c",
            (
                "import os, structlog; from proxy.telemetry import configure_logging; configure_logging('info'); "
                "log = structlog.get_logger('x'); [log.warning('event', n=n) for n in range(3)]; "
                "os.write(1, b'went on\\n')"
            ),
        ],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        timeout=240,
        check=False,
    )
