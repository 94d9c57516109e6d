"""Walkers on frames of real clients and brokers: held to their stored facts, and to what was sent."""

import re

import pytest

from tests.cases import each
from tests.golden.frames import Recording, recordings

every_recording = each("recording", recordings())


@pytest.mark.promise(
    "supported-versions.md",
    "Produce, Fetch and ShareFetch of real clients of every age are read with their topics, partitions and records.",
)
@every_recording
def test_a_whole_frame_gives_its_stored_facts(recording: Recording) -> None:
    for frame in recording.frames:
        assert str(frame.facts()) == frame.expected


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
