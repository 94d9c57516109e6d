"""The tables ``clients``, ``connections``, ``throttles`` and ``completeness``; and rows of several batches, of all."""

import re
import zipfile
from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from observers.cluster_events import CommittedPartition, EndOffset, EndOffsetsEvent, InventoryEvent, InventoryTopic
from observers.event import RollupTopic
from proxy.local.jars import resolve
from spark_jobs.events import MAX_SUM
from spark_jobs.kafka_versions import LOWEST_VERSIONS, REMOVED
from spark_jobs.schemas import STREAMED
from tests.spark.decoded import decoded
from tests.spark.envelopes import (
    FETCH,
    METADATA,
    MINUTE,
    NOON,
    PRODUCE,
    Event,
    connection,
    encoded,
    event,
    gap,
    group,
    of_kind,
    partition,
    rollup,
    status,
    throttle,
)
from tests.spark.stored import Row, merged
from tests.tools.generate_apis import REQUEST, definition

NOTHING_YET = {"cause": "", "duration_ms": 0, "requests": 0, "received_bytes": 0, "sent_bytes": 0}


def clients(*events: Event) -> list[Row]:
    return decoded("clients", [encoded(each, first_seq=number) for number, each in enumerate(events, 1)])


@pytest.mark.promise(
    "tables/clients.md", "`clients` lists each client with its software and the api versions that it uses."
)
def test_who_uses_what_and_since_when() -> None:
    kgo = {"client_software_name": "kgo", "client_software_version": "1.0"}
    found = clients(
        event(PRODUCE, partition("a"), partition("b"), ts_request=NOON + 5 * MINUTE, polled=("c",)),
        event(PRODUCE, outcome="connection_lost", ts_request=NOON + 2 * MINUTE - 1),
        event(PRODUCE, partition(error_code=29), ts_request=NOON + 9 * MINUTE, listener="TLS"),
        event(PRODUCE, api_version=3), event(PRODUCE, client_id=None),
        event(PRODUCE, ts_request=NOON - 24 * 60 * MINUTE), event(FETCH, **kgo),
        rollup(FETCH, RollupTopic("a", topic_requests=2), api_version=12, minute=NOON + MINUTE, **kgo),
        rollup(FETCH, RollupTopic("z", topic_requests=2), api_version=12, requests=0, minute=NOON + 8 * MINUTE, **kgo),
        rollup(FETCH),
    )  # fmt: skip
    assert {_about(row): (row.requests, row.first_seen, row.last_seen) for row in found} == {
        (22, "app", None, None, "Produce", 12): (3, _at(1), _at(9)),
        (22, "app", None, None, "Produce", 3): (1, _at(0), _at(0)),
        (22, None, None, None, "Produce", 12): (1, _at(0), _at(0)),
        (21, "app", None, None, "Produce", 12): (1, datetime(2026, 9, 21, 12), datetime(2026, 9, 21, 12)),
        (22, "app", "kgo", "1.0", "Fetch", 12): (4, _at(0), _at(1)),
        (22, "app", None, None, "Fetch", None): (3, _at(0), _at(0)),
    }


@pytest.mark.promise("queries.md", "`old-clients` names the clients whose requests newer brokers would refuse.")
def test_what_newer_brokers_refuse() -> None:
    said = {
        (PRODUCE, 2): "4.0", (PRODUCE, 3): None, (FETCH, 0): "4.0", (FETCH, 99): None, (METADATA, 0): None,
        (7, 3): "4.0", (78, 0): "4.1", (78, 1): None, (1234, 0): None, (PRODUCE, -1): None, (PRODUCE, -7): None,
    }  # fmt: skip
    reported = [
        replace(event(METADATA), api_key=key, api=f"{key}", api_version=version, client_id=f"{key} {version}")
        for key, version in said
    ]
    found = {row.client_id: row.refused_since for row in clients(*reported)}
    assert found == {f"{key} {version}": release for (key, version), release in said.items()}


