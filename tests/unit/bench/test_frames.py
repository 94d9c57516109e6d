"""The benchmark's frames are Kafka's: the sidecar's walkers and another implementation read them."""

from __future__ import annotations

import importlib
import struct
from pathlib import Path

import pytest
from kio.serial import entity_reader

from proxy.compiled.walk_door import walk_whole, walker_for_request, walker_for_response
from proxy.core.exchange import FetchResponse, ProduceRequest, ProduceResponse
from tests.bench.frames import API_VERSIONS, FETCH, METADATA, OFFERED, PRODUCE, write_frames

FETCHED, PRODUCED, RECORD = 300_000, 100_000, 100
MODULES = {METADATA: ("metadata", "MetadataResponse"), API_VERSIONS: ("api_versions", "ApiVersionsResponse")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("frames")
    write_frames(made, fetched=FETCHED, produced=PRODUCED, record=RECORD, stub_port=19_000)
    return made


def test_every_frame_says_its_size(folder: Path) -> None:
    for path in folder.iterdir():
        frame = path.read_bytes()
        assert struct.unpack_from(">i", frame)[0] == len(frame) - 4, path.name


@pytest.mark.parametrize(("name", "records", "size"), [("small", 1, RECORD), ("produce", 94, PRODUCED)])
def test_produce_requests_are_read_by_the_walker(folder: Path, name: str, records: int, size: int) -> None:
    frame = (folder / f"{name}.req").read_bytes()
    key, version, _, client_id = struct.unpack_from(">hhih", frame, 4)
    walker = walker_for_request(key, version)
    assert walker is not None
    facts = walk_whole(walker, frame, 14 + client_id + 1, len(frame), version, "client")
    assert isinstance(facts, ProduceRequest)
    (part,) = facts.partitions
    assert part.topic == b"orders"
    assert part.records.records == records
    assert size * 0.9 < len(frame) < size * 1.1 + 150


@pytest.mark.parametrize("version", range(OFFERED[PRODUCE][0], OFFERED[PRODUCE][1] + 1))
def test_produce_responses_are_read_by_the_walker(folder: Path, version: int) -> None:
    frame = (folder / f"{PRODUCE}-{version}.resp").read_bytes()
    walker = walker_for_response(PRODUCE, version)
    assert walker is not None
    walk_whole(walker, frame, 9 if version >= 9 else 8, len(frame), version, "broker")


@pytest.mark.parametrize(("name", "count"), [("small", 1), ("small-10", 10), ("small-50", 50)])
def test_each_partition_of_a_request_has_an_answer(folder: Path, name: str, count: int) -> None:
    asked = (folder / f"{name}.req").read_bytes()
    _, version, _, client_id = struct.unpack_from(">hhih", asked, 4)
    answered = (folder / f"{PRODUCE}-{version}.resp").read_bytes()
    request, response = walker_for_request(PRODUCE, version), walker_for_response(PRODUCE, version)
    assert request is not None
    assert response is not None
    for facts in (
        walk_whole(request, asked, 14 + client_id + 1, len(asked), version, "client"),
        walk_whole(response, answered, 9, len(answered), version, "broker"),
    ):
        assert isinstance(facts, ProduceRequest | ProduceResponse)
        assert [part.partition for part in facts.partitions] == list(range(count))


@pytest.mark.parametrize("version", range(OFFERED[FETCH][0], OFFERED[FETCH][1] + 1))
def test_fetch_responses_are_read_by_the_walker(folder: Path, version: int) -> None:
    frame = (folder / f"{FETCH}-{version}.resp").read_bytes()
    walker = walker_for_response(FETCH, version)
    assert walker is not None
    facts = walk_whole(walker, frame, 9 if version >= 12 else 8, len(frame), version, "broker")
    assert isinstance(facts, FetchResponse)
    assert FETCHED * 0.8 < len(frame) < FETCHED * 1.1


@pytest.mark.parametrize(
    ("key", "version"), [(key, v) for key in MODULES for v in range(OFFERED[key][0], OFFERED[key][1] + 1)]
)
def test_other_responses_are_read_by_another_implementation(folder: Path, key: int, version: int) -> None:
    module, name = MODULES[key]
    body_at = 9 if key == METADATA and version >= 9 else 8
    body = (folder / f"{key}-{version}.resp").read_bytes()[body_at:]
    response = getattr(importlib.import_module(f"kio.schema.{module}.v{version}.response"), name)
    value, size = entity_reader(response)(body, 0)
    assert size == len(body)
    assert value.brokers[0].port == 19_000 if key == METADATA else len(value.api_keys) == len(OFFERED)
