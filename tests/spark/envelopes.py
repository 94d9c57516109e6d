"""Audit envelopes as a sidecar writes them; each call states only what differs."""

from collections.abc import Sequence
from typing import Any

import msgspec

from observers.account_events import GapEvent, StatusEvent
from observers.cluster_events import GroupEvent, InventoryEvent, InventoryTopic
from observers.event import (
    ConnectionEvent,
    Envelope,
    Event,
    RequestEvent,
    RollupEvent,
    RollupTopic,
    ThrottleEvent,
    TopicPartition,
    encoder,
)

PRODUCE, FETCH, METADATA = 0, 1, 3
API = {PRODUCE: "Produce", FETCH: "Fetch", METADATA: "Metadata", 18: "ApiVersions"}

NOON = 1_790_078_400_000_000
"""2026-09-22 12:00:00 UTC, µs."""

MINUTE = 60_000_000


def partition(topic: str = "orders", **changes: Any) -> TopicPartition:
    return TopicPartition(**{"topic": topic, "partition": 0, "bytes": 100, "records": 10, **changes})


def event(api_key: int = PRODUCE, *topics: TopicPartition, **changes: Any) -> RequestEvent:
    values: dict[str, Any] = {
        "seq": 0, "listener": "CLIENT", "connection_id": "c1", "correlation_id": 7, "api_key": api_key,
        "api": API[api_key], "api_version": 12, "principal": "User:ANONYMOUS", "client_ip": "10.0.0.7",
        "ts_request": NOON, "latency_us": 2_000, "request_bytes": 500, "response_bytes": 60, "client_id": "app",
        "topics": topics,
    }  # fmt: skip
    return RequestEvent(**{**values, **changes})


def throttle(**changes: Any) -> ThrottleEvent:
    values: dict[str, Any] = {
        "seq": 0, "listener": "CLIENT", "client_ip": "10.0.0.7", "scope": "ip", "quota": "connection_creation_rate",
        "action": "hold", "count": 3, "limit": 20, "observed": 21.5, "ts_first": NOON, "ts_last": NOON + 250_000,
        "delay_ms": 750,
    }  # fmt: skip
    return ThrottleEvent(**{**values, **changes})


def rollup(api_key: int = PRODUCE, *per_topic: RollupTopic, **changes: Any) -> RollupEvent:
    values: dict[str, Any] = {
        "seq": 0, "minute": NOON, "listener": "CLIENT", "api_key": api_key, "api": API[api_key],
        "principal": "User:ANONYMOUS", "client_ip": "10.0.0.7", "requests": 3, "request_bytes": 1_500,
        "response_bytes": 180, "client_id": "app", "latencies": (0, 2, 1), "upstream_latencies": (3,),
        "per_topic": per_topic, "polled": ("quiet", "idle"),
    }  # fmt: skip
    return RollupEvent(**{**values, **changes})


def connection(**changes: Any) -> ConnectionEvent:
    values: dict[str, Any] = {
        "seq": 0, "change": "closed", "ts": NOON, "listener": "CLIENT", "connection_id": "c1",
        "principal": "User:alice", "client_ip": "10.0.0.7", "client_port": 40_000, "principal_source": "sasl",
        "sasl_mechanism": "SCRAM-SHA-512", "cause": "client", "duration_ms": 90_000, "requests": 7,
        "received_bytes": 5_000, "sent_bytes": 2**40,
    }  # fmt: skip
    return ConnectionEvent(**{**values, **changes})


def inventory(*topics: str) -> InventoryEvent:
    parts = tuple(InventoryTopic(topic, partitions=3, internal=topic.startswith("__")) for topic in topics)
    return InventoryEvent(seq=0, ts=NOON, part=1, parts=1, inventory=parts)


def group(**changes: Any) -> GroupEvent:
    values: dict[str, Any] = {
        "seq": 0, "listener": "CLIENT", "principal": "User:billing", "client_ip": "10.0.0.7", "group_id": "invoicing",
        "ts_first": NOON, "ts_last": NOON + MINUTE // 2, "requests": 12, "client_id": "app", "member_id": "app-1",
        "generation_id": 3, "group_type": "classic",
    }  # fmt: skip
    return GroupEvent(**{**values, **changes})


