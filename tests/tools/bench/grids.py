"""Tables and goals of the scenarios about groups and jobs: a row for each figure, a column for each side or topic."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

SIDES = {"ours": "coordinated", "tuned": "KIP-848, tuned", "default": "KIP-848, defaults"}
"""Their titles, by their name in figures."""


class Row(NamedTuple):
    """``figure``: its name; ``{}`` in it stands for the side."""

    title: str
    figure: str
    decimals: int = 0


class Grid(NamedTuple):
    """One table. ``columns``: titles, by what stands for ``{}`` in the names of figures."""

    scenario: str
    title: str
    columns: dict[str, str]
    rows: tuple[Row, ...]
    contestant: str = "brokerside"


GROUP_EVENTS = {
    "join": "one joins",
    "leave": "one leaves",
    "leave_reporting": "one leaves that has offsets to report",
    "kill": "one is killed",
    "freeze": "one stands still",
}
GRIDS = (
    Grid(
        "features",
        "Features of the fleet",
        {"off": "without features", "on": "with", "more": "with ÷ without; idle: more"},
        (
            Row("CPU µs/small request", "small_{}", 3),
            Row("CPU µs/connection of a storm", "storm_{}", 3),
            Row("idle, CPU ms/s; with features as the controller", "idle_{}", 2),
        ),
    ),
    Grid(
        "features",
        "Updates of features, ms",
        {"p50": "p50", "p99": "p99", "tool": "by `kafka-features.sh`"},
        (Row("of `brokerside.audit.event.schema`", "update_{}"), Row("of Kafka's `group.version`", "kafka_update_{}")),
    ),
    Grid(
        "groups",
        "Groups of 50 consumers, 200 partitions",
        SIDES,
        (
            Row("50 start at once: until all is owned, s", "start_{}_s", 2),
            *(
                Row(f"{what}: {title}", f"{event}_{{}}_{figure}", decimals)
                for event, what in GROUP_EVENTS.items()
                for title, figure, decimals in (
                    ("until all is owned as computed, s", "s", 2),
                    ("longest time without an owner, moved partitions, ms", "moved_ms", 0),
                    ("… other partitions, ms", "others_ms", 0),
                )
            ),
            Row("partitions with two owners at a time", "overlaps_{}"),
        ),
    ),
    Grid(
        "groups",
        "The coordinator's sidecar: kill -9, started again after 1 s",
        {"restart": "T = 6 s", "restart_patient": "T = 10 s"},
        (
            Row("until all 50 are registered again, s", "{}_registered_s", 2),
            Row("until all have their assignment again, s", "{}_resumed_s", 2),
            Row("longest time without an owner, ms", "{}_gap_ms"),
            Row("StopFetcher requests", "{}_stops"),
        ),
    ),
    Grid(
        "groups-scale",
        "Idle consumers of one sidecar, T = 6 s",
        {"": "figure"},
        (
            Row("until all are registered and have their assignment, s", "register_s", 1),
            Row("CPU over the same sidecar with one, ms/s", "cpu_ms_s"),
            Row("CPU µs for each ping", "cpu_us_ping"),
            Row("RSS over the same sidecar with one, MiB", "rss_mib", 1),
            Row("lateness of pings, p99, ms", "lateness_p99_ms", 1),
            Row("connections ended by the sidecar, in all of the run", "failures"),
            Row("rebalance of one group among them, s", "rebalance_s", 2),
            Row("10,000 small requests/s: p99 µs without consumers", "without_p99_us"),
            Row("… with them", "with_p99_us"),
            Row("… with ÷ without", "p99_ratio", 2),
        ),
    ),
    Grid(
        "groups-takeover",
        "Idle consumers of one sidecar: kill -9, started again at once",
        {"short": "T = 6 s", "long": "T = 10 s"},
        (
            Row("until the sidecar accepts again, s", "{}_accepts_s", 2),
            Row("until all are registered again, s", "{}_registered_s", 2),
            Row("until all have their assignment again, s", "{}_assigned_s", 2),
            Row("StopFetcher requests", "{}_stops"),
            Row("consumers whose lease ended meanwhile", "{}_leases_ended"),
            Row("longest time without an owner, ms", "{}_gap_ms"),
            Row("connections delayed by the limit of 1,500/s", "{}_delayed"),
            Row("connections ended by the sidecar that was started", "{}_closed"),
        ),
    ),
    Grid(
        "groups-fleet",
        "Idle consumers of three sidecars, T = 10 s",
        {"three": "three sidecars", "one": "one of them, a third of the groups"},
        (
            Row("groups of the sidecar with the fewest", "{}_groups_least"),
            Row("… with the most", "{}_groups_most"),
            Row("consumers of the sidecar with the fewest", "{}_consumers_least"),
            Row("… with the most", "{}_consumers_most"),
            Row("until all are registered and have their assignment, s", "{}_register_s", 1),
            Row("CPU over the same with one consumer, ms/s, of the sidecar that uses the least", "{}_cpu_least_ms_s"),
            Row("… of the one that uses the most", "{}_cpu_most_ms_s"),
            Row("… of each consumer, µs/s", "{}_cpu_us_consumer", 1),
            Row("… three sidecars ÷ one", "{}_cpu_ratio", 2),
            Row("lateness of pings, p99, ms", "{}_lateness_p99_ms", 1),
            Row("connections ended by the sidecars", "{}_failures"),
        ),
    ),
)


Bounds = tuple[tuple[str, str, float], ...]
"""Text, figure, and what its median must not be above."""

GROUP_GOALS: dict[str, Bounds] = {
    "groups": (
        ("one joins, s,", "join_ours_s", 1.0),
        ("… moved partitions without an owner, ms,", "join_ours_moved_ms", 600),
        ("… other partitions without an owner, ms,", "join_ours_others_ms", 0),
        ("one leaves, s,", "leave_ours_s", 1.0),
        ("one leaves that has offsets to report, s,", "leave_reporting_ours_s", 1.0),
        ("one is killed, s,", "kill_ours_s", 1.0),
        ("one stands still, s,", "freeze_ours_s", 12.5),
        ("partitions with two owners at a time", "overlaps_ours", 0),
        ("sidecar killed: registered again, s,", "restart_registered_s", 4.0),
        ("… without an owner, T = 6 s, ms,", "restart_gap_ms", 1_000),
        ("… without an owner, T = 10 s, ms,", "restart_patient_gap_ms", 0),
    ),
    "groups-scale": (
        ("idle consumers, CPU ms/s,", "cpu_ms_s", 200),
        ("idle consumers, RSS MiB,", "rss_mib", 60),
        ("idle consumers, lateness p99, ms,", "lateness_p99_ms", 50),
        ("idle consumers, ended by the sidecar", "failures", 0),
        ("rebalance of one group among them, s,", "rebalance_s", 0.5),
        ("p99 of small requests, with ÷ without them,", "p99_ratio", 1.25),
    ),
    "groups-takeover": (
        ("takeover, T = 6 s: StopFetcher requests", "short_stops", 0),
        ("… connections ended by the sidecar", "short_closed", 0),
        ("takeover, T = 10 s: StopFetcher requests", "long_stops", 0),
        ("… consumers whose lease ended", "long_leases_ended", 0),
        ("… connections ended by the sidecar", "long_closed", 0),
    ),
    "groups-fleet": (
        ("three sidecars: groups of one of them", "three_groups_most", 140),
        ("… CPU of each consumer, three sidecars ÷ one,", "three_cpu_ratio", 1.25),
        ("… connections ended by them", "three_failures", 0),
    ),
}
"""By scenario."""

# ---- the jobs --------------------------------------------------------------------------------------------------------

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
            Row("a new process for a continuous job: CPU s until it has a session", "new_cpu_s", 1),
            Row("a short run over 10,000 events: CPU s", "cold_cpu_s", 1),
            Row("… of it until it has a session", "cold_start_cpu_s", 1),
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
