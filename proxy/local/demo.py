"""``brokerside demo``: from a real broker to a table, with a proof that the table equals the clients' own ledgers.

Every part is the real one, and everything after the workload goes through the public command: the job, the tables and
the queries are what a user would run.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import yaml
from rich.console import Console
from rich.status import Status
from rich.table import Table

from proxy.errors import LocalError
from proxy.local import audit_reader, cluster, sidecars, workload
from proxy.local.audit_reader import AuditTotals
from proxy.local.broker import AUDIT_TOPIC
from proxy.local.jars import resolve
from proxy.local.workload import ClientLedger, StormLedger

PARTITIONS = 4
REPORT = "report.html"
COMMAND_TIMEOUT = 600
"""Seconds that one of the commands below may take; the job, the longest, takes half a minute."""

ORDERS, PAYMENTS, CLICKS, TELEMETRY, STATUS = "orders", "payments", "clicks", "telemetry", "status"
TOPICS: dict[str, dict[str, str]] = {
    ORDERS: {},
    PAYMENTS: {},
    CLICKS: {},
    TELEMETRY: {"max.message.bytes": "2000"},
    STATUS: {},
}

STORM_ADDRESS, STORM_CONNECTIONS, STORM_RATE = "127.0.0.5", 40, 1
"""A client address, its connections at once, and its limit in connections/s: ten pass at once, and one each second."""

MINUTE = 60.0
"""Seconds: what the report's charts have a point for."""

HEARTBEAT = 15.0
"""Seconds after which a step says again that it continues, where there is no terminal to show that."""

TRAFFIC_BY_TOPIC = """
SELECT topic, client_id, api, sum(topic_requests)::BIGINT AS requests, sum(records)::BIGINT AS records,
       sum(bytes)::BIGINT AS bytes, sum(unconfirmed_records)::BIGINT AS unconfirmed,
       sum(rejected_records)::BIGINT AS rejected
FROM traffic WHERE topic IS NOT NULL GROUP BY ALL ORDER BY topic, api DESC, client_id
"""
TRAFFIC_BY_CLIENT = """
SELECT client_id, sum(requests)::BIGINT AS requests, sum(request_bytes)::BIGINT AS request_bytes,
       sum(response_bytes)::BIGINT AS response_bytes, sum(errors)::BIGINT AS errors
FROM traffic WHERE topic IS NULL GROUP BY ALL ORDER BY 2 DESC, 1
"""
FIRST_QUERY = "SELECT * FROM traffic LIMIT 5"
STORED_BY_TOPIC = """
SELECT topic, sum(bytes + unconfirmed_bytes)::BIGINT AS bytes FROM traffic
WHERE api = 'Produce' AND topic IS NOT NULL GROUP BY ALL
"""
REQUESTS = "SELECT sum(requests)::BIGINT AS requests FROM traffic WHERE topic IS NULL"

DEFINITIONS = Path(__file__).with_name("demo.yaml")
BUDGETS = """
SELECT slo, coalesce(threshold_ms || ' ms', 'no error') AS good, coalesce(topic, client_id, api) AS of,
       total AS requests, good::BIGINT AS "good ones", format('{:.3g} %', objective_ratio * 100) AS target,
       CASE WHEN total < 100 THEN 'too few to judge'
           ELSE format('{:.0f} %', period_error_budget_remaining_ratio * 100) END AS "budget left"
FROM slo ORDER BY period_error_budget_remaining_ratio, slo, of
"""
THROTTLED = """
SELECT client_ip, quota || ' of ' || scope AS "limit", max(quota_limit)::BIGINT AS "per second", action,
       sum(count)::BIGINT AS connections
FROM throttles GROUP BY ALL ORDER BY ALL
"""
CLOSED = "SELECT sum(count)::BIGINT AS closed FROM throttles WHERE action = 'drop'"
COSTS = """
SELECT x_Team AS team, round(sum(BilledCost), 2)::VARCHAR AS cost, BillingCurrency AS currency,
       string_agg(DISTINCT SkuId, ', ' ORDER BY SkuId) AS "for"
FROM cost GROUP BY team, currency ORDER BY sum(BilledCost) DESC, team
"""


@dataclass(frozen=True)
class Check:
    """One integer that must be the same on both sides."""

    who: str
    what: str
    counted_by: str
    ledger: int
    table: int

    @property
    def ok(self) -> bool:
        """Whether the two are equal."""
        return self.ledger == self.table


