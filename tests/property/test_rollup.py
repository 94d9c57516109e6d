"""Rollups say of traffic what the single events say."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from observers.audit_writer import RequestEventEncoder
from observers.event import ROLLUP_BUCKETS, RollupEvent
from observers.rollup_writer import RollupAggregator
from proxy.compiled.exchange import Exchange
from proxy.core.response_errors import PROTOCOL, RETRIABLE
from tests.property.audited import API_NAMES, WALL, batches, surroundings

BATCHES = batches(largest=2**31)

CLASSES = ("failure", "retriable", "protocol")
"""Classes of errors, the worst first."""
ITEMS = {"failure": "item_failures", "retriable": "item_retriable", "protocol": "item_protocol"}
SEVERE = ("errors", "retriable", "protocol")

Rows = dict[tuple[Any, ...], Counter[str]]


def gathered(observed: list[list[Exchange]], **bounds: int) -> tuple[list[RollupEvent], Counter[str]]:
    """Every rollup of ``observed``, taken when one is full and at the end; and what became of the other exchanges."""
    names, audit_filter = surroundings()
    rollup = RollupAggregator(API_NAMES, names, audit_filter, **bounds)
    events, others = [], Counter[str]()
    for exchanges in observed:
        at = 0
        while at < len(exchanges):
            added = rollup.add_exchanges(exchanges, at, WALL)
            at = added.until
            others.update(hidden=added.hidden, failed=added.failed, not_encodable=added.not_encodable)
            if rollup.full:
                before = rollup.requests
                taken = rollup.drain()
                assert sum(event.requests for event in taken) == before
                assert (rollup.requests, rollup.full) == (0, False)
                events += taken
    others.update(partly_hidden=audit_filter.partly_hidden, **audit_filter.partly_hidden_by())
    return events + rollup.drain(), others


def traffic_of_events(observed: list[list[Exchange]]) -> tuple[Rows, Counter[str]]:
    """What the table ``traffic`` sums up of single events; see spark_jobs/tables/traffic.py."""
    names, audit_filter = surroundings()
    translator = RequestEventEncoder(API_NAMES, names, audit_filter, max_event=2**60)
    rows: Rows = defaultdict(Counter)
    others = Counter[str]()
    for exchanges in observed:
        made = translator.encode_exchanges(exchanges, 1, WALL)
        others.update(hidden=made.hidden, failed=made.failed, not_encodable=made.not_encodable)
        for chunk in made.chunks:
            for event in msgspec.json.decode(b"[%b]" % chunk.json):
                add_event(rows, event)
    others.update(partly_hidden=audit_filter.partly_hidden, **audit_filter.partly_hidden_by())
    return rows, others


def add_event(rows: Rows, event: dict[str, Any]) -> None:
    key = (
        event["ts_request"] // 60_000_000, event["listener"], event["api"], event["api_version"], event["principal"],
        event.get("principal_source", "anonymous"), event.get("client_id"), event["client_ip"],
        event.get("client_software_name"), event.get("client_software_version"),
    )  # fmt: skip
    outcome, produced, parts = event.get("outcome", "answered"), event["api_key"] == 0, event.get("topics", [])
    failed = event.get("error_code", 0) != 0
    classes = {class_of(event["api_key"], part.get("error_code", 0)) for part in (event, *parts)}
    classes |= {name for name in CLASSES if event.get(ITEMS[name])}
    worst = next((name for name in CLASSES if name in classes), "none")
    idle = outcome == "answered" and event["api_key"] in (1, 78) and not failed and not parts
    asked_for = event.get("muted_us", 0) + 1000 * max(event.get("max_wait_ms", 0), 0)
    service_us = max(event["latency_us"] - asked_for, 0)
    measured = [f"latency {bucket_of(event['latency_us'])}", f"service {bucket_of(service_us)}"]
    if idle or outcome != "answered":
        measured = []
    whole = rows[*key, None]
    whole.update(measured)
    whole.update(f"upstream {bucket_of(event.get('upstream_us', 0))}" for _ in measured[:1])
    whole.update(
        requests=1,
        request_bytes=event["request_bytes"],
        response_bytes=event.get("response_bytes", 0),
        errors=worst == "failure",
        retriable=worst == "retriable",
        protocol=worst == "protocol",
        connection_lost=outcome == "connection_lost",
        throttle_ms=max(event.get("throttle_ms", 0), 0),
        idle=idle,
    )
    for name in event.get("polled", ()):
        rows[*key, name]["polled"] = 1
    for name in {part["topic"] for part in parts}:
        rows[*key, name].update(["topic_requests", *measured])
        rows[*key, name]["errors"] += any(
            class_of(event["api_key"], part.get("error_code", 0)) == "failure"
            for part in parts
            if part["topic"] == name
        )
    for part in parts:
        records, size, error = part.get("records", 0), part.get("bytes", 0), part.get("error_code", 0)
        row = rows[*key, part["topic"]]
        if not error and outcome == "answered":
            row.update(records=records, bytes=size)
            if part.get("claimed") or part.get("upper_bound"):
                row["estimated_records"] += records
        elif not error and produced:
            row.update(unconfirmed_records=records, unconfirmed_bytes=size)
        elif error and produced:
            row.update(rejected_records=records, rejected_bytes=size)


def class_of(api_key: int, code: int) -> str:
    """How bad an error code is."""
    if code in PROTOCOL or (api_key, code) == (18, 35):
        return "protocol"
    return "none" if not code else "retriable" if code in RETRIABLE else "failure"


def bucket_of(latency_us: int) -> int:
    return sum(end < latency_us for end in ROLLUP_BUCKETS)


def traffic_of_rollups(events: list[RollupEvent]) -> Rows:
    rows: Rows = defaultdict(Counter)
    for event in events:
        key = (
            event.minute // 60_000_000, event.listener, event.api, event.api_version, event.principal,
            event.principal_source, event.client_id, event.client_ip, event.client_software_name,
            event.client_software_version,
        )  # fmt: skip
        assert event.minute % 60_000_000 == 0
        whole = rows[*key, None]
        for name in ("requests", "request_bytes", "response_bytes", *SEVERE, "connection_lost", "throttle_ms", "idle"):
            whole[name] += getattr(event, name)
        whole.update({f"latency {n}": count for n, count in enumerate(event.latencies)})
        whole.update({f"upstream {n}": count for n, count in enumerate(event.upstream_latencies)})
        whole.update({f"service {n}": count for n, count in enumerate(event.service_latencies or event.latencies)})
        for name in event.polled:
            rows[*key, name]["polled"] = 1
        for topic in event.per_topic:
            row = rows[*key, topic.topic]
            for name, value in msgspec.structs.asdict(topic).items():
                if name == "latencies":
                    row.update({f"latency {n}": count for n, count in enumerate(value)})
                elif name == "service_latencies":
                    row.update({f"service {n}": count for n, count in enumerate(value or topic.latencies)})
                elif name != "topic":
                    row[name] += value
    return rows


def without_zeros(rows: Rows) -> dict[tuple[Any, ...], dict[str, int]]:
    return {key: {name: value for name, value in row.items() if value} for key, row in rows.items()}


@pytest.mark.promise("audit-event.md", "Rollups add up to exactly what single events say of the same traffic.")
@given(observed=BATCHES, bounds=st.sampled_from([{}, {"max_rollups": 1}, {"max_rollups": 3}, {"max_topics": 2}]))
def test_the_traffic_of_rollups_is_that_of_the_events(observed: list[list[Exchange]], bounds: dict[str, int]) -> None:
    events, others = gathered(observed, **bounds)
    expected, lost = traffic_of_events(observed)
    if not lost["not_encodable"]:  # a rollup lacks some texts of an event, and does not lose it for them
        assert without_zeros(traffic_of_rollups(events)) == without_zeros(expected)
        assert others == lost
