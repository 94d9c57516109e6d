"""The frames of the benchmark: what the load generator sends, and what the stub broker answers, as files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kafka.record.memory_records import MemoryRecordsBuilder

from proxy.core.apis import response_header_is_flexible
from proxy.core.encode import encode
from proxy.core.schema import layout
from tests import frames

TOPIC = "orders"
PRODUCE, FETCH, API_VERSIONS = 0, 1, 18
OFFERED = {PRODUCE: (3, 12), FETCH: (4, 12), API_VERSIONS: (0, 4)}
"""Api key → lowest and highest version that the stub answers; the newest that name topics and not their ids."""

CLIENT_ID = "checkout-service-1"
PER_BATCH = 253
"""Records of 1 KiB in a batch of about 256 KiB."""

Values = Mapping[str, Any]


def write_frames(folder: Path) -> dict[str, Path]:
    """Write every frame into ``folder`` and return the requests by name: small, with a record of 100 bytes; produce, of
    256 KiB; fetch, answered with 1 MiB; hello."""
    folder.mkdir(parents=True, exist_ok=True)
    hello = {"ClientSoftwareName": "apache-kafka-java", "ClientSoftwareVersion": "4.3.1"}
    requests = {
        "small": _request(PRODUCE, _produce(batches(1, 100))),
        "produce": _request(PRODUCE, _produce(batches(PER_BATCH))),
        "fetch": _request(FETCH, _fetch(1024 * 1024)),
        "hello": _request(API_VERSIONS, hello),
    }
    fetched = _fetched(batches(4 * PER_BATCH))
    answers = {PRODUCE: _produced(), FETCH: fetched, API_VERSIONS: _offered()}
    for key, (first, last) in OFFERED.items():
        for version in range(first, last + 1):
            tags = b"\0" if response_header_is_flexible(key, version) else b""
            body = encode(layout(key, version, response=True), answers[key])
            (folder / f"{key}-{version}.resp").write_bytes(frames.response(0, tags + body))
    for name, frame in requests.items():
        (folder / f"{name}.req").write_bytes(frame)
    return {name: folder / f"{name}.req" for name in requests}


def _request(key: int, values: Values) -> bytes:
    """Of the newest version, with header v2."""
    version = OFFERED[key][1]
    return frames.request(key, version, 0, b"\0" + encode(layout(key, version, response=False), values), CLIENT_ID)


def batches(records: int, size: int = 1024) -> bytes:
    """Record batches of magic 2 with so many records of ``size`` bytes."""
    found = b""
    for _ in range(0, records, PER_BATCH):
        made = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 20)
        for _ in range(min(records, PER_BATCH)):
            made.append(timestamp=0, key=None, value=bytes(size))
        made.close()
        found += bytes(made.buffer())
    return found


def _produce(records: bytes) -> Values:
    parts = [{"Index": 0, "Records": records}]
    return {"Acks": -1, "TimeoutMs": 30_000, "TopicData": [{"Name": TOPIC, "PartitionData": parts}]}


def _produced() -> Values:
    answers = [{"Index": 0, "BaseOffset": 4242, "LogAppendTimeMs": -1}]
    return {"Responses": [{"Name": TOPIC, "PartitionResponses": answers}]}


def _fetch(size: int) -> Values:
    partition = {"FetchOffset": 1000, "LastFetchedEpoch": -1, "LogStartOffset": -1, "PartitionMaxBytes": size}
    bounds = {"ReplicaId": -1, "MaxWaitMs": 500, "MinBytes": 1, "MaxBytes": 50 * 1024 * 1024, "SessionEpoch": -1}
    return {**bounds, "Topics": [{"Topic": TOPIC, "Partitions": [partition]}]}


def _fetched(records: bytes) -> Values:
    ends = {"HighWatermark": 1 << 20, "LastStableOffset": 1 << 20, "PreferredReadReplica": -1}
    return {"Responses": [{"Topic": TOPIC, "Partitions": [{**ends, "Records": records}]}]}


def _offered() -> Values:
    return {"ApiKeys": [{"ApiKey": key, "MinVersion": low, "MaxVersion": high} for key, (low, high) in OFFERED.items()]}