@pytest.mark.kafka
def test_the_table_of_versions_is_what_kafka_says() -> None:
    """Of each request that an older client may still make: the lowest version left, and the release that raised it."""
    (older,) = [jar for jar in resolve("kafka-3.9.2", progress=False) if jar.name.startswith("kafka-clients-")]
    (newest,) = [jar for jar in resolve("kafka-4.4.0", progress=False) if jar.name.startswith("kafka-clients-")]
    before, now = _lowest(older), _lowest(newest)
    raised = {key: low for key, (low, _) in now.items() if low > before.get(key, (0, ""))[0]}
    ours = {key: low for lows in LOWEST_VERSIONS.values() for key, low in lows.items()}
    assert ours == raised
    assert {key: now[key][1] for key in raised} == {
        key: release for release, lows in LOWEST_VERSIONS.items() for key in lows
    }


def _lowest(jar: Path) -> dict[int, tuple[int, str]]:
    """By api key: the lowest version of requests, and the release that Kafka's own comment says it is from."""
    found = {}
    with zipfile.ZipFile(jar) as file:
        for match in filter(None, map(REQUEST.fullmatch, file.namelist())):
            message = definition(file, match[0])
            versions = message["validVersions"]
            low = REMOVED if versions == "none" else int(re.split(r"[-+]", versions)[0])
            said = re.findall(r"//[^\n]*removed in Apache Kafka (\d+\.\d+)", file.read(match[0]).decode())
            found[message["apiKey"]] = (low, said[-1] if said else "")
    return found


def _about(row: Row) -> tuple[object, ...]:
    assert (row.cluster_id, row.principal, row.client_ip) == ("cluster", "User:ANONYMOUS", "10.0.0.7")
    return (row.day.day, row.client_id, row.software_name, row.software_version, row.api, row.api_version)


def _at(minute: int) -> datetime:
    return datetime(2026, 9, 22, 12, minute)


def life(name: str, *, first_ts: int = NOON, **who: Any) -> list[Any]:
    """Three events: opened, logged in a second later, closed a minute after that."""
    stranger = {"principal": "User:ANONYMOUS", "principal_source": "unauthenticated", "sasl_mechanism": None}
    return [
        connection(connection_id=name, change="opened", ts=first_ts, **NOTHING_YET, **stranger),
        connection(connection_id=name, change="authenticated", ts=first_ts + 1_000_000, **NOTHING_YET, **who),
        connection(connection_id=name, ts=first_ts + MINUTE + 1_000_000, client_id="app", **who),
    ]


@pytest.mark.promise(
    "tables/connections.md", "A connection of a client has one row in `connections`, from its login to its end."
)
def test_the_life_of_a_connection_is_one_row() -> None:
    tls = {"tls_version": "TLSv1.3", "tls_cipher": "TLS_AES_256_GCM_SHA384", "tls_client_serial": "0AFE"}
    reported = life("c1", client_software_name="librdkafka", client_software_version="2.12", **tls)
    (row,) = decoded("connections", [encoded(*reported, throttle(), event(), first_seq=5)])
    assert row == {
        "day": date(2026, 9, 22), "cluster_id": "cluster", "broker_id": 1, "boot_id": "boot", "connection_id": "c1",
        "listener": "CLIENT", "client_ip": "10.0.0.7", "client_port": 40_000, "principal": "User:alice",
        "principal_source": "sasl", "refused_principal": None, "sasl_mechanism": "SCRAM-SHA-512", **tls,
        "client_id": "app", "software_name": "librdkafka", "software_version": "2.12",
        "opened_at": datetime(2026, 9, 22, 12), "authenticated_at": datetime(2026, 9, 22, 12, 0, 1),
        "closed_at": datetime(2026, 9, 22, 12, 1, 1), "authentications": 1, "authentication_failures": 0,
        "cause": "client", "duration_ms": 90_000, "requests": 7, "received_bytes": 5_000, "sent_bytes": 2**40,
        "last_seq": 7,
    }  # fmt: skip
    values = [encoded(*reported, boot_id="another"), encoded(*reported, broker_id=2), encoded(*reported)]
    assert len(decoded("connections", values)) == 3


