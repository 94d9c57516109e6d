"""What docs/observers.md and docs/audit-event.md say is true and complete."""

import re
from collections import Counter
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from observers import account_events, cluster_events, event
from observers.api import ObservableRecords, ObservableStruct
from observers.event import Envelope
from observers.reference import _meanings
from observers.views import request_view, response_view
from proxy.core.accessors import Accessors, Records
from proxy.core.schema import WITHHELD
from tests.golden.frames import FOLDER, load
from tests.tools.fragments import ROOT, example
from tests.unit.observers.samples import exchange

SHARE_FETCH = 78


def label(topic: bytes, is_id: bool) -> str:
    return f"topic {topic.hex()}" if is_id else topic.decode()


@pytest.mark.promise("observers.md", "The example of the page counts the bytes of recorded traffic of every client.")
def test_the_example_counts_the_bytes_of_recorded_traffic() -> None:
    scope: dict[str, Any] = {}
    exec(compile(example(), "docs/observers.md", "exec"), scope)
    counts = scope["ByteCounts"]()
    counts.configure({})
    expected: dict[str, Counter[str]] = {"request": Counter(), "response": Counter()}
    versions = set()
    for path in sorted(FOLDER.glob("*.txt")):
        for number, frame in enumerate(load(path).frames):
            if not counts.wants(frame.key, frame.version):
                assert frame.key == SHARE_FETCH
                continue
            correlation_id = f"{path.stem}:{number}"
            for raw in (True, False):  # kept, and too long to be kept
                kept = {"request_raw": frame.data[frame.body() :], "response_raw": frame.data[frame.body() :]}
                facts = {"request": frame.facts(), "response": frame.facts()}
                one = exchange(api_key=frame.key, api_version=frame.version, **(kept if raw else facts))
                if frame.kind == "request":
                    struct = request_view(one, lambda topic: label(topic, True))
                    counts.record_request(struct, "::1", "User:x", frame.key, frame.version, correlation_id)
                else:
                    counts.asked = (correlation_id, frame.key)
                    struct = response_view(one, lambda topic: label(topic, True))
                    counts.record_response(struct, frame.version, correlation_id)
                if frame.moves_records():
                    versions.add((frame.key, frame.version))
                    for partition in frame.facts().partitions:
                        if hasattr(partition, "records"):
                            name = label(partition.topic, frame.facts().topics_are_ids)
                            expected[frame.kind][name] += partition.records.size
    assert +Counter(counts.topic_produce_bytes_count) == +expected["request"]
    assert +Counter(counts.topic_fetch_bytes_count) == +expected["response"]
    assert len(versions) > 10


@pytest.mark.promise("observers.md", "The page names every method of structs and records.")
def test_the_page_names_every_accessor() -> None:
    page = (ROOT / "docs/observers.md").read_text()
    for kind, made in ((ObservableStruct, Accessors), (ObservableRecords, Records)):
        names = {name for name in vars(kind) if not name.startswith("_")}
        assert names == {name for name in dir(made) if not name.startswith("_")}
        assert [name for name in names if not re.search(rf"`{name}[`(]", page)] == []


@pytest.mark.promise("observers.md", "The page lists every field that is withheld from observers.")
def test_the_page_names_every_field_that_is_withheld() -> None:
    expected = set(re.findall(r"`(\w+)`", (ROOT / "docs/observers.md").read_text().partition("## Withheld")[2]))
    assert {name for names in WITHHELD.values() for name in names} <= expected


STRUCTS = {
    each
    for module in (event, account_events, cluster_events)
    for each in vars(module).values()
    if isinstance(each, type) and issubclass(each, msgspec.Struct)
}
KINDS = get_args(get_args(get_type_hints(Envelope)["events"])[0])


@pytest.mark.promise("audit-event.md", "A field that several kinds of events have is of one type.")
def test_every_field_says_what_it_means_and_is_of_one_type() -> None:
    for struct in STRUCTS:
        assert set(_meanings(struct)) == {field.name for field in msgspec.structs.fields(struct)}, struct
    hints: dict[str, set[str]] = {}
    for kind in KINDS:
        for name, hint in get_type_hints(kind).items():
            hints.setdefault(name, set()).add(str(hint))
    assert {name: kinds for name, kinds in hints.items() if len(kinds) > 1} == {}