def demo(folder: Path | None, *, keep: bool) -> int:
    """Run the demo below ``folder`` (default: a temporary one, removed at the end); 0 if all is equal."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for module in ("aiokafka", "pyspark", "deltalake", "duckdb"):
        if find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
    root = folder or Path(tempfile.mkdtemp(prefix="brokerside-demo-"))
    root.mkdir(parents=True, exist_ok=True)
    if (root / "tables").exists():
        raise LocalError(f"{root} holds the tables of a former demo; give a new folder, or remove it")
    equal = done = False
    try:
        equal = _demo(root, console, charts=keep or folder is not None)
        done = True
    finally:
        state = cluster.status(root / "cluster")
        if keep and done and state is not None:
            _explain(root, state, console)
        else:
            sidecars.stop_all(root / "cluster")
            cluster.down(root / "cluster")
            if folder is None and equal:
                shutil.rmtree(root, ignore_errors=True)
                console.print("\nWith --keep (KEEP=1 make demo) all of it stays, and a report to open in a browser.")
            elif done:
                console.print(f"\nA report to open in a browser: {root / REPORT}")
    return 0 if equal else 1


def _demo(root: Path, console: Console, charts: bool) -> bool:
    """Run it all. ``charts``: whether somebody is going to look at the report's, which have a point for each minute."""
    with _step(console, "Kafka and Spark jars"):
        resolve("kafka-4.3.1")
        resolve("spark-4.2.0")
    with _step(console, "a real Kafka broker, and the sidecar in front of it"):
        state = cluster.up(root / "cluster", progress=False)
        sidecars.start_all(root / "cluster", state)
    console.print(f"      clients dial {state.bootstrap}; the broker itself listens on {state.nodes[0].upstream}")
    ledgers = list(_work(state, console, charts))
    storm = _throttle(root, state, console)
    with _step(console, "every audit event delivered, by the sidecar's own account in the audit topic"):
        totals = audit_reader.read_totals(state.internal_bootstrap, AUDIT_TOPIC)
    with _step(console, "the Spark job over the audit topic"):
        _brokerside("jobs", "run", "--available-now", "--bootstrap-server", state.internal_bootstrap,
                    "--tables", str(root / "tables"), "--definitions", str(DEFINITIONS))  # fmt: skip
    out = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    out.print("\n[bold]The traffic table, by topic and client[/bold]")
    _print(out, _query(root, TRAFFIC_BY_TOPIC))
    out.print("\n[bold]What each client put on the wire, all requests[/bold]")
    _print(out, _query(root, TRAFFIC_BY_CLIENT))
    out.print("\n[bold]The audit topic, by kind of event[/bold]")
    _print(out, [{"kind": kind, "events": count} for kind, count in totals.kinds.most_common()])
    checks = [*_checks(root, state, ledgers), *_throttled(root, storm), *_reconciled(root, totals)]
    out.print("\n[bold]The ledgers of clients, broker and sidecar against the table[/bold]")
    equal = _prove(out, checks)
    out.print(f"\n[bold]What the limit of {STORM_ADDRESS} did to {STORM_CONNECTIONS} connections at once[/bold]")
    _print(out, _query(root, THROTTLED))
    out.print("\n[bold]What is left of the error budget of each objective[/bold]")
    _print(out, _query(root, BUDGETS))
    out.print("\n[bold]What each team costs[/bold]")
    _print(out, _query(root, COSTS))
    _brokerside("report", "--tables", str(root / "tables"), "--out", str(root / REPORT))
    return equal


def _work(state: cluster.ClusterState, console: Console, charts: bool) -> Iterator[ClientLedger]:
    bootstrap = state.bootstrap
    with _step(console, "topics"):
        workload.create_topics(bootstrap, TOPICS, PARTITIONS)
    with workload.steady_producer(bootstrap, "thermostat", STATUS) as finish:
        began = time.time() // MINUTE
        yield from _produce(bootstrap, console)
        if charts and time.time() // MINUTE == began:
            with _step(console, "a steady producer continues into the clock's next minute, so that charts have two"):
                time.sleep(MINUTE - time.time() % MINUTE + 1)
        yield from _read(bootstrap, console)
        with _step(console, "the steady producer ends"):
            yield finish()


