"""The frames of the benchmark: what the load generator sends, and what the stub broker answers, as files."""

from __future__ import annotations

import struct
from pathlib import Path

from proxy.core.exchange import EMPTY_RECORD_SET
from tests.tools.messages import (
    FETCH_REQUEST,
    FETCH_RESPONSE,
    PRODUCE_REQUEST,
    PRODUCE_RESPONSE,
    Field,
    Made,
    Message,
    Values,
    encode,
    uvarint,
)

TOPIC = b"orders"
PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18
OFFERED = {PRODUCE: (3, 12), FETCH: (4, 12), METADATA: (0, 12), API_VERSIONS: (0, 4)}
"""Api key → lowest and highest version that the stub answers; the newest that name topics and not their ids."""

PARTITIONS = {12: 1, 11: 10, 10: 50}
"""Version of Produce → partitions in a request, and in the stub's response, which it chooses by the version alone.
Older ones have one; between these three the format is the same."""

API_VERSIONS_RESPONSE = Message(
    (
        Field("error_code", "int16"),
        Field(
            "api_keys",
            "api",
            array=True,
            fields=(Field("api_key", "int16"), Field("min_version", "int16"), Field("max_version", "int16")),
        ),
        Field("throttle_time_ms", "int32", 1),
    ),
    flexible_since=3,
    max_version=4,
)

METADATA_RESPONSE = Message(
    (
        Field("throttle_time_ms", "int32", 3),
        Field(
            "brokers",
            "broker",
            array=True,
            fields=(
                Field("node_id", "int32"),
                Field("host", "string"),
                Field("port", "int32"),
                Field("rack", "string", 1, nullable=True),
            ),
        ),
        Field("cluster_id", "string", 2, nullable=True),
        Field("controller_id", "int32", 1),
        Field(
            "topics",
            "topic",
            array=True,
            fields=(
                Field("error_code", "int16"),
                Field("name", "string"),
                Field("topic_id", "uuid", 10),
                Field("is_internal", "int8", 1),
                Field(
                    "partitions",
                    "partition",
                    array=True,
                    fields=(
                        Field("error_code", "int16"),
                        Field("partition_index", "int32"),
                        Field("leader_id", "int32"),
                        Field("leader_epoch", "int32", 7),
                        Field("replica_nodes", "int32", array=True),
                        Field("isr_nodes", "int32", array=True),
                        Field("offline_replicas", "int32", 5, array=True),
                    ),
                ),
                Field("topic_authorized_operations", "int32", 8),
            ),
        ),
        Field("cluster_authorized_operations", "int32", 8, 10),
    ),
    flexible_since=9,
    max_version=12,
)


def write_frames(folder: Path, *, fetched: int, produced: int, record: int, stub_port: int) -> dict[str, Path]:
    """Write every frame into ``folder`` and return the requests by name: small, small-10, small-50, produce, fetch,
    hello.

    ``fetched``, ``produced``: bytes of records in a fetch response and in a large produce request. ``record``: bytes of
    the one record in a small request, or in each partition of one with so many.
    """
    folder.mkdir(parents=True, exist_ok=True)
    produce_version, fetch_version = OFFERED[PRODUCE][1], OFFERED[FETCH][1]
    requests = {
        "small" if count == 1 else f"small-{count}": request(
            PRODUCE, version, _produce(version, batch([bytes(record)]), count)
        )
        for version, count in PARTITIONS.items()
    }
    requests |= {
        "produce": request(PRODUCE, produce_version, _produce(produce_version, batches(produced), 1)),
        "fetch": request(FETCH, fetch_version, encode(FETCH_REQUEST, fetch_version, _fetch(fetched))),
        "hello": request(API_VERSIONS, OFFERED[API_VERSIONS][1], _software()),
    }
    responses: dict[tuple[int, int], bytes] = {}
    for version in range(OFFERED[PRODUCE][0], OFFERED[PRODUCE][1] + 1):
        responses[PRODUCE, version] = response(PRODUCE_RESPONSE, version, _produced(PARTITIONS.get(version, 1)))
    for version in range(OFFERED[FETCH][0], OFFERED[FETCH][1] + 1):
        responses[FETCH, version] = response(
            FETCH_RESPONSE, version, _fetched(Made(batches(fetched), EMPTY_RECORD_SET))
        )
    for version in range(OFFERED[METADATA][1] + 1):
        responses[METADATA, version] = response(METADATA_RESPONSE, version, _metadata(stub_port))
    for version in range(OFFERED[API_VERSIONS][1] + 1):
        responses[API_VERSIONS, version] = response(API_VERSIONS_RESPONSE, version, _offered(), plain_header=True)
    for (key, version), frame in responses.items():
        (folder / f"{key}-{version}.resp").write_bytes(frame)
    for name, frame in requests.items():
        (folder / f"{name}.req").write_bytes(frame)
    return {name: folder / f"{name}.req" for name in requests}


