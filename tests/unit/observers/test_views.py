from __future__ import annotations

from typing import Any

import pytest

from observers.api import TOPIC_NAME, ObservableStruct
from observers.views import request_view, response_view
from proxy.compiled.exchange import Exchange
from proxy.coordinator.wire import ClusterMetadataResponse, EndpointEntry, encode_cluster_metadata_response
from proxy.core.accessors import SchemaException
from proxy.interceptors.broker_metadata import BrokerEntry, encode_request, encode_response
from tests.golden.frames import FOLDER, load
from tests.unit.observers.samples import (
    FETCH,
    METADATA,
    PRINTED_ID,
    PRODUCE,
    TOPIC_ID,
    exchange,
    produce,
)


def unknown(topic_id: bytes) -> None:
    return None


@pytest.mark.promise("observers.md", "A field has the names of Kafka's definitions and of KIP-388.")
def test_produce_request_in_both_spellings() -> None:
    struct: ObservableStruct = request_view(produce([(b"a", 0, 100, 1), (b"a", 1, 20, 2), (b"b", 0, 3, 1)]), unknown)
    assert struct.size_of() == 50
    assert (struct.get("acks"), struct.get_short("Acks")) == (-1, -1)
    assert (struct.get("timeout"), struct.get("TimeoutMs"), struct.get_int("timeout_ms")) == (30_000,) * 3
    assert struct.get_string("transactional_id") is None
    for topics, name, partitions, index, records in [
        ("topic_data", TOPIC_NAME, "data", "partition", "record_set"),
        ("TopicData", "Name", "PartitionData", "Index", "Records"),
        ("topicData", "name", "partitionData", "index", "records"),
    ]:
        read = [
            (
                topic.get_string(name),
                [
                    (p.get_int(index), p.get(records).size_in_bytes())
                    for p in topic.get_observable_struct_array(partitions)
                ],
            )
            for topic in struct.get_observable_struct_array(topics)
        ]
        assert read == [("a", [(0, 100), (1, 20)]), ("b", [(0, 3)])]
    first = struct.get_observable_struct_array("topic_data")[0]
    assert first.size_of() == 120
    records = first.get_observable_struct_array("data")[1].get_records("record_set")
    assert (records.records, records.batches, records.producer_id, records.base_sequence) == (2, 1, 7, 3)
    assert records.data is None


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


@pytest.mark.promise("observers.md", "Structs are read-only, and a KeyError names the fields that there are.")
def test_structs_are_read_only_and_what_is_not_there_is_a_key_error_that_names_what_is() -> None:
    struct: Any = request_view(produce([(b"a", 0, 1, 1)]), unknown)
    assert struct.has_field("topic_data")
    assert not struct.has_field("responses")
    with pytest.raises(KeyError, match="there are: TransactionalId, Acks, TimeoutMs, TopicData"):
        struct.get_observable_struct_array("responses")
    with pytest.raises(SchemaException, match="'acks' is of type int16, not int32"):
        struct.get_int("acks")
    (topic,) = struct.get_observable_struct_array("topic_data")
    for one in (struct, topic, topic.get_observable_struct_array("data")[0].get_records("record_set")):
        for name in ("size", "_values", "data"):
            with pytest.raises(AttributeError):
                setattr(one, name, 2)
    assert isinstance(struct.get_observable_struct_array("topic_data"), tuple)


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


def test_an_array_with_a_short_count() -> None:
    own = {KEY: "ClusterMetadata"}
    brokers = tuple(EndpointEntry(number, f"h{number}", 9092) for number in range(3))
    body = encode_cluster_metadata_response(ClusterMetadataResponse(0, 1, brokers))
    one = exchange(api_key=KEY, api_version=1, request_raw=b"\0\1g", response_raw=body)
    assert request_view(one, unknown, own).get_string("group_id") == "g"
    response = response_view(one, unknown, own)
    found = [
        EndpointEntry(each.get_int("id"), each.get_string("host") or "", each.get_int("port"))
        for each in response.get_observable_struct_array("brokers")
    ]
    assert (response.get_short("error_code"), response.get_int("coordinator_id"), tuple(found)) == (0, 1, brokers)
    for raw in (body[:-1], body[:6] + b"\x7f\xff" + body[8:], body[:6] + b"\xff\xff" + body[8:]):
        cut = exchange(api_key=KEY, api_version=0, response_raw=raw)
        with pytest.raises(SchemaException):
            response_view(cut, unknown, own).get_observable_struct_array("brokers")
