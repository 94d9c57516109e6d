"""Reads OTLP requests: log records as mappings, and the events that they were made of."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from observers.otlp_encoding import ATTRIBUTES

DERIVED = {
    "error.type", "log.record.uid", "messaging.batch.message_count", "messaging.destination.name",
    "messaging.destination.partition.id", "messaging.operation.type", "messaging.system",
}  # fmt: skip
"""Attributes that follow from others."""

TIMES = {
    "request": "ts_request", "rollup": "minute", "connection": "ts", "throttle": "ts_last", "topic_inventory": "ts",
    "group": "ts_last", "end_offsets": "ts", "sidecar_status": "ts",
}  # fmt: skip
"""The field that is the time of a log record, by kind. A gap has none."""

_FIELDS = {attribute: field for field, attribute in ATTRIBUTES.items()}


def checked(request: bytes) -> dict[str, Any]:
    """Return the request, which OpenTelemetry's own messages must accept as it is."""
    json_format.Parse(request, ExportLogsServiceRequest())  # raises for an unknown field or a wrong type
    decoded: dict[str, Any] = json.loads(request)
    return decoded


def plain(value: Mapping[str, Any]) -> Any:
    """The value of an ``AnyValue``."""
    ((kind, content),) = value.items()
    match kind:
        case "intValue":
            return int(content)
        case "arrayValue":
            return [plain(one) for one in content["values"]]
        case "kvlistValue":
            return attributes(content["values"])
    return content


def attributes(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    found = {pair["key"]: plain(pair["value"]) for pair in pairs}
    assert len(found) == len(pairs), "each key once"
    return found


def log_records(request: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each log record with the attributes of its resource."""
    for of_resource in request["resourceLogs"]:
        resource = attributes(of_resource["resource"]["attributes"])
        for of_scope in of_resource["scopeLogs"]:
            for record in of_scope["logRecords"]:
                yield resource, record


def event_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """The event that a log record was made of, as in its JSON."""
    kind = record["eventName"].removeprefix("brokerside.")
    event: dict[str, Any] = {"kind": kind}
    if kind in TIMES:
        nanoseconds = int(record["timeUnixNano"])
        assert nanoseconds % 1000 == 0
        event[TIMES[kind]] = nanoseconds // 1000
    for name, value in attributes(record["attributes"]).items():
        if name not in DERIVED:
            event[_FIELDS.get(name) or name.removeprefix("brokerside.")] = value
    return event