def request(key: int, version: int, body: bytes, client_id: bytes = b"checkout-service-1") -> bytes:
    """A request with header v2, correlation id 0."""
    payload = struct.pack(">hhih", key, version, 0, len(client_id)) + client_id + b"\0" + body
    return struct.pack(">i", len(payload)) + payload


def response(message: Message, version: int, values: Values, *, plain_header: bool = False) -> bytes:
    """A response with correlation id 0; ``plain_header``: ApiVersions, whose header is never flexible."""
    flexible = version >= message.flexible_since and not plain_header
    payload = struct.pack(">i", 0) + (b"\0" if flexible else b"") + encode(message, version, values)
    return struct.pack(">i", len(payload)) + payload


def batch(values: list[bytes], base_offset: int = 0) -> bytes:
    """A record batch of magic 2, uncompressed; its CRC is 0, as nothing here looks at it."""
    records = b"".join(_record(number, value) for number, value in enumerate(values))
    count = len(values)
    tail = struct.pack(">hiqqqhii", 0, count - 1, 0, 0, -1, -1, -1, count) + records
    return struct.pack(">qiibI", base_offset, 4 + 1 + 4 + len(tail), 0, 2, 0) + tail


def batches(size: int, batch_size: int = 256 * 1024, record: int = 1024) -> bytes:
    """About ``size`` bytes of batches, each of about ``batch_size`` with records of ``record`` bytes."""
    per_batch = min(size, batch_size) // record - 3
    one = batch([bytes(record)] * per_batch)
    return b"".join(batch([bytes(record)] * per_batch, per_batch * n) for n in range(max(1, size // len(one))))


def _record(number: int, value: bytes) -> bytes:
    body = b"\0" + _varint(number) + _varint(number) + _varint(-1) + _varint(len(value)) + value + b"\0"
    return _varint(len(body)) + body


def _varint(value: int) -> bytes:
    return uvarint(value << 1 ^ value >> 63)


def _software() -> bytes:
    name, version = b"apache-kafka-java", b"4.3.1"
    return bytes([len(name) + 1]) + name + bytes([len(version) + 1]) + version + b"\0"


def _produce(version: int, records: bytes, partitions: int) -> bytes:
    made = Made(records, EMPTY_RECORD_SET)
    topic = {"name": TOPIC, "partition_data": [{"index": index, "records": made} for index in range(partitions)]}
    values = {"transactional_id": None, "acks": -1, "timeout_ms": 30_000, "topic_data": [topic]}
    return encode(PRODUCE_REQUEST, version, values)


def _produced(partitions: int) -> Values:
    answers: list[Values] = [
        {
            "index": index,
            "error_code": 0,
            "base_offset": 4242,
            "log_append_time_ms": -1,
            "log_start_offset": 0,
            "record_errors": [],
            "error_message": None,
        }
        for index in range(partitions)
    ]
    return {"responses": [{"name": TOPIC, "partition_responses": answers}], "throttle_time_ms": 0}


def _fetch(size: int) -> Values:
    partition = {
        "partition": 0,
        "current_leader_epoch": 0,
        "fetch_offset": 1000,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": size,
    }
    return {
        "replica_id": -1,
        "max_wait_ms": 500,
        "min_bytes": 1,
        "max_bytes": 50 * 1024 * 1024,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": TOPIC, "partitions": [partition]}],
        "forgotten_topics_data": [],
        "rack_id": b"",
    }


def _fetched(records: Made) -> Values:
    partition = {
        "partition_index": 0,
        "error_code": 0,
        "high_watermark": 1 << 20,
        "last_stable_offset": 1 << 20,
        "log_start_offset": 0,
        "aborted_transactions": None,
        "preferred_read_replica": -1,
        "records": records,
    }
    topic = {"topic": TOPIC, "partitions": [partition]}
    return {"throttle_time_ms": 0, "error_code": 0, "session_id": 0, "responses": [topic]}


def _metadata(port: int) -> Values:
    partition = {
        "error_code": 0,
        "partition_index": 0,
        "leader_id": 1,
        "leader_epoch": 0,
        "replica_nodes": [1],
        "isr_nodes": [1],
        "offline_replicas": [],
    }
    topic = {
        "error_code": 0,
        "name": TOPIC,
        "topic_id": bytes(15) + b"\1",
        "is_internal": 0,
        "partitions": [partition],
        "topic_authorized_operations": -(1 << 31),
    }
    return {
        "throttle_time_ms": 0,
        "brokers": [{"node_id": 1, "host": b"127.0.0.1", "port": port, "rack": None}],
        "cluster_id": b"stub",
        "controller_id": 1,
        "topics": [topic],
        "cluster_authorized_operations": -(1 << 31),
    }


def _offered() -> Values:
    apis = [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in OFFERED.items()]
    return {"error_code": 0, "api_keys": apis, "throttle_time_ms": 0}
