"""The scripted load of tests/ledger through real topics and the real job: the tables made of it equal their books."""

from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction
from math import ceil
from typing import Any

import pyarrow
import pytest

from spark_jobs.query import query
from spark_jobs.schemas import DERIVED, STREAMED, TABLES
from tests.ledger import books, examples
from tests.ledger.books import Book
from tests.ledger.build import Built
from tests.spark import derived
from tests.spark.stored import read, schema

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(600)]


def assert_equal(table: str, rows: Iterable[dict[str, Any]], book: Book) -> None:
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    differences = []
    for row in rows:
        at = tuple(row[key] for key in TABLES[table].keys)
        if at in found:
            differences.append(f"twice: {at}")
        found[at] = row
    differences += [f"not in the table: {at} {book[at]}" for at in book if at not in found]
    differences += [f"not in the book: {at} {found[at]}" for at in found if at not in book]
    for at in book.keys() & found.keys():
        differences += [
            f"{name} of {at}: table {found[at][name]!r}, book {value!r}"
            for name, value in book[at].items()
            if found[at][name] != value
        ]
    assert book, f"the book of {table} is empty"
    assert not differences, "\n".join(
        [f"{table}: {len(differences)} differences, {len(book)} rows in the book", *sorted(differences)[:8]]
    )


@pytest.mark.promise("tables.md", "Streamed tables hold exactly what the events say, in all columns.")
def test_streamed_tables_equal_their_books(ledger_root: Built) -> None:
    acts = ledger_root.emitted.acts
    kept = (
        books.traffic, books.clients, books.connections, books.throttles, books.changes, books.group_members,
        books.committed_offsets, books.end_offsets, books.inventory,
    )  # fmt: skip
    for book in kept:
        assert_equal(book.__name__, read(ledger_root.root, book.__name__), book(acts))
    assert_equal(
        "completeness", read(ledger_root.root, "completeness"), books.completeness(ledger_root.emitted.envelopes)
    )
    found = read(ledger_root.root, "latency")
    for row in found:
        assert (row["upstream_latencies"] is None) == (row["topic"] is not None)
        row["upstream_latencies"] = row["upstream_latencies"] or [0] * 40
    assert_equal("latency", found, books.latency(acts))


def ordered(found: list[dict[str, object]]) -> list[list[tuple[str, object]]]:
    return sorted([sorted(row.items()) for row in found], key=str)


@pytest.mark.promise(
    "tables/latency.md", "A percentile is never too low, and too high by less than the width of its bucket."
)
def test_percentiles_are_right_to_one_bucket(ledger_root: Built) -> None:
    true: dict[tuple[str, str | None], list[int]] = defaultdict(list)
    for call in books.calls(ledger_root.emitted.acts):
        if call.answered and not call.idle:
            for topic in (None, *call.topics):
                true[call.api, topic].append(call.latency_us)
    shares = (0.5, 0.9, 0.99, 1)
    asked = ", ".join(f"quantile_ms(merge_counts(latencies), {share})" for share in shares)
    sql = f"SELECT api, topic, {asked} FROM latency WHERE requests > 0 GROUP BY ALL"
    found = {(api, topic): all_ms for api, topic, *all_ms in query(ledger_root.root, sql)[1]}
    assert found.keys() == true.keys()
    for group, all_ms in found.items():
        for share, ms in zip(shares, all_ms, strict=True):
            reported = round(ms * 1000)
            exact = sorted(true[group])[ceil(Fraction(str(share)) * len(true[group])) - 1]
            assert exact <= reported <= max(exact * 2**0.5 + 1, books.ENDS[0]), (group, share)


@pytest.mark.promise(
    "jobs.md",
    "Derived tables that are computed day by day, beside the batches, are those of all streamed rows at once.",
)
def test_derived_tables_are_those_of_the_streamed_ones_at_once(ledger_root: Built) -> None:
    root = ledger_root.root
    for name in DERIVED:
        found = read(root, name)
        inputs = {
            each: pyarrow.Table.from_pylist(read(root, each), schema(TABLES[each]))
            for each in TABLES[name].derived_from
        }
        expected = derived.computed(name, inputs, ledger_root.definitions).to_pylist()
        assert found, name
        assert ordered(found) == ordered(expected), name
    (orders,) = query(
        root, "SELECT produced_total, mirrored_total, missing_records FROM mirror_check WHERE source_topic = 'orders'"
        " ORDER BY day DESC LIMIT 1",
    )[1]  # fmt: skip
    assert orders == (10_000, 9_993, 7)
    assert {row["state"] for row in read(root, "topics")} == {"used", "polled_only", "unused", "unknown"}
    sources = {row["topic_source"] for row in read(root, "groups")}
    assert sources == {"commit", "connection", "client", "shared_client", None}


@pytest.mark.promise(
    "queries.md", "The pages of answers show what each saved query and each table answers about the scripted load."
)
def test_the_committed_pages_are_what_the_tables_answer(ledger_root: Built) -> None:
    for name, text in examples.pages(ledger_root.root).items():
        assert (examples.DOCS / name).read_text() == text, "run: python -m tests.ledger.examples"


@pytest.mark.promise("tables.md", "`brokerside query` shows stored rows of one key merged, as the columns say.")
@pytest.mark.slow
def test_a_query_sees_the_rows_merged(ledger_root: Built) -> None:
    for table in STREAMED.values():
        names, found = query(ledger_root.root, f"SELECT * FROM {table.name}")
        assert names == [column.name for column in table.columns], table.name
        shown = [dict(zip(names, row, strict=True)) for row in found]
        assert ordered(shown) == ordered(read(ledger_root.root, table.name)), table.name
