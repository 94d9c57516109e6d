"""Questions that are asked often: what they answer over rows that a test wrote, and what they need."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from spark_jobs import query
from spark_jobs.errors import QueryError
from spark_jobs.query import TableReader
from spark_jobs.saved_queries import PARAMETERS, SAVED_QUERIES, run_saved_query
from spark_jobs.schemas import TABLES
from tests.ledger.tables import write_tables
from tests.spark.stored import write

PAGE = Path(__file__).parents[3] / "docs" / "queries.md"
AT = datetime(2026, 9, 22, 12, tzinfo=UTC)
DAY = AT.date()
LONG_AGO = datetime(2025, 1, 1, tzinfo=UTC)
WHERE = {"day": DAY, "cluster_id": "c", "broker_id": 1}
SECOND = timedelta(seconds=1)


def answer(root: Path, name: str, **given: Any) -> list[dict[str, Any]]:
    with query.open_tables(root) as reader:
        columns, rows = run_saved_query(reader, name, given)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def picked(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TableReader]:
    root = tmp_path_factory.mktemp("company")
    write_tables(root)
    with query.open_tables(root) as reader:
        yield reader


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TableReader]:
    root = tmp_path_factory.mktemp("empty")
    for name in TABLES:
        write(root, name)
    with query.open_tables(root) as reader:
        yield reader


@pytest.mark.promise(
    "queries.md", "Each saved query is answered from its tables, within `--limit` rows, also where they are empty."
)
def test_every_question_has_an_answer(company: TableReader, empty: TableReader) -> None:
    for name, question in SAVED_QUERIES.items():
        given = {"topic": "clicks"} if "topic" in question.parameters else {}
        columns, rows = run_saved_query(company, name, given)
        assert rows, name
        assert len(set(columns)) == len(columns), name
        assert len(run_saved_query(company, name, given | {"limit": 1})[1]) == 1, name
        assert run_saved_query(empty, name, given) == (columns, []), name
        assert question.meaning.endswith("?"), name
        assert {"limit", *question.parameters} <= set(PARAMETERS), name


def test_the_page_lists_every_question() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `") and line.count("|") == 4]
    listed = [tuple(part.strip() for part in row.strip("|").split("|")) for row in rows if "brokerside" not in row]
    assert listed == [
        (f"`{q.name}`", q.meaning, ", ".join(f"`{table}`" for table in q.tables)) for q in SAVED_QUERIES.values()
    ]


@pytest.mark.promise(
    "queries.md", "For a table that does not exist yet, the error of a saved query says what creates it."
)
def test_what_cannot_be_asked_is_said(company: TableReader, tmp_path: Path) -> None:
    for name, given, message in (
        ("nothing", {}, "there is no saved query nothing; the saved queries are: top-talkers, "),
        ("chargebak", {}, "there is no saved query chargebak; did you mean chargeback"),
        ("topic-users", {}, "the saved query topic-users needs --topic"),
        ("connections", {"since": DAY}, "the saved query connections has no parameter since; its parameters"),
    ):
        with pytest.raises(QueryError, match=message):
            run_saved_query(company, name, given)
    write(tmp_path, "inventory")
    for name, question in SAVED_QUERIES.items():
        missing = f"the saved query {name} cannot be run: there is no table {question.tables[0]}: `bro"
        with pytest.raises(QueryError, match=missing):
            answer(tmp_path, name)


@pytest.mark.promise("queries.md", "`top-talkers` adds both directions of the days that were asked for.")
def test_top_talkers_count_both_directions_of_the_days_asked_for(tmp_path: Path) -> None:
    a, b = {"principal": "User:a", "client_id": "x"}, {"principal": "User:b"}
    write(
        tmp_path, "traffic", {**WHERE, **a, "api": "Produce", "requests": 2, "errors": 1},
        {**WHERE, **a, "api": "Produce", "topic": "t", "bytes": 10, "records": 3},
        {**WHERE, **a, "api": "Fetch", "topic": "t", "bytes": 5, "records": 1},
        {**WHERE, **b, "api": "ShareFetch", "topic": "t", "bytes": 16, "records": 9},
        {**WHERE, **b, "day": DAY - timedelta(1), "api": "Fetch", "topic": "t", "bytes": 99},
        {**WHERE, "principal": "User:c", "api": "Produce", "topic": "t", "unconfirmed_bytes": 14},
    )  # fmt: skip
    rows = answer(tmp_path, "top-talkers", since=DAY, until=DAY)
    columns = ("principal", "client_id", "produced_bytes", "consumed_bytes", "unconfirmed_bytes", "requests", "errors")
    assert picked(rows, *columns) == [
        ("User:b", None, 0, 16, 0, 0, 0), ("User:a", "x", 10, 5, 0, 2, 1), ("User:c", None, 0, 0, 14, 0, 0),
    ]  # fmt: skip
    assert picked(answer(tmp_path, "top-talkers", limit=1), "principal", "consumed_bytes") == [("User:b", 115)]
    assert picked(answer(tmp_path, "errors"), "principal", "requests", "errors", "error_ratio", "topics") == [
        ("User:a", 2, 1, 0.5, None)
    ]


@pytest.mark.promise(
    "queries.md", "`throttled` names the principals whose connections were open at the address when it met the limit."
)
def test_principals_behind_a_throttled_address_are_those_that_were_connected_then(tmp_path: Path) -> None:
    met = {**WHERE, "client_ip": "10.0.0.7", "scope": "ip", "quota": "connections", "action": "drop", "count": 4}
    write(tmp_path, "throttles", {**met, "first_at": AT, "last_at": AT + SECOND, "delay_ms": 0, "quota_limit": 2})
    connection = {**WHERE, "boot_id": "b", "client_ip": "10.0.0.7"}
    spans = {
        "before": (AT - 9 * SECOND, AT - 8 * SECOND), "then": (AT - SECOND, AT + SECOND), "open": (AT - SECOND, None),
        "after": (AT + 3 * SECOND, None),
    }  # fmt: skip
    for number, (who, (opened, closed)) in enumerate(spans.items()):
        row = {"connection_id": str(number), "principal": f"User:{who}", "opened_at": opened, "closed_at": closed}
        row["client_id"] = f"app-{who}" if closed else None  # it is known once the connection is closed
        write(tmp_path, "connections", {**connection, **row, "last_seq": number})
    slow = {**WHERE, "minute": AT, "client_ip": "10.0.0.8", "principal": "User:p"}
    for client_id, throttle_ms in (("a", 70), ("b", 30)):
        write(tmp_path, "traffic", {**slow, "client_id": client_id, "throttle_ms": throttle_ms})
    columns = ("client_ip", "principals", "client_ids", "why", "times", "total_ms")
    assert picked(answer(tmp_path, "throttled"), *columns) == [
        ("10.0.0.7", ["User:open", "User:then"], ["app-then"], "connections of ip", 4, None),
        ("10.0.0.8", ["User:p"], ["a"], "quota of the client, by Kafka", None, 70),
        ("10.0.0.8", ["User:p"], ["b"], "quota of the client, by Kafka", None, 30),
    ]


@pytest.mark.promise(
    "queries.md", "`connections` lists the clients that use the address and principal of open connections."
)
def test_open_connections_have_the_clients_that_come_from_there_as_that_principal(tmp_path: Path) -> None:
    reported = {**WHERE, "boot_id": "b", "minute": AT, "statuses": 1, "last_status": AT, "ended": False}
    write(tmp_path, "completeness", reported)
    late = AT + 30 * SECOND
    who = {"client_ip": "10.0.0.7", "principal": "User:a"}
    for number, principal in enumerate(("User:a", "User:a", "User:b")):
        row = {**WHERE, **who, "boot_id": "b", "connection_id": str(number), "principal": principal, "opened_at": late}
        write(tmp_path, "connections", {**row, "last_seq": 1})
    client = {"day": DAY, "cluster_id": "c", **who, "api": "Fetch", "last_seen": AT, "requests": 1}
    java = {"software_name": "java", "software_version": "4.1.0"}
    write(
        tmp_path, "clients", {**client, "client_id": "x", **java}, {**client, "client_id": "y", **java},
        {**client, "client_id": "gone", **java, "last_seen": AT - 60 * SECOND},
        {**client, "client_id": "elsewhere", "client_ip": "10.0.0.8"},
        {**client, "client_id": "other cluster", "cluster_id": "d"},
    )  # fmt: skip
    assert picked(answer(tmp_path, "connections"), "principal", "connections", "client_ids", "software") == [
        ("User:a", 2, ["x", "y"], ["java 4.1.0"]),
        ("User:b", 1, None, None),
    ]


@pytest.mark.promise("slo.md", "Fewer than 100 requests have neither a budget that is left nor an alert.")
@pytest.mark.promise("queries.md", "An objective without a `displayName` is named by its target in `budget-left`.")
def test_objectives_are_those_of_the_newest_day_called_by_what_they_promise(tmp_path: Path) -> None:
    row = {"day": DAY, "cluster_id": "c", "slo": "s", "objective_ratio": 0.999, "attainment": 1.0}
    budgets = "period_error_budget_remaining_ratio"
    for days, left in ((1, 0.1), (0, 0.2)):
        day = {"day": DAY - timedelta(days)}
        write(
            tmp_path, "slo", {**row, **day, "objective": "1", "threshold_ms": 50.0, budgets: left},
            {**row, **day, "objective": "2", "threshold_ms": 0.5, "objective_ratio": 0.9, budgets: left + 0.1},
            {**row, **day, "objective": "3", budgets: left + 0.2},
            {**row, **day, "objective": "fast", "threshold_ms": 50.0, budgets: left + 0.3},
        )  # fmt: skip
    assert picked(answer(tmp_path, "budget-left"), "objective", "budget_left") == [
        ("99.9 % in 50 ms", 0.2), ("90 % in 0.5 ms", pytest.approx(0.3)), ("99.9 %", 0.4), ("fast", 0.5),
    ]  # fmt: skip
    row = {"slo": "s", "objective": "o", "cluster_id": "c"}
    write(
        tmp_path / "newest", "slo", {**row, "day": DAY - timedelta(1), "topic": "a", budgets: -1.0, "page_quick": True},
        {**row, "day": DAY, "topic": "a", budgets: 0.5, "ticket_slow": True},
        {**row, "day": DAY, "topic": "b", budgets: 0.25, "page_slow": True, "ticket_slow": True},
        {**row, "day": DAY, "topic": "c", budgets: None},
        {**row, "day": DAY, "topic": "d", budgets: -99.0, "page_quick": True, "total": 99},
        {**row, "day": DAY, "topic": "e", budgets: -9.0, "page_quick": True, "total": 100},
    )  # fmt: skip
    assert picked(answer(tmp_path / "newest", "budget-left"), "judged", "budget_left", "alert") == [
        ("e", -9.0, "page"), ("b", 0.25, "page"), ("a", 0.5, "ticket"), ("c", None, None), ("d", None, None),
    ]  # fmt: skip


@pytest.mark.promise("queries.md", "Connections of a sidecar that was killed are not open in `connections`.")
def test_connections_of_dead_sidecars_are_not_open(tmp_path: Path) -> None:
    status = {**WHERE, "minute": AT, "statuses": 1}
    write(
        tmp_path, "completeness", {**status, "boot_id": "alive", "last_status": AT, "ended": False},
        {**status, "boot_id": "ended", "last_status": AT, "ended": True},
        {**status, "boot_id": "killed", "last_status": AT - 61 * SECOND, "ended": False},
    )  # fmt: skip
    for number, boot in enumerate(("alive", "alive", "alive", "ended", "killed")):
        row = {"boot_id": boot, "connection_id": str(number), "opened_at": AT, "client_ip": "10.0.0.7"}
        write(tmp_path, "connections", {**WHERE, **row, "closed_at": AT if number == 2 else None, "last_seq": 1})
    write(tmp_path, "clients")
    assert picked(answer(tmp_path, "connections"), "client_ip", "connections", "oldest") == [("10.0.0.7", 2, AT)]
    churn = picked(answer(tmp_path, "churn"), "opened", "closed", "most_in_a_second")
    assert churn == [(5, 1, 5)]


def test_a_cluster_whose_audit_is_behind_has_connections_all_the_same(tmp_path: Path) -> None:
    for cluster, at in (("c", AT), ("behind", AT - timedelta(hours=1))):
        status = {**WHERE, "cluster_id": cluster, "minute": at, "statuses": 1, "last_status": at, "ended": False}
        silent = {**status, "boot_id": "silent", "last_status": at - 61 * SECOND}
        write(tmp_path, "completeness", {**status, "boot_id": "b"}, silent)
        row = {
            **WHERE, "cluster_id": cluster, "opened_at": at, "client_ip": cluster, "connection_id": "1", "last_seq": 1,
        }  # fmt: skip
        write(tmp_path, "connections", {**row, "boot_id": "b"}, {**row, "boot_id": "silent"})
    write(tmp_path, "clients")
    assert picked(answer(tmp_path, "connections"), "client_ip", "connections") == [("behind", 1), ("c", 1)]


@pytest.mark.promise("queries.md", "`who-changed` says who changed what, and how.")
def test_who_changed_what_says_how(tmp_path: Path) -> None:
    row = {**WHERE, "last_at": AT, "principal": "User:op", "result": "success", "validate_only": False}
    of = {"parent_type": "topic", "parent_name": "orders"}
    user = {**row, "resource_type": "user", "resource_name": "User:eve", **of, "acl_permission_type": "ALLOW"}
    write(
        tmp_path, "changes", {**row, "resource_type": "topic", "resource_name": "orders"},
        {**row, "resource_type": "config", "resource_name": "retention.ms", **of, "op_type": "DELETE"},
        {**row, "resource_type": "user", "resource_name": "bob", "op_type": "SET", "mechanism": "SCRAM-SHA-256"},
        {**user, "acl_operation": "Read", "acl_host": "*", "acl_pattern_type": "LITERAL"},
        {**user, "acl_operation": "All", "acl_host": "::1", "acl_pattern_type": "PREFIXED", "op_type": "DELETE"},
        {**user, "resource_name": None, "parent_name": None, "acl_operation": "Any", "acl_pattern_type": "ANY"},
    )  # fmt: skip
    assert picked(answer(tmp_path, "who-changed"), "resource", "detail") == [
        ("config retention.ms of topic orders", "DELETE"), ("topic orders", None),
        ("user User:eve of topic orders", "ALLOW Read from * (LITERAL)"),
        ("user User:eve of topic orders", "DELETE ALLOW All from ::1 (PREFIXED)"), ("user bob", "SET SCRAM-SHA-256"),
        ("user of topic", "ALLOW Any from any host (ANY)"),
    ]  # fmt: skip


@pytest.mark.promise(
    "queries.md", "`completeness` and `lost-events` distinguish lost events from those that never arrived."
)
def test_what_is_lost_and_what_is_missing_are_distinguished(tmp_path: Path) -> None:
    greatest = {**WHERE, "minute": AT, "events": 1, "first_seq": 2**63 - 1, "last_seq": 2**63 - 1}
    write(tmp_path / "greatest", "completeness", {**greatest, "boot_id": "1"}, {**greatest, "boot_id": "2"})
    assert picked(answer(tmp_path / "greatest", "completeness"), "events", "missing") == [(2, 2**63 - 1)]

    run = {**WHERE, "minute": AT}
    write(
        tmp_path, "completeness", {**run, "boot_id": "1", "events": 90, "first_seq": 1, "last_seq": 100},
        {**run, "boot_id": "1", "reason": "spool_full", "lost": 7, "lost_first_seq": 20, "lost_last_seq": 26},
        {**run, "boot_id": "2", "events": 50, "first_seq": 1, "last_seq": 50},
        {**run, "boot_id": "3", "broker_id": 2, "events": 5, "first_seq": 1, "last_seq": 5},
        {**run, "boot_id": "3", "broker_id": 2, "reason": "killed", "lost": 2, "lost_first_seq": 6, "lost_last_seq": 7},
        {
            **run, "boot_id": "old", "broker_id": 3, "events": 8, "first_seq": 901, "last_seq": 909,
            "started_at": LONG_AGO,
        },
        {**run, "boot_id": "twice", "broker_id": 4, "events": 14, "first_seq": 1, "last_seq": 9},
        {**run, "boot_id": "forged", "broker_id": 5, "events": 9, "first_seq": 1, "last_seq": 9, "conflicts": 2},
    )  # fmt: skip
    columns = ("broker_id", "runs", "events", "lost", "missing", "duplicates", "conflicts", "complete", "reasons")
    assert picked(answer(tmp_path, "completeness"), *columns) == [
        (5, 1, 9, 0, 0, 0, 2, 1.0, None), (1, 2, 140, 7, 3, 0, 0, round(140 / 150, 6), ["spool_full"]),
        (3, 1, 8, 0, 1, 0, 0, round(8 / 9, 6), None), (4, 1, 14, 0, 0, 5, 0, 1.0, None),
        (2, 1, 5, 2, 0, 0, 0, round(5 / 7, 6), ["killed"]),
    ]  # fmt: skip
    assert picked(answer(tmp_path, "lost-events"), "boot_id", "reason", "events", "first_seq", "last_seq") == [
        ("1", "spool_full", 7, 20, 26), ("1", "never arrived", 3, None, None), ("3", "killed", 2, 6, 7),
        ("old", "never arrived", 1, None, None),
    ]  # fmt: skip


@pytest.mark.promise("queries.md", "`stale-sidecars` names the sidecars that have not been heard of for a minute.")
def test_a_sidecar_is_stale_after_a_minute(tmp_path: Path) -> None:
    for broker, ago in enumerate((60, 61, 7200)):
        reported = AT - ago * SECOND
        row = {
            **WHERE, "broker_id": broker, "minute": AT, "boot_id": "b", "last_status": reported, "ended": broker == 2,
            "statuses": 1,
        }  # fmt: skip
        write(tmp_path, "completeness", row)
    rows = answer(tmp_path, "stale-sidecars", at=AT)
    assert picked(rows, "broker_id", "silent_seconds", "ended") == [(2, 7200, True), (1, 61, False)]


@pytest.mark.promise("queries.md", "`chargeback` adds the cost of each team by month.")
def test_costs_are_added_to_the_cent_and_shares_by_month(tmp_path: Path) -> None:
    charge = {"BillingCurrency": "EUR", "SkuMeter": "cross_zone_gb"}
    august = date(2026, 8, 31)
    for day, team, cost in (
        (DAY, "web", "0.1000000001"), (DAY, "web", "0.2"), (DAY, "shop", "0.1"), (august, "web", "9"),
    ):  # fmt: skip
        write(tmp_path, "cost", {**charge, "day": day, "x_Team": team, "BilledCost": Decimal(cost)})
    assert picked(answer(tmp_path, "chargeback"), "month", "team", "cost", "share") == [
        ("2026-09", "web", Decimal("0.3000000001"), 0.75), ("2026-09", "shop", Decimal("0.1"), 0.25),
        ("2026-08", "web", Decimal(9), 1.0),
    ]  # fmt: skip
    crossed = picked(answer(tmp_path, "cross-zone", since=DAY), "team", "cost")
    assert crossed == [("web", Decimal("0.3000000001")), ("shop", Decimal("0.1"))]


@pytest.mark.promise("queries.md", "`unused-topics` lists unused topics before those of which not everything was seen.")
def test_unused_topics_come_before_those_of_which_nobody_can_report(tmp_path: Path) -> None:
    for topic, state, more in (
        ("u", "used", {}), ("n", "unknown", {}), ("p", "polled_only", {}), ("x", "unused", {}),
        ("gone", "unused", {"present": False}), ("__c", "unused", {"internal": True}),
    ):  # fmt: skip
        row = {"day": DAY, "cluster_id": "c", "topic": topic, "state": state, "present": True, **more}
        write(tmp_path, "topics", row)
    assert picked(answer(tmp_path, "unused-topics"), "topic") == [("x",), ("p",), ("n",)]
