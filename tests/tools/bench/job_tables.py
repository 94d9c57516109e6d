"""Tables and goals of the scenario about jobs: a row for each figure, a column for each topic."""

from __future__ import annotations

from itertools import product

from tests.tools.bench.group_tables import Bounds, Grid, Row

EVENTS, KEYS = (100_000, 1_000_000, 5_000_000), (500, 5_000, 50_000)
"""Of topics that there are goals and columns for: events, and keys a minute."""

QUICK_EVENTS = 5_000

TOPICS = {f"{count}-{keys}": f"{count:,} × {keys:,}" for count, keys in product((QUICK_EVENTS, *EVENTS), KEYS)}
WHO = "brokerside-audit"

PARTS = {
    "kafka": "reading from Kafka",
    "python": "records from Java to Python, rows back",
    "decode": "decoding and checking",
    "digests": "digests, for deduplication",
    "sums": "sums by key",
    "rows": "partial rows of the sums",
    "shuffle": "shuffle and merge of partial rows",
    "tables": "rows of tables in the driver",
    "commit": "commits",
    "collect": "garbage collection (Java)",
    "compile": "compiling (Java's JIT)",
    "rest": "the rest: Spark's driver, streaming, derived tables",
}
"""Titles of the parts of a job, by name."""

JOB_GRIDS = (
    Grid(
        "jobs",
        "The jobs: CPU µs/event, by events of a topic × keys a minute",
        TOPICS,
        (
            Row("the whole job", "cpu_us_{}", 2),
            *(Row(f"… {title}", f"{part}_us_{{}}", 2) for part, title in PARTS.items()),
        ),
        WHO,
    ),
    Grid(
        "jobs",
        "The jobs: throughput and memory",
        TOPICS,
        (
            Row("events/s, from the start of the job to its end", "per_s_{}"),
            Row("most RSS of Java, MiB", "java_mib_{}"),
            Row("… of all Python workers together", "workers_mib_{}"),
            Row("… of the driver's Python", "driver_mib_{}"),
        ),
        WHO,
    ),
    Grid(
        "jobs",
        "The jobs: freshness, small batches, cold runs",
        {"": "figure"},
        (
            Row("event to row at 10 events/s: median, s", "fresh_p50_s", 1),
            Row("… at most, s", "fresh_max_s", 1),
            Row("CPU of a batch there, s", "small_batch_cpu_s", 2),
            Row("… events of a batch", "small_batch_events"),
            Row("a new process for a continuous job: CPU s until it has a session", "new_cpu_s", 1),
            Row("… its first job: CPU s", "first_cpu_s", 1),
            Row("… s", "first_s", 1),
            Row("a short run over 10,000 events: CPU s", "cold_cpu_s", 1),
            Row("… of it until it has a session", "cold_start_cpu_s", 1),
            Row("… s", "cold_s", 1),
        ),
        WHO,
    ),
)

JOB_GOALS: Bounds = (
    ("the whole job, 500 keys a minute, CPU µs/event,", "cpu_us_1000000-500", 10),
    ("… 5,000 keys a minute,", "cpu_us_1000000-5000", 12),
    ("a small batch, CPU s,", "small_batch_cpu_s", 1.5),
    ("event to row, continuous job, s,", "fresh_max_s", 10),
    ("a short run over 10,000 events, CPU s,", "cold_cpu_s", 10),
)
"""Of the median."""
