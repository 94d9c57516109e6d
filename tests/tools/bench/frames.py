"""The frames of the benchmark: what the load generator sends, and what the stub broker answers, as files."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proxy.core.apis import response_header_is_flexible
from proxy.core.encode import encode
from proxy.core.schema import layout
from proxy.core.wire import uvarint_bytes

TOPIC = "orders"
PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18
OFFERED = {PRODUCE: (3, 12), FETCH: (4, 12), METADATA: (0, 12), API_VERSIONS: (0, 4)}
"""Api key → lowest and highest version that the stub answers; the newest that name topics and not their ids."""

PARTITIONS = {12: 1, 11: 10, 10: 50}
"""Version of Produce → partitions in a request, and in the stub's response, which it chooses by the version alone.
Older ones have one; between these three the format is the same."""

UNKNOWN_OPERATIONS = -(1 << 31)

Values = Mapping[str, Any]


def write_frames(folder: Path, *, fetched: int, produced: int, record: int, stub_port: int) -> dict[str, Path]:
    """Write every frame into ``folder`` and return the requests by name: small, small-10, small-50, produce, fetch,
    hello.

    ``fetched``, ``produced``: bytes of records in a fetch response and in a large produce request. ``record``: bytes of
    the one record in a small request, or in each partition of one with so many.
    """
    folder.mkdir(parents=True, exist_ok=True)
    newest = {key: last for key, (_, last) in OFFERED.items()}
    requests = {
        "small" if count == 1 else f"small-{count}": request(PRODUCE, version, _produce(batch([bytes(record)]), count))
        for version, count in PARTITIONS.items()
    }
    requests |= {
        "produce": request(PRODUCE, newest[PRODUCE], _produce(batches(produced), 1)),
        "fetch": request(FETCH, newest[FETCH], _fetch(fetched)),
        "hello": request(
            API_VERSIONS,
            newest[API_VERSIONS],
            {"ClientSoftwareName": "apache-kafka-java", "ClientSoftwareVersion": "4.3.1"},
        ),
    }
    records = batches(fetched)
    for key, (first, last) in OFFERED.items():
        for version in range(first, last + 1):
            answer = {
                PRODUCE: lambda version=version: _produced(PARTITIONS.get(version, 1)),
                FETCH: lambda: _fetched(records),
                METADATA: lambda: _metadata(stub_port),
                API_VERSIONS: _offered,
            }[key]()
            (folder / f"{key}-{version}.resp").write_bytes(response(key, version, answer))
    for name, frame in requests.items():
        (folder / f"{name}.req").write_bytes(frame)
    return {name: folder / f"{name}.req" for name in requests}


def request(key: int, version: int, values: Values, client_id: bytes = b"checkout-service-1") -> bytes:
    """A request with header v2, correlation id 0."""
    body = encode(layout(key, version, response=False), values)
    payload = struct.pack(">hhih", key, version, 0, len(client_id)) + client_id + b"\0" + body
    return struct.pack(">i", len(payload)) + payload


def response(key: int, version: int, values: Values) -> bytes:
    """A response with correlation id 0."""
    tags = b"\0" if response_header_is_flexible(key, version) else b""
    payload = struct.pack(">i", 0) + tags + encode(layout(key, version, response=True), values)
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
    return uvarint_bytes(value << 1 ^ value >> 63)


def _produce(records: bytes, partitions: int) -> Values:
    parts = [{"Index": index, "Records": records} for index in range(partitions)]
    return {"Acks": -1, "TimeoutMs": 30_000, "TopicData": [{"Name": TOPIC, "PartitionData": parts}]}


def _produced(partitions: int) -> Values:
    answers = [{"Index": index, "BaseOffset": 4242, "LogAppendTimeMs": -1} for index in range(partitions)]
    return {"Responses": [{"Name": TOPIC, "PartitionResponses": answers}]}


def _fetch(size: int) -> Values:
    partition = {"FetchOffset": 1000, "LastFetchedEpoch": -1, "LogStartOffset": -1, "PartitionMaxBytes": size}
    bounds = {"ReplicaId": -1, "MaxWaitMs": 500, "MinBytes": 1, "MaxBytes": 50 * 1024 * 1024, "SessionEpoch": -1}
    return {**bounds, "Topics": [{"Topic": TOPIC, "Partitions": [partition]}]}


def _fetched(records: bytes) -> Values:
    ends = {"HighWatermark": 1 << 20, "LastStableOffset": 1 << 20, "PreferredReadReplica": -1}
    return {"Responses": [{"Topic": TOPIC, "Partitions": [{**ends, "Records": records}]}]}


def _metadata(port: int) -> Values:
    partition = {"LeaderId": 1, "ReplicaNodes": [1], "IsrNodes": [1]}
    topic = {"Name": TOPIC, "TopicId": bytes(15) + b"\1", "Partitions": [partition]}
    return {
        "Brokers": [{"NodeId": 1, "Host": "127.0.0.1", "Port": port}],
        "ClusterId": "stub",
        "ControllerId": 1,
        "Topics": [{**topic, "TopicAuthorizedOperations": UNKNOWN_OPERATIONS}],
        "ClusterAuthorizedOperations": UNKNOWN_OPERATIONS,
    }


def _offered() -> Values:
    return {"ApiKeys": [{"ApiKey": key, "MinVersion": low, "MaxVersion": high} for key, (low, high) in OFFERED.items()]}
