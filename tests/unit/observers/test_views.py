from __future__ import annotations

from typing import Any

import pytest

from observers.api import TOPIC_NAME, ObservableStruct
from observers.views import request_view, response_view
from tests.unit.observers.samples import FETCH, METADATA, PRINTED_ID, PRODUCE, TOPIC_ID, fetch, produce


def unknown(topic_id: bytes) -> None:
    return None


def test_produce_request_in_both_spellings() -> None:
    one = produce([(b"a", 0, 100, 1), (b"a", 1, 20, 2), (b"b", 0, 3, 1)])
    struct: ObservableStruct = request_view(PRODUCE, one.request_bytes, one.request, unknown)
    assert struct.size_of() == 50
    assert (struct.get("acks"), struct.get("Acks")) == (-1, -1)
    assert (struct.get("timeout"), struct.get("TimeoutMs"), struct.get("timeout_ms")) == (30_000,) * 3
    assert struct.get("transactional_id") is None
    for topics, name, partitions, index, records in [
        ("topic_data", TOPIC_NAME, "data", "partition", "record_set"),
        ("TopicData", "Name", "PartitionData", "Index", "Records"),
        ("topicData", "name", "partitionData", "index", "records"),
    ]:
        read = [
            (
                topic.get(name),
                [(p.get(index), p.get(records).size_of()) for p in topic.get_observable_struct_array(partitions)],
            )
            for topic in struct.get_observable_struct_array(topics)
        ]
        assert read == [("a", [(0, 100), (1, 20)]), ("b", [(0, 3)])]
    first = struct.get_observable_struct_array("topic_data")[0]
    assert first.size_of() == 120
    assert first.get_observable_struct_array("data")[1].get("record_set").get("records") == 2


def test_produce_response() -> None:
    one = produce([(b"a", 3, 100, 1)], error_code=29)
    struct = response_view(PRODUCE, one.response_bytes, one.response, unknown)
    (topic,) = struct.get_observable_struct_array("responses")
    (partition,) = topic.get_observable_struct_array("partition_responses")
    assert struct.size_of() == 80
    assert struct.get("throttle_time_ms") == 4
    assert (topic.get("topic"), topic.get("Name")) == ("a", "a")
    assert (partition.get("partition"), partition.get("error_code"), partition.get("BaseOffset")) == (3, 29, 503)


def test_fetch_both_ways() -> None:
    one = fetch([(b"a", 0)], [(b"a", 0, 50, 2, 0)], session_id=9, session_epoch=4)
    asked = request_view(FETCH, one.request_bytes, one.request, unknown)
    assert [asked.get(n) for n in ("replica_id", "max_wait_time", "min_bytes", "session_id", "session_epoch")] == [
        -1,
        500,
        1,
        9,
        4,
    ]
    (topic,) = asked.get_observable_struct_array("topics")
    assert topic.get_observable_struct_array("partitions")[0].get("fetch_offset") == 0
    got = response_view(FETCH, one.response_bytes, one.response, unknown)
    (topic,) = got.get_observable_struct_array("Responses")
    for spelling in ("partition_responses", "Partitions"):
        (partition,) = topic.get_observable_struct_array(spelling)
        assert partition.get("record_set").size_of() == 50
        assert partition.get("PartitionIndex") == partition.get("partition") == 0
        assert partition.get("high_watermark") == 1000


def test_a_topic_id_is_named_where_the_cluster_tells_and_labelled_where_it_does_not() -> None:
    one = produce([(TOPIC_ID, 0, 10, 1)], ids=True)
    (known,) = request_view(PRODUCE, 1, one.request, {TOPIC_ID: "orders"}.get).get_observable_struct_array("topic_data")
    (bare,) = request_view(PRODUCE, 1, one.request, unknown).get_observable_struct_array("topic_data")
    assert (known.get(TOPIC_NAME), known.get("TopicId")) == ("orders", PRINTED_ID)
    assert (bare.get(TOPIC_NAME), bare.get("topic_id")) == (f"id:{PRINTED_ID}", PRINTED_ID)


@pytest.mark.parametrize("key", [PRODUCE, FETCH, METADATA])
def test_a_body_that_was_not_read_has_a_size_and_no_fields(key: int) -> None:
    struct = request_view(key, 77, None, unknown)
    assert struct.size_of() == 77
    assert not struct.has_field("acks")
    with pytest.raises(KeyError, match="no field 'acks' here; there are: none"):
        struct.get("acks")


def test_what_is_not_there_is_a_key_error_that_names_what_is() -> None:
    struct = request_view(PRODUCE, 1, produce([(b"a", 0, 1, 1)]).request, unknown)
    assert struct.has_field("topic_data")
    assert not struct.has_field("responses")
    with pytest.raises(KeyError, match="there are: topicdata"):
        struct.get_observable_struct_array("responses")


def test_views_cannot_be_written_to() -> None:
    struct: Any = request_view(PRODUCE, 1, produce([(b"a", 0, 1, 1)]).request, unknown)
    with pytest.raises(AttributeError):
        struct.size = 2
    with pytest.raises(TypeError):
        struct.fields["acks"] = 0
    assert isinstance(struct.get_observable_struct_array("topic_data"), tuple)
