from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from msgspec.structs import replace
from pyspark.sql import DataFrame, Row

from observers.event import RollupTopic
from proxy.local.jars import resolve
from spark_jobs.kafka_versions import LOWEST_VERSIONS, REMOVED
from spark_jobs.schemas import CLIENTS
from spark_jobs.spark_types import table_schema
from tests.spark.envelopes import FETCH, METADATA, MINUTE, NOON, PRODUCE, Event, encoded, event, partition, rollup
from tests.tools.generate_apis import REQUEST, definition

pytestmark = pytest.mark.spark

Decoded = Callable[..., DataFrame]


def table(decoded: Decoded, *events: Event) -> DataFrame:
    values = [encoded(each, first_seq=number) for number, each in enumerate(events, 1)]
    return decoded("clients", values)


def test_who_uses_what_and_since_when(decoded: Decoded) -> None:
    kgo = {"client_software_name": "kgo", "client_software_version": "1.0"}
    made = table(
        decoded,
        event(PRODUCE, partition("a"), partition("b"), ts_request=NOON + 5 * MINUTE, polled=("c",)),
        event(PRODUCE, outcome="connection_lost", ts_request=NOON + 2 * MINUTE - 1),
        event(PRODUCE, partition(error_code=29), ts_request=NOON + 9 * MINUTE, listener="TLS"),
        event(PRODUCE, api_version=3),
        event(PRODUCE, client_id=None),
        event(PRODUCE, ts_request=NOON - 24 * 60 * MINUTE),
        event(FETCH, **kgo),
        rollup(FETCH, RollupTopic("a", topic_requests=2), api_version=12, minute=NOON + MINUTE, **kgo),
        rollup(FETCH, RollupTopic("z", topic_requests=2), api_version=12, requests=0, minute=NOON + 8 * MINUTE, **kgo),
        rollup(FETCH),
    )
    assert [(field.name, field.dataType) for field in made.schema] == [
        (field.name, field.dataType) for field in table_schema(CLIENTS)
    ]
    assert {_about(row): (row.requests, row.first_seen, row.last_seen) for row in made.collect()} == {
        (22, "app", None, None, "Produce", 12): (3, _at(1), _at(9)),
        (22, "app", None, None, "Produce", 3): (1, _at(0), _at(0)),
        (22, None, None, None, "Produce", 12): (1, _at(0), _at(0)),
        (21, "app", None, None, "Produce", 12): (1, datetime(2026, 9, 21, 12), datetime(2026, 9, 21, 12)),
        (22, "app", "kgo", "1.0", "Fetch", 12): (4, _at(0), _at(1)),
        (22, "app", None, None, "Fetch", None): (3, _at(0), _at(0)),
    }


def test_what_newer_brokers_refuse(decoded: Decoded) -> None:
    said = {
        (PRODUCE, 2): "4.0",
        (PRODUCE, 3): None,
        (FETCH, 0): "4.0",
        (FETCH, 99): None,
        (METADATA, 0): None,
        (7, 3): "4.0",
        (78, 0): "4.1",
        (78, 1): None,
        (1234, 0): None,
        (PRODUCE, -1): None,
        (PRODUCE, -7): None,
    }
    reported = [
        replace(event(METADATA), api_key=key, api=f"{key}", api_version=version, client_id=f"{key} {version}")
        for key, version in said
    ]
    found = {row.client_id: row.refused_since for row in table(decoded, *reported).collect()}
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
