"""Records of the audit as OTLP: ``ExportLogsServiceRequest`` in JSON (opentelemetry-proto 1). Pure.

One event becomes one log record. Names of attributes are those of the semantic conventions 1.44.0, where it has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Raw, Struct

from observers.otlp_writer import LogRecordWriter

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
"""The semantic conventions that the attributes follow."""

SERVICE_NAME = "brokerside"

ATTRIBUTES: Mapping[str, str] = MappingProxyType(
    {
        "api": "messaging.operation.name",
        "client_id": "messaging.client.id",
        "client_ip": "client.address",
        "client_port": "client.port",
        "group_id": "messaging.consumer.group.name",
        "principal": "enduser.id",
        "tls_cipher": "tls.cipher",
    }
)
"""Attributes by field of an event. Every other field has the attribute ``brokerside.<field>``."""

IDENTITY = ("service.instance.id", "service.version", "messaging.kafka.cluster.id")
"""Attributes of the resource that say which sidecar an event is of, beside those with ``brokerside.``."""


class _Record(Struct):
    """The fields of an ``Envelope`` that a log record needs."""

    schema_level: int
    cluster_id: str
    broker_id: int
    boot_id: str
    sidecar_version: str
    sent_at: int
    events: Raw


_decoder = msgspec.json.Decoder(_Record)
_encoder = msgspec.json.Encoder()


class LogsEncoder:
    """Encodes records. Not thread-safe."""

    def __init__(self, resource_attributes: Mapping[str, str]) -> None:
        """``resource_attributes``: of every resource, beside those that say which sidecar it is."""
        self._resource_attributes = {"service.name": SERVICE_NAME, **resource_attributes}
        self._writer = LogRecordWriter(ATTRIBUTES)

    def encode_request(self, value: bytes) -> bytes:
        """Return the request for a record (the JSON of an ``Envelope``). Raises ValueError for what is none."""
        record = _decoder.decode(value)
        uid_prefix = _encoder.encode(f"{record.broker_id}-{record.boot_id}-")[1:-1]
        log_records = self._writer.write_records(bytes(record.events), uid_prefix, b"%d000" % record.sent_at)
        scope = {"name": SERVICE_NAME, "version": record.sidecar_version}
        level = _attributes({"brokerside.schema_level": record.schema_level})
        return b"".join(
            (
                b'{"resourceLogs":[{"resource":{"attributes":',
                _encoder.encode(_attributes(self._resource_of(record))),
                b'},"scopeLogs":[{"scope":',
                _encoder.encode({**scope, "attributes": level}),
                b',"logRecords":[',
                log_records,
                b'],"schemaUrl":',
                _encoder.encode(SCHEMA_URL),
                b'}],"schemaUrl":',
                _encoder.encode(SCHEMA_URL),
                b"}]}",
            )
        )

    def _resource_of(self, record: _Record) -> dict[str, str | int]:
        attributes: dict[str, str | int] = {
            **self._resource_attributes,
            "service.version": record.sidecar_version,
            "service.instance.id": record.boot_id,
            "brokerside.broker_id": record.broker_id,
        }
        if record.cluster_id:
            attributes["messaging.kafka.cluster.id"] = record.cluster_id
        return attributes


def _attributes(values: Mapping[str, str | int]) -> list[dict[str, Any]]:
    """Return ``KeyValue`` messages. Numbers of 64 bits are strings in protobuf's JSON."""
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in values.items()
    ]