@pytest.mark.promise("tables/connections.md", "What is not known of a connection, because it is still open, is NULL.")
def test_a_connection_that_is_open_has_no_end() -> None:
    (row,) = decoded("connections", [encoded(*life("c1")[:2])])
    assert (row.opened_at, row.authentications) == (datetime(2026, 9, 22, 12), 1)
    assert [row[name] for name in ("closed_at", "cause", "duration_ms", "requests", "sent_bytes", "client_id")] == (
        [None] * 6
    )


def test_whom_a_failed_login_named_is_not_who_it_is() -> None:
    claims = {"change": "authentication_failed", "principal_source": "unauthenticated", **NOTHING_YET}
    reported = [
        *life("c1")[:2], connection(principal="User:admin", **claims), connection(principal="User:root", **claims),
    ]  # fmt: skip
    (row,) = decoded("connections", [encoded(*reported)])
    assert (row.principal, row.principal_source, row.refused_principal) == ("User:alice", "sasl", "User:root")
    assert (row.authentications, row.authentication_failures) == (1, 2)


@pytest.mark.promise("tables/throttles.md", "`throttles` counts by minute which connections met which quota.")
def test_throttles_of_one_minute_address_and_limit_are_one_row() -> None:
    reported = [
        throttle(),
        throttle(count=4, limit=10, observed=30.25, delay_ms=0, ts_first=NOON + 5, ts_last=NOON + MINUTE + 5),
        event(),
        connection(),
    ]
    (row,) = decoded("throttles", [encoded(*reported)])
    assert row == {
        "day": date(2026, 9, 22), "minute": datetime(2026, 9, 22, 12), "cluster_id": "cluster", "broker_id": 1,
        "listener": "CLIENT", "client_ip": "10.0.0.7", "scope": "ip", "principal": None,
        "quota": "connection_creation_rate", "action": "hold", "count": 7, "quota_limit": 20, "observed": 30.25,
        "delay_ms": 750, "first_at": datetime(2026, 9, 22, 12), "last_at": datetime(2026, 9, 22, 12, 1, 0, 5),
    }  # fmt: skip
    others = [
        throttle(action="drop"), throttle(scope="listener"), throttle(quota="connections"), throttle(listener="TLS"),
        throttle(scope="principal", principal="User:a"), throttle(scope="principal", principal="User:b"),
    ]  # fmt: skip
    assert len(decoded("throttles", [encoded(throttle(), *others)])) == 1 + len(others)


def merged_rows(table: str, batches: Sequence[Sequence[bytes]]) -> list[Row]:
    stored = [row for batch in batches for row in decoded(table, batch)]
    return sorted(map(Row, merged(STREAMED[table], stored)), key=str)


def listed(topic: InventoryTopic, ts: int, part: int, parts: int) -> InventoryEvent:
    return InventoryEvent(seq=0, ts=ts, part=part, parts=parts, inventory=(topic,))


