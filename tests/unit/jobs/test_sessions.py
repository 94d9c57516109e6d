"""The tables ``clients``, ``connections`` and ``throttles``."""

from __future__ import annotations

import re
import zipfile
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from observers.event import RollupTopic
from proxy.local.jars import resolve
from spark_jobs.kafka_versions import LOWEST_VERSIONS, REMOVED
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
    partition,
    rollup,
    throttle,
)
from tests.spark.stored import Row
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


def test_throttles_of_another_limit_or_client_have_another_row() -> None:
    reported = [
        throttle(), throttle(action="drop"), throttle(scope="listener"), throttle(quota="connections"),
        throttle(scope="principal", principal="User:alice"), throttle(scope="principal", principal="User:bob"),
        throttle(client_ip="*"), throttle(listener="TLS"), throttle(ts_first=NOON + MINUTE, ts_last=NOON + MINUTE),
        throttle(ts_first=NOON + 12 * 60 * MINUTE, ts_last=NOON + 12 * 60 * MINUTE),
    ]  # fmt: skip
    rows = decoded("throttles", [encoded(*reported), encoded(throttle(), broker_id=2)])
    assert [row["count"] for row in rows] == [3] * 11
    assert sorted({row.day for row in rows}) == [date(2026, 9, 22), date(2026, 9, 23)]