def gap(first: int, last: int, **changes: Any) -> GapEvent:
    values = {"seq": 0, "reason": "queue_full", "lost_boot_id": "dead", "lost_first_seq": first, "lost_last_seq": last}
    return GapEvent(**{**values, **changes})


def status(**changes: Any) -> StatusEvent:
    values: dict[str, Any] = {
        "seq": 0, "ts": NOON, "started_at": NOON - MINUTE, "seen": 12, "emitted": 10, "delivered": 5, "hidden": 2,
        "queued": 1, "dropped": {"queue_full": 3, "failed": 1},
    }  # fmt: skip
    return StatusEvent(**{**values, **changes})


def envelope(events: Sequence[Event], *, first_seq: int = 1, **changes: Any) -> Envelope:
    """An envelope of ``events``, which get their numbers from it."""
    numbered = [msgspec.structs.replace(each, seq=first_seq + index) for index, each in enumerate(events)]
    values: dict[str, Any] = {
        "schema_level": 1, "cluster_id": "cluster", "broker_id": 1, "boot_id": "boot", "sidecar_version": "0.1.0",
        "first_seq": first_seq, "last_seq": first_seq + len(numbered) - 1, "dropped": 0, "sent_at": NOON,
        "events": numbered,
    }  # fmt: skip
    return Envelope(**{**values, **changes})


def encoded(*events: Event, **changes: Any) -> bytes:
    return encoder.encode(envelope(events, **changes))


def with_unknown(**changes: Any) -> bytes:
    """An envelope of a Produce, a throttle, two events of a kind that nobody knows, and a Metadata."""
    root = msgspec.json.decode(
        encoded(event(), throttle(delay_ms=0), throttle(), throttle(), event(METADATA), **changes)
    )
    for each in root["events"][2:4]:
        each |= {"kind": "later", "client_ip": None, "count": -1, "scope": "planet", "what": {"a": [1]}}
    return msgspec.json.encode(root)


def edited(path: str, value: Any, *, first_seq: int = 1) -> bytes:
    """An envelope of a Produce and a throttle, changed at ``path`` (as ``events.0.seq``); ``...`` removes that."""
    both = encoded(event(PRODUCE, partition(), api_version=9), throttle(), first_seq=first_seq)
    return _changed(both, path, value)


def _changed(envelope: bytes, path: str, value: Any) -> bytes:
    root = msgspec.json.decode(envelope)
    *way, last = path.split(".")
    at = root
    for step in way:
        at = at[int(step)] if isinstance(at, list) else at[step]
    key: Any = int(last) if isinstance(at, list) else last
    if value is ...:
        del at[key]
    else:
        at[key] = value
    return msgspec.json.encode(root)


def of_kind(one: Event, name: str, value: Any) -> bytes:
    """An envelope of ``one``, whose field ``name`` is changed; ``...`` removes it."""
    return _changed(encoded(one, schema_level=2), f"events.0.{name}", value)


