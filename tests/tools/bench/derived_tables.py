"""CPU of the tables that are computed from others: of a whole day, of a minute that was added to it, of nothing new.

Needs neither Spark nor Kafka.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import duckdb

from spark_jobs import io
from spark_jobs.compaction import ROWS_PER_ROW_GROUP
from spark_jobs.definitions import load
from spark_jobs.derived_tables import compute_derived_tables
from spark_jobs.progress import Notice
from spark_jobs.schemas import TABLES
from spark_jobs.table_root import TableRoot
from spark_jobs.views import DUCKDB_TYPES

DEFINITIONS = "deploy/examples/definitions"
CLUSTER, SOURCE = "MkU3OEVBNTcwNTJENDM2Qg", "q1Sh-9_ISia_zwGINzRvyQ"
"""Of its brokers the zones are known; to it a mirror copies from the other one."""

DAY = date(2026, 11, 20)

KEYS = 700
"""Rows of traffic in each minute of the day: 1,008,000 are one day."""

ROW = {
    "day": "moment::DATE",
    "minute": "moment",
    "hour": "date_trunc('hour', moment)",
    "cluster_id": f"'{CLUSTER}'",
    "broker_id": "1 + key % 3",
    "boot_id": "concat('boot-', key % 3)",
    "connection_id": "concat('c', id)",
    "listener": "['CLIENT', 'PUBLIC'][1 + key % 2]",
    "api": "['Produce', 'Fetch', 'Metadata'][1 + key % 3]",
    "topic": "if(key % 3 = 2, NULL, concat('payments.', key // 3))",
    "principal": "concat('User:payments-', key % 40)",
    "client_id": "concat('service-', key)",
    "client_ip": "concat('10.', 1 + key % 2, '.0.', key % 250)",
}
"""What a row is about, by column: SQL of ``id``, its number; ``key``, one of KEYS; and ``moment``, its minute."""

INPUTS: dict[str, tuple[float, dict[str, str]]] = {
    "traffic": (1.0, {
        "requests": "if(topic IS NULL, 60, 0)", "request_bytes": "if(topic IS NULL, 18000, 0)",
        "response_bytes": "if(topic IS NULL, 3600, 0)", "topic_requests": "if(topic IS NULL, 0, 60)",
        "records": "if(topic IS NULL, 0, 600)", "bytes": "if(topic IS NULL, 0, 120000 + key)", "polled": "0",
    }),
    "latency": (1.0, {"requests": "60", "idle": "0", "latencies": "counts", "service_latencies": "counts"}),
    "connections": (0.02, {
        "opened_at": "moment", "closed_at": "moment + INTERVAL 3 HOURS", "requests": "600",
        "received_bytes": "180000", "sent_bytes": "36000", "last_seq": "id",
    }),
    "throttles": (0.02, {
        "scope": "'client'", "quota": "'produce'", "action": "'delay'", "count": "1", "quota_limit": "1000",
        "observed": "1200", "delay_ms": "50", "first_at": "moment", "last_at": "moment",
    }),
    "inventory": (0.02, {
        "topic": "concat('payments.', key // 3)", "partitions": "12", "internal": "false", "part": "1", "parts": "1",
        "first_seen": "moment", "last_seen": "moment", "listings": "1",
    }),
    "completeness": (0.01, {
        "envelopes": "10", "events": "2000", "lost": "0", "statuses": "4",
        "last_status": "moment + INTERVAL 45 SECONDS", "started_at": "date_trunc('day', moment)",
        "clock_step_ms": "0", "waiting": "0",
    }),
    "produced": (0.25, {
        "at": "moment", "cluster_id": f"if(id % 2 = 0, '{SOURCE}', '{CLUSTER}')",
        "topic": "concat(if(id % 2 = 0, '', 'eu.'), 'payments.', key // 2)",
        "principal": "if(id % 2 = 0, 'User:payments-1', 'User:mirrormaker')", "partition": "key // 2 % 12",
        "producer_id": "key", "producer_epoch": "0", "base_sequence": "id // 2", "base_offset": "id // 2",
        "outcome": "'acknowledged'", "records": "10", "bytes": "2000",
    }),
}  # fmt: skip
"""Of each table its rows, as a share of those of traffic, and what else than ROW it says."""


NAMES = ("cost", "topics", "slo", "quota_advice", "mirror_check")


def figures(folder: str, rows: int) -> dict[str, float]:
    """CPU seconds of each table: ``_s`` of a day of so many rows, ``_minute_s`` after one more minute."""
    root, definitions, spent = TableRoot(folder), load([Path(DEFINITIONS)]), {}
    for name, (share, said) in INPUTS.items():
        _write(root, name, 0, 1_440, int(rows * share), said)
    for what in ("", "_minute", "_nothing"):
        for name in NAMES:
            started, cpu = time.monotonic(), time.process_time()
            notices: list[Notice] = []
            if compute_derived_tables(_no_spark(), root, [name], definitions, notices.append):
                sys.exit(str(notices[-1]))
            spent[f"{name}{what}_s"] = time.process_time() - cpu
            figure = f"{spent[f'{name}{what}_s']:.2f} CPU s, {time.monotonic() - started:.2f} s"
            print(f"{name}{what}: {figure}", file=sys.stderr, flush=True)
        if what == "":
            for name, (share, said) in INPUTS.items():
                _write(root, name, 1_439, 1_440, max(int(rows * share / 1_440), 1), said)
    return spent


def _no_spark() -> Any:
    return None  # a table on a disk needs none


def _write(root: TableRoot, name: str, first: int, last: int, rows: int, said: Mapping[str, str]) -> None:
    """Write rows of the table ``name``, from one minute to another: in each column what ``said`` or ROW has for it.

    They are one file, as maintenance writes them.
    """
    table, sql = TABLES[name], ROW | said
    stored = io.create_table(_no_spark(), table, root.table_path(name))
    columns = [f'CAST({sql.get(c.name, "NULL")} AS {DUCKDB_TYPES[c.type]}) AS "{c.name}"' for c in table.columns]
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        made = database.sql(f"""
            SELECT {", ".join(columns)} FROM (SELECT *, {sql["topic"]} AS topic FROM (
                SELECT id, id % {KEYS} AS key,
                    TIMESTAMPTZ '{DAY}' + to_minutes({first} + id * {last - first} // {rows}) AS moment,
                    list_transform(range(39), lambda place: if(place = 5 + id % 9, 60, 0)) AS counts
                FROM range({rows}) AS given(id)))""")
        added = stored.write_file(made.to_arrow_reader(ROWS_PER_ROW_GROUP), DAY)
        stored.replace_files([], [added])
