"""Events as OpenTelemetry log records: everything that an event says, under the names that the conventions have."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from observers.account_events import GapEvent
from observers.event import (
    ConnectionEvent,
    Envelope,
    ItemError,
    RequestEvent,
    RollupEvent,
    ThrottleEvent,
    TopicPartition,
    encoder,
)
from observers.event_blocks import RecordWriter
from observers.examples import BOOT_ID, encode_event
from observers.otlp_encoding import ATTRIBUTES, LogsEncoder
from tests.unit.observers.otlp import TIMES, attributes, checked, event_of, log_records

PAGE = Path(__file__).parents[3] / "docs" / "opentelemetry.md"

KINDS = (
    "request", "rollup", "connection", "throttle", "topic_inventory", "group", "end_offsets", "gap", "sidecar_status",
)  # fmt: skip


def encoded(*events: Any, **envelope: Any) -> dict[str, Any]:
    """The request for a record of ``events``."""
    writer = RecordWriter(envelope.pop("cluster_id", "ThK9ZFduS0ONy_eg3SRv7w"), 1, BOOT_ID, "0.1.0")
    json = b",".join(one if isinstance(one, bytes) else encoder.encode(one) for one in events)
    value = writer.encode_record(1, len(events), json, level=1, dropped=0, sent_at=1_795_260_700_000_000)
    return checked(LogsEncoder(envelope).encode_request(value))


def record_of(event: Any) -> dict[str, Any]:
    ((_, record),) = log_records(encoded(event))
    return record


def request_event(**fields: Any) -> RequestEvent:
    values = {
        "seq": 7, "listener": "CLIENT", "connection_id": "c1", "correlation_id": 1, "api_key": 3, "api": "Metadata",
        "api_version": 12, "principal": "User:a", "client_ip": "10.0.0.7", "ts_request": 1_795_260_000_000_000,
        "latency_us": 5, "request_bytes": 40,
    }  # fmt: skip
    return RequestEvent(**{**values, **fields})


@pytest.mark.promise("opentelemetry.md", "Every event is one log record that says all that the event says.")
def test_a_log_record_says_all_that_its_event_says() -> None:
    (field,) = [one for one in msgspec.structs.fields(Envelope) if one.name == "events"]
    kinds = {kind.__struct_config__.tag: kind for kind in field.type.__args__[0].__args__}
    assert set(KINDS) == set(kinds)
    for kind in KINDS:
        event = encode_event(kind)
        record = record_of(event)
        assert event_of(record) == json.loads(event)
        assert record["eventName"] == f"brokerside.{kind}"
        assert ("timeUnixNano" in record) == (kind in TIMES), kind
        assert record["observedTimeUnixNano"] == "1795260700000000000"
    names = {name for kind in kinds.values() for name in kind.__struct_fields__}
    assert set(ATTRIBUTES) <= names, "every attribute with a name of its own is a field of an event"
    table = re.findall(r"^\| `(\w+)` \| `([\w.]+)` \|$", PAGE.read_text(), re.MULTILINE)
    assert dict(table) == ATTRIBUTES
    assert attributes(encoded(event)["resourceLogs"][0]["scopeLogs"][0]["scope"]["attributes"]) == {
        "brokerside.schema_level": 1
    }


@pytest.mark.promise("opentelemetry.md", "Log records of the same event have the same log.record.uid.")
def test_an_event_has_one_id_wherever_it_is_sent_from() -> None:
    first = encoded(request_event(seq=41), request_event(seq=42))
    again = encoded(request_event(seq=42), cluster_id="")
    uids = [attributes(record["attributes"])["log.record.uid"] for _, record in log_records(first)]
    assert uids == [f"1-{BOOT_ID}-41", f"1-{BOOT_ID}-42"]
    assert attributes(next(log_records(again))[1]["attributes"])["log.record.uid"] == uids[1]


@pytest.mark.promise("opentelemetry.md", "The resource names the service, the run, the broker and the cluster.")
def test_the_resource_says_which_sidecar_it_is() -> None:
    ((resource, _),) = log_records(encoded(request_event(), **{"service.name": "kafka-audit", "team": "a"}))
    assert resource == {
        "service.name": "kafka-audit", "service.version": "0.1.0", "service.instance.id": BOOT_ID, "team": "a",
        "messaging.kafka.cluster.id": "ThK9ZFduS0ONy_eg3SRv7w", "brokerside.broker_id": 1,
    }  # fmt: skip
    ((unknown, _),) = log_records(encoded(request_event(), cluster_id=""))
    assert "messaging.kafka.cluster.id" not in unknown


@pytest.mark.promise("opentelemetry.md", "Failures, denials, failed logins, drops and gaps are warnings.")
def test_failures_and_denials_are_warnings() -> None:
    def failed_login(**more: int) -> ConnectionEvent:
        return ConnectionEvent(1, "authentication_failed", 1, "C", "c1", "User:a", "10.0.0.7", 5, **more)

    parts = tuple(TopicPartition("a", n, error_code=code) for n, code in enumerate((0, 6, 29, 3)))
    refused = (ItemError(36, "topic", "a"), ItemError(29, "topic", "b"))
    for event, severity, error_type in (
        (request_event(), "INFO", None),
        (request_event(error_code=29), "WARN", "TOPIC_AUTHORIZATION_FAILED"),
        (request_event(error_code=-1), "WARN", "UNKNOWN_SERVER_ERROR"),
        (request_event(error_code=32_000), "WARN", "_OTHER"),
        (request_event(error_code=16), "INFO", "NOT_COORDINATOR"),
        (request_event(error_code=79), "INFO", "MEMBER_ID_REQUIRED"),
        (request_event(api_key=18, error_code=35), "INFO", "UNSUPPORTED_VERSION"),
        (request_event(api_key=19, error_code=35), "WARN", "UNSUPPORTED_VERSION"),
        (request_event(outcome="connection_lost"), "INFO", "connection_lost"),
        (request_event(outcome="no_response"), "INFO", None),
        (request_event(api_key=0, topics=parts), "WARN", "TOPIC_AUTHORIZATION_FAILED"),
        (request_event(api_key=1, topics=parts[1:2]), "INFO", "NOT_LEADER_OR_FOLLOWER"),
        (request_event(item_errors=refused, item_failures=2), "WARN", "TOPIC_ALREADY_EXISTS"),
        (request_event(item_errors=(ItemError(27, "group", "a"),), item_protocol=1), "INFO", "REBALANCE_IN_PROGRESS"),
        (failed_login(error_code=58), "WARN", "SASL_AUTHENTICATION_FAILED"),
        (failed_login(), "WARN", "authentication_failed"),
        (ConnectionEvent(1, "closed", 1, "C", "c1", "User:a", "10.0.0.7", 5, cause="idle"), "INFO", None),
        (ThrottleEvent(1, "C", "*", "ip", "connections", "drop", 3, 4, 5.5, 1, 2), "WARN", None),
        (ThrottleEvent(1, "C", "*", "ip", "connections", "hold", 3, 4, 5.5, 1, 2), "INFO", None),
        (RollupEvent(1, 60_000_000, "C", 0, "Produce", "User:a", "::1", 5, 9, errors=1), "WARN", None),
        (RollupEvent(1, 60_000_000, "C", 0, "Produce", "User:a", "::1", 5, 9, retriable=1), "INFO", None),
        (GapEvent(1, "queue_full", BOOT_ID, 1, 2), "WARN", None),
    ):
        record = record_of(event)
        number = 13 if severity == "WARN" else 9
        assert (record["severityText"], record["severityNumber"]) == (severity, number), event
        assert attributes(record["attributes"]).get("error.type") == error_type, event


@pytest.mark.promise("opentelemetry.md", "Requests have the attributes of messaging where one value holds for all.")
def test_what_holds_for_all_of_a_request_has_the_attributes_of_messaging() -> None:
    names = ("operation.type", "destination.name", "destination.partition.id", "batch.message_count")
    for api_key, topics, expected in (
        (0, [("a", 3, 5)], ("send", "a", "3", 5)),
        (1, [("a", 3, 5), ("a", 4, 0)], ("receive", "a", None, 5)),
        (78, [("a", 3, 5), ("b", 3, 7)], ("receive", None, None, 12)),
        (8, [], ("settle", None, None, None)),
        (3, [], (None, None, None, None)),
    ):
        parts = tuple(TopicPartition(name, partition, records=records) for name, partition, records in topics)
        found = attributes(record_of(request_event(api_key=api_key, group_id="g", topics=parts))["attributes"])
        assert tuple(found.get(f"messaging.{name}") for name in names) == expected, api_key
        assert (found["messaging.system"], found["messaging.consumer.group.name"]) == ("kafka", "g")


TEXTS = st.text(max_size=40) | st.sampled_from(['"', "\\", '\\"', '"},{"seq":1', "]}", '":', "\0\n\x7f", "é€😀"])


@given(TEXTS, TEXTS, st.lists(TEXTS, max_size=3), st.integers(-(2**63), 2**63 - 1))
def test_no_text_that_a_client_chose_changes_anything_else(
    client_id: str, name: str, topics: list[str], number: int
) -> None:
    event = request_event(
        client_id=client_id,
        group_id=name,
        topics=tuple(TopicPartition(topic, n, base_offset=number) for n, topic in enumerate(topics)),
        polled=tuple(topics),
    )
    first, second = (record for _, record in log_records(encoded(event, request_event(seq=8))))
    assert event_of(first) == json.loads(encoder.encode(event))
    assert event_of(second)["seq"] == 8