def _produce(bootstrap: str, console: Console) -> Iterator[ClientLedger]:
    with _step(console, "librdkafka produces (zstd idempotent; lz4; acks=0; one record that is too large)"):
        zstd: dict[str, str | int] = {"enable.idempotence": "true", "compression.type": "zstd"}
        yield workload.confluent_produce(bootstrap, "orders-service", ORDERS, 20_000, zstd)
        yield workload.confluent_produce(bootstrap, "orders-import", ORDERS, 5_000, {"compression.type": "lz4"})
        yield workload.confluent_produce(bootstrap, "sensors", TELEMETRY, 3_000, {"acks": 0, "batch.size": 1500})
        yield workload.confluent_produce(bootstrap, "sensors-bulk", TELEMETRY, 0, {}, oversized=1)
    with _step(console, "aiokafka produces"):
        yield workload.aiokafka_produce(bootstrap, "payments-service", PAYMENTS, 10_000, PARTITIONS)
    with _step(console, "Java's kafka-producer-perf-test produces"):
        yield workload.java_produce(cluster.tool("producer-perf"), bootstrap, "clicks-load", CLICKS, 50_000)


def _read(bootstrap: str, console: Console) -> Iterator[ClientLedger]:
    with _step(console, "librdkafka reads, in groups of both protocols"):
        yield workload.confluent_consume(bootstrap, "billing", ORDERS, 25_000, "classic")
        yield workload.confluent_consume(bootstrap, "search-index", ORDERS, 25_000, "consumer")
    with _step(console, "aiokafka reads"):
        yield workload.aiokafka_consume(bootstrap, "fraud-check", PAYMENTS, 10_000)
    with _step(console, "Java's kafka-consumer-perf-test reads"):
        yield workload.java_consume(cluster.tool("consumer-perf"), bootstrap, "dashboard", CLICKS, 50_000)


def _throttle(root: Path, state: cluster.ClusterState, console: Console) -> StormLedger:
    """Give one address a limit, by an edit of the sidecar's file and a reload, and let it connect too often."""
    node = state.nodes[0]
    with _step(console, f"a limit of {STORM_RATE} connection/s for {STORM_ADDRESS}, which then connects at once"):
        path = root / "cluster" / f"sidecar-{node.id}.yaml"
        config = yaml.safe_load(path.read_text())
        config["quotas"] = {"ips": {STORM_ADDRESS: {"connection_creation_rate": STORM_RATE}}}
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        said = _brokerside("reload", "--admin", node.admin).strip()
        storm = workload.connect_at_once(state.bootstrap, "storm", STORM_ADDRESS, STORM_CONNECTIONS)
    console.print(f"      brokerside reload: {said}")
    return storm


def _throttled(root: Path, storm: StormLedger) -> Iterator[Check]:
    (row,) = _query(root, CLOSED)
    yield Check("storm", "connections closed by the limit of its address", "its sockets", storm.closed,
                _number(row, "closed"))  # fmt: skip


def _checks(root: Path, state: cluster.ClusterState, ledgers: list[ClientLedger]) -> Iterator[Check]:
    by_client = {(row["client_id"], row["api"], row["topic"]): row for row in _query(root, TRAFFIC_BY_TOPIC)}
    shown = {"topic_requests": "requests", "unconfirmed_records": "unconfirmed", "rejected_records": "rejected"}
    for ledger in ledgers:
        row = by_client.get((ledger.client_id, ledger.api, ledger.topic), {})
        for column, count in ledger.counts.items():
            found = _number(row, shown.get(column, column))
            yield Check(
                ledger.client_id,
                f"{ledger.api} {ledger.topic}: {column.replace('_', ' ')}",
                ledger.library,
                count,
                found,
            )
    stored = {row["topic"]: _number(row, "bytes") for row in _query(root, STORED_BY_TOPIC)}
    for topic in TOPICS:
        segments = sum(file.stat().st_size for file in state.nodes[0].data.glob(f"{topic}-[0-9]*/*.log"))
        yield Check("the broker", f"log segments of {topic}: bytes", "its disk", segments, stored.get(topic, 0))


def _reconciled(root: Path, totals: AuditTotals) -> Iterator[Check]:
    """What the sidecar says it did: all of it is a row, an event of another kind, or a loss."""
    (row,) = _query(root, REQUESTS)
    rows = _number(row, "requests")
    others = totals.kinds.total() - totals.kinds["request"]
    yield Check("the sidecar", "requests on connections that closed", "its connections", totals.requests, rows)
    yield Check("the sidecar", "events numbered: rows, other kinds, losses", "its last status", totals.status.emitted,
                rows + others + totals.lost)  # fmt: skip


