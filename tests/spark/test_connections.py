from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.schemas import CONNECTIONS
from spark_jobs.spark_types import table_schema
from tests.spark.envelopes import MINUTE, NOON, connection, encoded, event, throttle
from tests.spark.merge import merge_rows

pytestmark = pytest.mark.spark

Decoded = Callable[..., DataFrame]

NOTHING_YET = {"cause": "", "duration_ms": 0, "requests": 0, "received_bytes": 0, "sent_bytes": 0}


def life(name: str, *, first_ts: int = NOON, **who: Any) -> list[Any]:
    """Three events: opened, logged in a second later, closed a minute after that."""
    stranger = {"principal": "User:ANONYMOUS", "principal_source": "unauthenticated", "sasl_mechanism": None}
    return [
        connection(connection_id=name, change="opened", ts=first_ts, **NOTHING_YET, **stranger),
        connection(connection_id=name, change="authenticated", ts=first_ts + 1_000_000, **NOTHING_YET, **who),
        connection(connection_id=name, ts=first_ts + MINUTE + 1_000_000, client_id="app", **who),
    ]


def test_the_columns_are_those_of_the_schema(decoded: Decoded) -> None:
    made = decoded("connections", []).schema
    assert [(field.name, field.dataType) for field in made] == [
        (field.name, field.dataType) for field in table_schema(CONNECTIONS)
    ]


def test_a_life_is_one_row(decoded: Decoded) -> None:
    tls = {"tls_version": "TLSv1.3", "tls_cipher": "TLS_AES_256_GCM_SHA384", "tls_client_serial": "0AFE"}
    reported = life("c1", client_software_name="librdkafka", client_software_version="2.12", **tls)
    (row,) = decoded("connections", [encoded(*reported, throttle(), event(), first_seq=5)]).collect()
    assert row.asDict() == {
        "day": date(2026, 9, 22),
        "cluster_id": "cluster",
        "broker_id": 1,
        "boot_id": "boot",
        "connection_id": "c1",
        "listener": "CLIENT",
        "client_ip": "10.0.0.7",
        "client_port": 40_000,
        "principal": "User:alice",
        "principal_source": "sasl",
        "refused_principal": None,
        "sasl_mechanism": "SCRAM-SHA-512",
        **tls,
        "client_id": "app",
        "software_name": "librdkafka",
        "software_version": "2.12",
        "opened_at": datetime(2026, 9, 22, 12),
        "authenticated_at": datetime(2026, 9, 22, 12, 0, 1),
        "closed_at": datetime(2026, 9, 22, 12, 1, 1),
        "authentications": 1,
        "authentication_failures": 0,
        "cause": "client",
        "duration_ms": 90_000,
        "requests": 7,
        "received_bytes": 5_000,
        "sent_bytes": 2**40,
        "last_seq": 7,
    }


def test_one_that_is_open_has_no_end(decoded: Decoded) -> None:
    (row,) = decoded("connections", [encoded(*life("c1")[:2])]).collect()
    assert (row.opened_at, row.authentications) == (datetime(2026, 9, 22, 12), 1)
    assert [row[name] for name in ("closed_at", "cause", "duration_ms", "requests", "sent_bytes", "client_id")] == (
        [None] * 6
    )


def test_whom_a_failed_login_named_is_not_who_it_is(decoded: Decoded) -> None:
    claims = {"change": "authentication_failed", "principal_source": "unauthenticated", **NOTHING_YET}
    reported = [
        *life("c1")[:2],
        connection(principal="User:admin", **claims),
        connection(principal="User:root", **claims),
    ]
    (row,) = decoded("connections", [encoded(*reported)]).collect()
    assert (row.principal, row.principal_source, row.refused_principal) == ("User:alice", "sasl", "User:root")
    assert (row.authentications, row.authentication_failures) == (1, 2)


def test_runs_and_brokers_have_connections_of_their_own(decoded: Decoded) -> None:
    values = [
        encoded(*life("c1"), *life("c2")),
        encoded(*life("c1"), boot_id="another"),
        encoded(*life("c1"), broker_id=2),
        encoded(*life("c1"), cluster_id="west"),
    ]
    assert decoded("connections", values).count() == 5


def test_partial_rows_of_several_batches_become_the_same_row(spark: SparkSession, decoded: Decoded) -> None:
    """In any order, and over midnight; each day has what was reported on it, so it can be computed again by itself."""
    reported = life("c1", first_ts=NOON + 12 * 60 * MINUTE - 30_000_000)
    at_once = decoded("connections", [encoded(*reported)]).orderBy("day").collect()
    assert [(row.day.day, row.opened_at is None, row.authentications, row.closed_at) for row in at_once] == [
        (22, False, 1, None),
        (23, True, 0, datetime(2026, 9, 23, 0, 0, 31)),
    ]
    opened, ended = [encoded(*reported[:1])], [encoded(*reported[1:], first_seq=2)]
    parts = decoded("connections", ended).unionByName(decoded("connections", opened)).collect()
    assert sorted(row.day.day for row in parts) == [22, 22, 23]
    found = [
        merge_rows(spark.createDataFrame(stored, table_schema(CONNECTIONS)), CONNECTIONS).collect()
        for stored in (parts, at_once)
    ]
    assert found[0] == found[1]
    ((row,), _) = found
    assert (row.day, row.opened_at, row.authentications) == (date(2026, 9, 23), datetime(2026, 9, 22, 23, 59, 30), 1)