REQUESTS: list[Event] = [
    event(number % 2, *[partition(f"t{each}", bytes=number) for each in range(number % 4)], latency_us=number**3,
          max_wait_ms=2, ts_request=NOON + number * MINUTE // 10)
    for number in range(40)
]  # fmt: skip
CHANGES: list[Event] = [
    event(METADATA, operation="Create", error_code=number % 3, ts_request=NOON + number) for number in range(9)
]
OFFSETS = ((5, 2_000_000), (9, 1_000_000))
"""The later one is lower."""

CASES: dict[str, list[Event]] = {
    "traffic": [*REQUESTS, rollup()],
    "latency": [*REQUESTS, rollup(), rollup(METADATA, latencies=(), upstream_latencies=(0, 2), requests=0),
                event(METADATA, latency_us=60, upstream_us=64)],
    "clients": [*REQUESTS, rollup()],
    "changes": CHANGES,
    "connections": life("c1", first_ts=NOON + 12 * 60 * MINUTE - 30_000_000),  # over midnight
    "throttles": [throttle(), throttle(count=1, observed=50, ts_last=NOON + 900_000)],
    "completeness": [event(), status(), gap(1, 1), status(ts=NOON + 30_000_000, queued=9, seen=99), gap(2, 9)],
    "group_members": [group(commits=2), group(requests=0, ts_last=NOON + MINUTE, generation_id=4)],
    "committed_offsets": [group(committed=(CommittedPartition("a", 0, end, NOON + at),)) for end, at in OFFSETS],
    "end_offsets": [EndOffsetsEvent(0, NOON, (EndOffset("a", 0, end, NOON + at),)) for end, at in OFFSETS],
    "inventory": [listed(InventoryTopic("orders", "id-1", 3, True), NOON, 1, 1),
                  listed(InventoryTopic("orders", "id-2", 2), NOON + 1, 3, 4)],
}  # fmt: skip


@pytest.mark.promise("tables.md", "Stored rows of several batches merge into the rows of all their events.")
def test_rows_of_several_batches_become_those_of_one() -> None:
    for table, events in CASES.items():
        values = [encoded(one, first_seq=number, schema_level=2) for number, one in enumerate(events, 1)]
        whole = merged_rows(table, [values])
        assert whole, table
        middle = len(values) // 2
        for batches in ((values[:middle], values[middle:]), (values[middle:], values[:middle]), [[v] for v in values]):
            assert merged_rows(table, batches) == whole, table


@pytest.mark.promise("tables/inventory.md", "Of several lists of one hour the values of the last one hold.")
def test_the_later_list_holds_and_a_connection_over_midnight_is_one() -> None:
    values = [encoded(one, first_seq=number) for number, one in enumerate(CASES["inventory"], 1)]
    (row,) = merged_rows("inventory", [values[1:], values[:1]])
    assert (row.topic_id, row.internal, row.partitions, row.part, row.parts) == ("id-2", False, 3, 3, 4)
    at_once = sorted(decoded("connections", [encoded(*CASES["connections"])]), key=lambda row: row.day)
    assert [(row.day.day, row.opened_at is None, row.authentications, row.closed_at) for row in at_once] == [
        (22, False, 1, None),
        (23, True, 0, datetime(2026, 9, 23, 0, 0, 31)),
    ], "each day has what was reported on it, so it can be computed again by itself"
    (row,) = merged_rows("connections", [[encoded(*CASES["connections"])]])
    assert (row.day, row.opened_at, row.authentications) == (date(2026, 9, 23), datetime(2026, 9, 22, 23, 59, 30), 1)


@pytest.mark.promise("tables/completeness.md", "A record counts in `completeness` in the minute in which it was sent.")
def test_records_count_in_the_minute_in_which_they_were_sent() -> None:
    later = encoded(event(), first_seq=7, sent_at=NOON + MINUTE - 1)
    (row,) = decoded("completeness", [encoded(event(), event(), event(), first_seq=4), later, b"poison"])
    unset = ("reason", "hidden_by", "lost_first_seq", "lost_last_seq", "last_status", "started_at", "seen", "emitted",
             "delivered", "hidden", "partly_hidden", "dropped", "waiting", "ended")  # fmt: skip
    assert row == {
        "day": date(2026, 9, 22), "minute": datetime(2026, 9, 22, 12), "cluster_id": "cluster", "broker_id": 1,
        "boot_id": "boot", "envelopes": 2, "events": 4, "first_seq": 4, "last_seq": 7, "conflicts": 0, "lost": 0,
        "statuses": 0, "clock_step_ms": 0, **dict.fromkeys(unset), "sidecar_version": "0.1.0",
    }  # fmt: skip


@pytest.mark.promise(
    "queries.md",
    "`hidden` has a row for each principal and topic that configuration hides, with what lacks it in part.",
)
def test_what_configuration_hides_has_rows_of_its_own() -> None:
    """Of each name the highest count holds; what is hidden in part stands beside it."""
    counts = {"principal User:probe": 3, "topic secret": 1}
    values = [encoded(status(hidden=2, hidden_by={"topic secret": 2}), status(hidden=9, hidden_by=counts))]
    rows = [row for row in decoded("completeness", values) if row.statuses or row.hidden is not None]
    assert {row.hidden_by: row.hidden for row in rows} == {None: 9, "principal User:probe": 3, "topic secret": 2}
    assert sum(row.statuses for row in rows) == 2

    reported = status(
        hidden=5, hidden_by={"principal User:probe": 3, "topic secret": 2}, partly_hidden=8,
        partly_hidden_by={"topic secret": 7, "topic audit": 4},
    )  # fmt: skip
    earlier = status(partly_hidden=1, partly_hidden_by={"topic audit": 1})
    rows = [row for row in decoded("completeness", [encoded(earlier, reported)]) if row.statuses or row.hidden_by]
    assert {row.hidden_by: (row.hidden, row.partly_hidden) for row in rows} == {
        None: (5, 8), "principal User:probe": (3, None), "topic secret": (2, 7), "topic audit": (None, 4),
    }  # fmt: skip


def test_a_forged_status_hides_a_bounded_number_of_names() -> None:
    counts = {"n" * 400 + str(number): -number for number in range(200)}
    reported = [encoded(status(hidden_by=counts, partly_hidden_by=counts))]
    rows = decoded("completeness", reported)
    assert {(row.hidden_by, row.hidden, row.partly_hidden) for row in rows if row.hidden_by} == {("n" * 300, 0, 0)}


@pytest.mark.promise("tables/completeness.md", "Lost events are counted with their reason, on the boot that lost them.")
def test_gaps_are_of_the_run_that_lost_the_events() -> None:
    reported = [
        gap(3, 5, lost_boot_id="boot"), gap(9, 9, lost_boot_id="boot"),
        gap(10, 13, lost_boot_id="boot", reason="failed"), gap(100, 102, reason="killed"),
    ]  # fmt: skip
    rows = [row for row in decoded("completeness", [encoded(*reported, first_seq=20)]) if row.reason is not None]
    lost = {(row.boot_id, row.reason): (row.lost, row.lost_first_seq, row.lost_last_seq) for row in rows}
    assert lost == {
        ("boot", "queue_full"): (4, 3, 9), ("boot", "failed"): (4, 10, 13), ("dead", "killed"): (3, 100, 102),
    }  # fmt: skip
    assert {(row.events, row.envelopes, row.statuses, row.minute) for row in rows} == {
        (0, 0, 0, datetime(2026, 9, 22, 12))
    }


@pytest.mark.promise(
    "tables/completeness.md", "Numbers of events that neither arrived nor are reported as lost are missing."
)
def test_what_is_neither_there_nor_lost_is_missing() -> None:
    """20 numbers: 1 to 4 arrived, 5 to 8 are reported as lost, 9 to 17 are missing, 18 to 20 arrived."""
    values = [
        encoded(*[event()] * 4),
        encoded(gap(5, 8, lost_boot_id="boot"), event(), status(), first_seq=18, sent_at=NOON + MINUTE),
    ]
    rows = decoded("completeness", values)
    assert sum(row.events for row in rows) == 7
    assert sum(row.lost for row in rows) == 4
    assert max(row.last_seq for row in rows if row.last_seq) == 20


def test_numbers_that_cannot_be_do_not_end_the_job() -> None:
    strange = of_kind(gap(1, 2**63 - 1), "reason", "strange")
    dropped = of_kind(status(clock_step_ms=-(2**63)), "dropped", {"a": 2**63 - 1, "b": None})
    values = [strange, strange, of_kind(gap(5, 1), "reason", "backwards"), dropped]
    rows = {row.reason: row for row in decoded("completeness", values)}
    assert (rows["strange"].lost, rows["backwards"].lost) == (2 * MAX_SUM, 0)
    assert (rows[None].clock_step_ms, rows[None].dropped) == (MAX_SUM, MAX_SUM)