def _number(row: dict[str, str | int | None], column: str) -> int:
    """The integer of a column, 0 where the table has none; anything else is not equal to any ledger."""
    value = row.get(column, 0)
    return value if isinstance(value, int) else -1


def _prove(out: Console, checks: list[Check]) -> bool:
    table = Table("who", "what", "counted by", "", box=None, pad_edge=False)
    table.add_column("ledger", justify="right")
    table.add_column("table", justify="right")
    for check in checks:
        mark = "[green]=[/green]" if check.ok else "[bold red]≠[/bold red]"
        table.add_row(check.who, check.what, check.counted_by, mark, f"{check.ledger:,}", f"{check.table:,}")
    out.print(table)
    wrong = sum(not check.ok for check in checks)
    if wrong:
        out.print(f"\n[bold red]{wrong} of {len(checks)} numbers differ.[/bold red]")
    else:
        out.print(f"\n[bold green]All {len(checks)} numbers are equal, to the unit.[/bold green]")
    return not wrong


def _explain(root: Path, state: cluster.ClusterState, console: Console) -> None:
    command = sys.argv[0]
    tables = f"--tables {root}/tables"
    node = state.nodes[0]
    admin = f"--admin {node.admin}"
    console.print(
        f"\nA report to open in a browser: {root / REPORT}\n"
        "Everything is still running. Try:\n"
        f"  {command} query --list\n"
        f"  {command} query {tables} --ask top-talkers\n"
        f"  {command} query {tables} '{FIRST_QUERY}'\n"
        f"  {command} cluster status --dir {root}/cluster\n"
        "the sidecar itself: limits, who is connected, what brokers there are, an edit of its file:\n"
        f"  {command} quotas {admin}\n"
        f"  {command} connections {admin}\n"
        f"  {command} top {admin}\n"
        f"  {command} broker-metadata {node.advertised}\n"
        f"  {command} reload {admin}    # applies quotas in {root}/cluster/sidecar-{node.id}.yaml\n"
        f"  curl -s http://{node.admin}/readyz http://{node.admin}/metrics\n"
        "your own clients, with bootstrap.servers="
        f"{state.bootstrap}, and then what they did:\n"
        f"  {command} jobs run --available-now --bootstrap-server {state.internal_bootstrap} {tables}"
        f" --definitions {DEFINITIONS}\n"
        "what it costs, and which objectives were met:\n"
        f"  {command} query {tables} --ask chargeback\n"
        f"  {command} query {tables} --ask budget-left\n"
        f"  {command} report {tables} --out {root / REPORT}\n"
        f"  {command} export focus {tables}\n"
        "and in the end:\n"
        f"  {command} cluster down --dir {root}/cluster && rm -r {root}"
    )


@contextmanager
def _step(console: Console, what: str) -> Iterator[None]:
    """Print what is being done, that it continues, and how long it took."""
    started = time.monotonic()
    done = threading.Event()

    def show_progress(status: Status | None) -> None:
        while not done.wait(1.0 if status else HEARTBEAT):
            seconds = time.monotonic() - started
            if status is not None:
                status.update(f"{what} [dim]{seconds:.0f}s[/dim]")
            else:
                console.print(f"  ... {seconds:.0f}s: {what}")

    if not console.is_terminal:
        console.print(f"  ... {what}")
    with console.status(what) if console.is_terminal else nullcontext() as status:
        threading.Thread(target=show_progress, args=(status,), daemon=True).start()
        try:
            yield
        finally:
            done.set()
    console.print(f"[dim]{time.monotonic() - started:5.1f}s[/dim] {what}")


def _brokerside(*arguments: str) -> str:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "proxy", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            timeout=COMMAND_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LocalError(f"`brokerside {' '.join(arguments)}` did not end within {COMMAND_TIMEOUT} s") from None
    if done.returncode:
        raise LocalError(f"`brokerside {' '.join(arguments)}` failed with exit code {done.returncode}")
    return done.stdout


def _query(root: Path, sql: str) -> list[dict[str, str | int | None]]:
    rows: list[dict[str, str | int | None]] = json.loads(
        _brokerside("query", "--tables", str(root / "tables"), "--output", "json", sql)
    )
    return rows


def _print(out: Console, rows: list[dict[str, str | int | None]]) -> None:
    table = Table(box=None, pad_edge=False)
    for name, value in rows[0].items() if rows else ():
        table.add_column(name, justify="right" if isinstance(value, int) else "left")
    for row in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value or "-") for value in row.values()))
    out.print(table)
