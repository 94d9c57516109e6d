"""Walkers on frames of real clients and brokers: held to their stored facts, to what was sent, and to kio's reading."""

from __future__ import annotations

import importlib
import re
from typing import Any
from uuid import UUID

import pytest
from kio.serial import entity_reader

from proxy.compiled.walk_door import BodyFeed, walker_for_request, walker_for_response
from tests.cases import each
from tests.golden.frames import Frame, Recording, dump, load, recordings

RECORDINGS = recordings()
every_recording = each("recording", RECORDINGS)

OLDEST_OF_KIO = {0: 3, 1: 4, 78: 1}
NAMES = {0: "Produce", 1: "Fetch", 78: "ShareFetch"}
FOR_KIO = [frame for one in RECORDINGS for frame in one.frames if frame.version >= OLDEST_OF_KIO[frame.key]]


@pytest.mark.promise(
    "supported-versions.md",
    "Produce, Fetch and ShareFetch of real clients of every age are read with their topics, partitions and records.",
)
@every_recording
def test_a_whole_frame_gives_its_stored_facts(recording: Recording) -> None:
    for frame in recording.frames:
        assert str(frame.facts()) == frame.expected


@every_recording
def test_a_frame_that_comes_byte_by_byte_gives_the_same(recording: Recording) -> None:
    for frame in recording.frames:
        walker = (walker_for_request if frame.kind == "request" else walker_for_response)(frame.key, frame.version)
        assert walker is not None
        feed = BodyFeed(walker, frame.version, frame.side)
        for at in range(frame.body(), len(frame.data)):
            feed.feed(frame.data, at, at + 1)
        assert str(feed.finish()) == frame.expected


@pytest.mark.promise("README.md", "Events count exactly the records that clients produced and consumed.")
@every_recording
def test_records_add_up_to_what_the_client_says_it_moved(recording: Recording) -> None:
    [moved] = re.findall(r"(?:sent|received) (\d+) records", recording.provenance)
    wrappers = re.findall(r"as (\d+) wrappers", recording.provenance)
    sets = [
        partition.records
        for frame in recording.frames
        for partition in frame.facts().partitions
        if hasattr(partition, "records")
    ]
    assert sum(one.records for one in sets) == int(wrappers[0] if wrappers else moved)
    assert any(one.claimed for one in sets) == bool(wrappers)


def test_the_recordings_cover_old_and_new_versions_both_topic_forms_and_all_magics() -> None:
    frames = [frame for recording in RECORDINGS for frame in recording.frames]
    assert {frame.version for frame in frames if frame.key == 0} == {1, 2, 7, 9, 10, 11, 13}
    assert {frame.version for frame in frames if frame.key == 1} == {1, 2, 11, 12, 16, 17, 18}
    assert {frame.version for frame in frames if frame.key == 78} == {2}
    assert {frame.facts().topics_are_ids for frame in frames} == {False, True}
    magics = re.findall(r"magic=(\d)", " ".join(frame.expected for frame in frames))
    assert set(magics) == {"0", "1", "2"}


@every_recording
def test_a_recording_reads_back_as_it_was_written(recording: Recording, tmp_path: Any) -> None:
    copy = tmp_path / f"{recording.name}.txt"
    copy.write_text("\n".join([f"# {recording.provenance}\n", *map(dump, recording.frames)]))
    assert load(copy) == recording


@each("frame", FOR_KIO)
def test_kio_reads_the_same(frame: Frame) -> None:
    name = NAMES[frame.key]
    folder = "share_fetch" if frame.key == 78 else name.lower()
    module = importlib.import_module(f"kio.schema.{folder}.v{frame.version}.{frame.kind}")
    entity = getattr(module, f"{name}{frame.kind.capitalize()}")
    theirs, size = entity_reader(entity)(frame.data, frame.body())
    assert frame.body() + size == len(frame.data)
    assert seen_by_us(frame) == seen_by_kio(frame, theirs)


def seen_by_us(frame: Frame) -> list[tuple[Any, ...]]:
    rows = []
    for partition in frame.facts().partitions:
        error = getattr(partition, "error_code", None)
        offset = next((getattr(partition, n) for n in ("base_offset", "fetch_offset") if hasattr(partition, n)), None)
        if frame.key == 78:  # share groups have none
            assert offset in (None, -1)
            offset = None
        size = partition.records.size if hasattr(partition, "records") else None
        rows.append((partition.topic, partition.partition, error, offset, size))
    return rows


def seen_by_kio(frame: Frame, theirs: Any) -> list[tuple[Any, ...]]:
    names = {("request", 0): ("topic_data", "partition_data"), ("response", 0): ("responses", "partition_responses")}
    topics, partitions = names.get(
        (frame.kind, frame.key), ("topics" if frame.kind == "request" else "responses", "partitions")
    )
    rows = []
    for topic in getattr(theirs, topics):
        called = next(getattr(topic, n) for n in ("topic_id", "topic", "name") if hasattr(topic, n))
        for one in getattr(topic, partitions):
            number = next(getattr(one, n) for n in ("index", "partition", "partition_index") if hasattr(one, n))
            offset = next((getattr(one, n) for n in ("base_offset", "fetch_offset") if hasattr(one, n)), None)
            error = one.error_code.value if hasattr(one, "error_code") else None
            size = len(one.records or b"") if hasattr(one, "records") else None
            rows.append((called.bytes if isinstance(called, UUID) else called.encode(), number, error, offset, size))
    return rows