POISON: dict[str, tuple[bytes | None, str, str | None]] = {
    "a tombstone": (None, "empty", None), "no bytes": (b"", "not_json", None),
    "bytes that are no text": (b'{"cluster_id":"\xff"}', "not_utf8", None),
    "UTF-16": ('{"schema_level":1}'.encode("utf-16-le") + b"\xd8", "not_utf8", None),
    "a line of text": (b"hello", "not_json", None), "half an envelope": (encoded(event())[:-20], "not_json", None),
    "two envelopes": (encoded(event()) * 2, "not_json", None),
    "two envelopes and a comma": (encoded(event()) + b"," + encoded(event()), "not_json", None),
    "text after the envelope": (encoded(event()) + b" x", "not_json", None),
    "a brace too many": (encoded(event()) + b"}", "not_json", None),
    "brackets 100,000 deep": (b"[" * 100_000, "not_json", None),
    "a number of 5,000 digits": (b'{"schema_level":' + b"9" * 5_000 + b"}", "not_json", None),
    "an array of envelopes": (b"[" + encoded(event()) + b"]", "bad_value", "the record is not a JSON object"),
    "a number": (b"5", "bad_value", "the record is not a JSON object"),
    "null": (b"null", "bad_value", "the record is not a JSON object"),
    "an empty object": (b"{}", "missing_field", "schema_level"),
    "a newer level": (edited("schema_level", 3), "schema_level_too_high", "3"),
    "a newer level of another shape": (b'{"schema_level":4,"events":"elsewhere"}', "schema_level_too_high", "4"),
    "level 0": (edited("schema_level", 0), "bad_value", "schema_level"),
    "no cluster": (edited("cluster_id", ...), "missing_field", "cluster_id"),
    "a null": (edited("boot_id", None), "missing_field", "boot_id"),
    "no events at all": (edited("events", ...), "missing_field", "events"),
    "an event without a number": (edited("events.0.seq", ...), "missing_field", "events[].seq"),
    "a null for an event": (edited("events.0", None), "missing_field", "events[].kind"),
    "a partition without a topic": (edited("events.0.topics.0.topic", ...), "missing_field", "events[].topics[].topic"),
    "no events in it": (edited("events", []), "bad_value", "events"),
    "text for a number": (edited("first_seq", "one"), "bad_value", "a value has the wrong type"),
    "text for events": (edited("events", "none"), "bad_value", "a value has the wrong type"),
    "a fraction": (edited("events.0.request_bytes", 1.5), "bad_value", "a value has the wrong type"),
    "more than 64 bits": (edited("events.0.latency_us", 10**20), "bad_value", "a value has the wrong type"),
    "a negative latency": (edited("events.0.latency_us", -1), "bad_value", "events[].latency_us"),
    "negative bytes": (edited("events.0.topics.0.bytes", -1), "bad_value", "events[].topics[].bytes"),
    "negative records": (edited("events.0.topics.0.records", -1), "bad_value", "events[].topics[].records"),
    "more bytes than a frame has": (edited("events.0.response_bytes", 2**62), "bad_value", "events[].response_bytes"),
    "a time beyond the year 9999": (edited("events.0.ts_request", 2**62), "bad_value", "events[].ts_request"),
    "an outcome nobody knows": (edited("events.0.outcome", "eaten"), "bad_value", "events[].outcome"),
    "an event without a kind": (edited("events.1.kind", ...), "missing_field", "events[].kind"),
    "an unknown kind without a number": (edited("events.1", {"kind": "later"}), "missing_field", "events[].seq"),
    "a throttle without an address": (edited("events.1.client_ip", ...), "missing_field", "events[].client_ip"),
    "a throttle with a null": (edited("events.1.observed", None), "missing_field", "events[].observed"),
    "text for a rate": (edited("events.1.observed", "fast"), "bad_value", "a value has the wrong type"),
    "half a connection": (edited("events.1.count", 0.5), "bad_value", "a value has the wrong type"),
    "a throttle of nobody": (edited("events.1.count", 0), "bad_value", "events[].count"),
    "a scope nobody knows": (edited("events.1.scope", "planet"), "bad_value", "events[].scope"),
    "a throttle before 1970": (edited("events.1.ts_first", -1), "bad_value", "events[].ts_first"),
    "a rollup without a minute": (of_kind(rollup(), "minute", ...), "missing_field", "events[].minute"),
    "fewer than no requests": (of_kind(rollup(), "requests", -1), "bad_value", "events[].requests"),
    "text for a count": (of_kind(rollup(), "latencies", ["one"]), "bad_value", "a value has the wrong type"),
    "a rollup's topic without a name": (
        of_kind(rollup(), "per_topic", [{"records": 1}]), "missing_field", "events[].per_topic[].topic"),
    "a change nobody knows": (of_kind(connection(), "change", "moved"), "bad_value", "events[].change"),
    "a connection without a port": (of_kind(connection(), "client_port", ...), "missing_field", "events[].client_port"),
    "an inventory without parts": (of_kind(inventory(), "parts", 0), "bad_value", "events[].parts"),
    "a gap before the first": (of_kind(gap(1, 2), "lost_first_seq", 0), "bad_value", "events[].lost_first_seq"),
    "a gap for no reason": (of_kind(gap(1, 2), "reason", None), "missing_field", "events[].reason"),
    "less than nothing delivered": (of_kind(status(), "delivered", -1), "bad_value", "events[].delivered"),
    "text for a loss": (of_kind(status(), "dropped", {"closed": "all"}), "bad_value", "a value has the wrong type"),
    "an event too few": (edited("last_seq", 3), "sequence_mismatch", "1 to 3, 2 events"),
    "other numbers": (edited("events.0.seq", 5), "sequence_mismatch", "1 to 2, 2 events"),
}  # fmt: skip
"""What must become a dead letter: value, reason, detail."""
