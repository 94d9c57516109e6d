"""What docs/observers.md and docs/audit-event.md say is true and complete, and bodies are as they say."""

import re
from collections import Counter
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from observers import account_events, cluster_events, event
from observers.api import TOPIC_NAME, ObservableRecords, ObservableStruct
from observers.event import Envelope
from observers.reference import _meanings
from observers.views import request_view, response_view
from proxy.compiled.exchange import Exchange
from proxy.core.accessors import Accessors, Records, SchemaException
from proxy.core.schema import WITHHELD
from proxy.interceptors.broker_metadata import BrokerEntry, encode_request, encode_response
from tests.golden.frames import FOLDER, load
from tests.tools.fragments import ROOT, example
from tests.unit.observers.samples import FETCH, METADATA, PRINTED_ID, PRODUCE, TOPIC_ID, exchange, produce

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


def unknown(topic_id: bytes) -> None:
    return None


def test_a_topic_id_is_named_where_the_cluster_knows_it_and_labelled_where_not() -> None:
    one = produce([(TOPIC_ID, 0, 10, 1)], ids=True)
    (known,) = request_view(one, {TOPIC_ID: "orders"}.get).get_observable_struct_array("topic_data")
    (bare,) = request_view(one, unknown).get_observable_struct_array("topic_data")
    assert (known.get(TOPIC_NAME), known.get("TopicId")) == ("orders", PRINTED_ID)
    assert (bare.get(TOPIC_NAME), bare.get_uuid("topic_id")) == (f"id:{PRINTED_ID}", PRINTED_ID)
    assert bare.field_names() == ("TopicId", "PartitionData")


@pytest.mark.promise("observers.md", "A body that is not kept or not known has a size and no fields.")
def test_a_body_that_was_not_read_has_a_size_and_no_fields() -> None:
    for one in (
        *(exchange(api_key=key, request_bytes=77) for key in (PRODUCE, FETCH, METADATA)),
        exchange(api_version=99, request_bytes=77, request_raw=b"\0\0\0\0", response_raw=b""),
    ):
        struct = request_view(one, unknown)
        assert (struct.size_of(), struct.field_names(), struct.has_field("acks")) == (77, (), False)
        assert struct.get_or_else("acks", "none") == "none"
        with pytest.raises(KeyError, match="no field 'acks' here; there are: none"):
            struct.get("acks")


def kept_and_walked() -> list[tuple[Exchange, Exchange, str]]:
    """Every golden frame as two exchanges: one with its body, one with its facts."""
    found = []
    for path in sorted(FOLDER.glob("*.txt")):
        for frame in load(path).frames:
            base = {"api_key": frame.key, "api_version": frame.version, f"{frame.kind}_bytes": len(frame.data)}
            kept = exchange(**base, **{f"{frame.kind}_raw": frame.data[frame.body() :]})
            walked = exchange(**base, **{frame.kind: frame.facts()})
            found.append((kept, walked, frame.kind))
    return found


def compare(kept: ObservableStruct, walked: ObservableStruct) -> int:
    """Whatever the walked one says, the kept one says too; returns how many fields that were."""
    count = 0
    for name in walked.field_names():
        is_, was = kept.get(name), walked.get(name)
        if isinstance(was, tuple):
            assert len(is_) == len(was)
            count += sum(map(compare, is_, was))
        elif name == "Records":
            for one in ("batches", "records", "magic", "producer_id", "producer_epoch", "base_sequence", "base_offset"):
                assert getattr(is_, one) == getattr(was, one)
            assert was.size_in_bytes() == is_.size_in_bytes()
        else:
            assert is_ == was, name
        count += 1
    return count


@pytest.mark.promise("observers.md", "A body that is too long to be kept still has topics, sizes and counts.")
def test_a_kept_body_and_its_facts_say_the_same() -> None:
    reported = 0
    for kept, walked, kind in kept_and_walked():
        make = request_view if kind == "request" else response_view
        reported += compare(make(kept, unknown), make(walked, unknown))
        assert make(kept, unknown).size_of() == make(walked, unknown).size_of()
    assert reported > 500


KEY = 20_000
PRIVATE = {KEY: "BrokerMetadata"}


@pytest.mark.promise("observers.md", "The sidecar's own requests are structs like those of Kafka.")
def test_a_request_of_the_sidecar_and_its_response() -> None:
    brokers = [BrokerEntry(3, "h", 9092, 40, 77, {"rack": "r8a9"}), BrokerEntry(4, "", -1, -1, -1)]
    raw = {"request_raw": encode_request([-1, 7]), "response_raw": encode_response(brokers)}
    one = exchange(api_key=KEY, api_version=0, **raw)
    struct = request_view(one, unknown, PRIVATE)
    assert (struct.get_array("node_ids"), struct.size_of()) == ((-1, 7), 50)
    assert request_view(one, unknown).field_names() == ()
    read = [
        BrokerEntry(
            each.get_int("NodeId"),
            each.get_string("host") or "",
            each.get_int("port"),
            each.get_int("protocol_version_min"),
            each.get_int("protocol_version_max"),
            {tag.get("key"): tag.get("value") for tag in each.get_observable_struct_array("tags")},
        )
        for each in response_view(one, unknown, PRIVATE).get_observable_struct_array("brokers")
    ]
    assert read == brokers
    with pytest.raises(SchemaException):
        request_view(exchange(api_key=KEY, api_version=0, request_raw=b"\0\0\0\5\0"), unknown, PRIVATE).get("node_ids")
    newer = exchange(api_key=KEY, api_version=1, request_raw=b"")
    assert request_view(newer, unknown, PRIVATE).field_names() == ()
