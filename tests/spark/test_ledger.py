"""The scripted load of tests/ledger through real topics and the real job: the tables made of it equal their books."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from math import ceil

import pytest

from spark_jobs.query import query
from spark_jobs.schemas import TABLES
from tests.ledger.acts import Call
from tests.ledger.books import Book, Row, changes, groups, health, sessions, traffic
from tests.ledger.build import Built
from tests.ledger.compare import assert_equal
from tests.ledger.stored import rows

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(600)]


def equals(ledger: Built, table: str, book: Book) -> None:
    assert_equal(rows(ledger.root, table), TABLES[table].keys, book)


def test_traffic(ledger_root: Built) -> None:
    equals(ledger_root, "traffic", traffic.traffic(ledger_root.emitted.acts))


def test_latency(ledger_root: Built) -> None:
    found = rows(ledger_root.root, "latency")
    for row in found:
        assert (row["upstream_latencies"] is None) == (row["topic"] is not None)
        row["upstream_latencies"] = row["upstream_latencies"] or [0] * 40
    assert_equal(found, TABLES["latency"].keys, traffic.latency(ledger_root.emitted.acts))


def test_clients(ledger_root: Built) -> None:
    equals(ledger_root, "clients", traffic.clients(ledger_root.emitted.acts))


def test_connections(ledger_root: Built) -> None:
    equals(ledger_root, "connections", sessions.connections(ledger_root.emitted.acts))


def test_throttles(ledger_root: Built) -> None:
    equals(ledger_root, "throttles", sessions.throttles(ledger_root.emitted.acts))


def test_changes(ledger_root: Built) -> None:
    equals(ledger_root, "changes", changes.changes(ledger_root.emitted.acts))


def test_group_members(ledger_root: Built) -> None:
    equals(ledger_root, "group_members", groups.group_members(ledger_root.emitted.acts))


def test_committed_offsets(ledger_root: Built) -> None:
    equals(ledger_root, "committed_offsets", groups.committed_offsets(ledger_root.emitted.acts))


def test_end_offsets(ledger_root: Built) -> None:
    equals(ledger_root, "end_offsets", groups.end_offsets(ledger_root.emitted.acts))


def test_inventory(ledger_root: Built) -> None:
    equals(ledger_root, "inventory", sessions.inventory(ledger_root.emitted.acts))


MIRRORED = {("east", "orders"), ("east", "payments"), ("west", "east.orders"), ("west", "east.payments")}


def test_produced(ledger_root: Built) -> None:
    found = rows(ledger_root.root, "produced")
    single = [row for row in found if row["partition"] is not None]
    assert ordered(single) == ordered(sessions.produced(ledger_root.emitted.acts, MIRRORED))
    rolled = sum(row["records"] for row in found if row["partition"] is None and row["outcome"] == "acknowledged")
    assert rolled == sum(
        part.records
        for act in ledger_root.emitted.acts
        if isinstance(act, Call) and act.api == "Produce" and act.visit.run.rolls_up
        for part in act.parts
        if (act.visit.run.cluster, part.topic) in MIRRORED and not part.error
    )


def ordered(found: list[Row]) -> list[list[tuple[str, object]]]:
    return sorted([sorted(row.items()) for row in found], key=str)


def test_completeness(ledger_root: Built) -> None:
    equals(ledger_root, "completeness", health.completeness(ledger_root.emitted.envelopes))


def test_dead_letters(ledger_root: Built) -> None:
    found = rows(ledger_root.root, "dead_letters")
    assert_equal(found, ("topic", "partition", "offset"), health.dead_letters(ledger_root.records()))


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99, 1])
def test_percentiles_are_right_to_one_bucket(ledger_root: Built, share: float) -> None:
    """Never too low, and too high by less than a bucket's width, for any grouping."""
    true: dict[tuple[str, str | None], list[int]] = defaultdict(list)
    for call in traffic.calls(ledger_root.emitted.acts):
        if call.answered and not call.idle:
            for topic in (None, *call.topics):
                true[call.api, topic].append(call.latency_us)
    sql = (
        f"SELECT api, topic, quantile_ms(merge_counts(latencies), {share}) FROM latency WHERE requests > 0 GROUP BY ALL"
    )
    found = {(api, topic): round(ms * 1000) for api, topic, ms in query(ledger_root.root, sql)[1]}
    assert found.keys() == true.keys()
    for group, reported in found.items():
        exact = sorted(true[group])[ceil(Fraction(str(share)) * len(true[group])) - 1]
        assert exact <= reported
        assert reported <= max(exact * 2**0.5 + 1, traffic.ENDS[0]), group
