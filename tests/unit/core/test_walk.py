import struct

import pytest

from proxy.compiled import walk_door as walk
from proxy.core import apis
from proxy.core.bodies import MAX_PARTITIONS
from proxy.core.exchange import (
    EMPTY_RECORD_SET,
    FetchedPartition,
    FetchRequest,
    FetchResponse,
    ProduceRequest,
    RecordSet,
)
from proxy.errors import MalformedBody
from tests.tools import facts, messages
from tests.tools.messages import Made, Values, encode

NOTHING = Made(None, EMPTY_RECORD_SET)


def produce(topics: list[Values]) -> Values:
    return {"transactional_id": None, "acks": -1, "timeout_ms": 1500, "topic_data": topics}


def topic(number: int, partitions: list[Values]) -> Values:
    return {"name": b"topic-%d" % number, "topic_id": bytes([number]) * 16, "partition_data": partitions}


def fetched(records: Made, **more: object) -> Values:
    partition = {
        "partition_index": 3,
        "error_code": 0,
        "high_watermark": 90,
        "last_stable_offset": 80,
        "log_start_offset": 0,
        "aborted_transactions": None,
        "preferred_read_replica": -1,
        "records": records,
    }
    one = {"topic": b"t", "topic_id": b"i" * 16, "partitions": [partition | more]}
    return {"throttle_time_ms": 20, "error_code": 70, "session_id": 5, "responses": [one]}


def batches(count: int, payload: int) -> Made:
    header = struct.pack(">qiibIhiqqqhii", 0, 49 + payload, 0, 2, 0, 0, 0, 0, 0, 7, 1, 2, 10)
    data = (header + bytes(payload)) * count
    return Made(data, RecordSet(len(data), count, 10 * count, 2, 7, 1, 2, 0))


@pytest.mark.parametrize(("key", "name"), [(0, "produce"), (1, "fetch"), (78, "share_fetch")])
def test_there_is_a_walker_for_every_version_of_the_api_table_and_for_none_beyond(key: int, name: str) -> None:
    api = apis.APIS[key]
    for version in range(api.min_version, api.max_version + 1):
        assert walk.walker_for_request(key, version) is getattr(walk, f"{name}_request")
        assert walk.walker_for_response(key, version) is getattr(walk, f"{name}_response")
    for version in (-1, api.max_version + 1, 32767):
        assert walk.walker_for_request(key, version) is None
        assert walk.walker_for_response(key, version) is None


def test_no_other_api_is_walked() -> None:
    for key in (-1, *range(2, 78), *range(79, 95), 10000):
        assert walk.walker_for_request(key, 0) is None
        assert walk.walker_for_response(key, 0) is None


@pytest.mark.parametrize("version", range(14))
def test_hundreds_of_partitions_in_tens_of_topics(version: int) -> None:
    one = batches(1, 100)
    values = produce([topic(t, [{"index": p, "records": one} for p in range(300)]) for t in range(40)])
    body = encode(messages.PRODUCE_REQUEST, version, values)
    found = walk.walk_whole(walk.produce_request, body, 0, len(body), version, "client")
    assert found == facts.produce_request(version, values)
    assert len(found.partitions) == 12_000


def test_a_record_set_larger_than_any_buffer_is_skipped_not_kept() -> None:
    values = fetched(batches(3, 400_000))
    body = encode(messages.FETCH_RESPONSE, 17, values)
    feed = walk.BodyFeed(walk.fetch_response, 17, "broker")
    for start in range(0, len(body), 65536):
        piece = body[start : start + 65536]
        feed.feed(piece, 0, len(piece))
    assert feed.finish() == facts.fetch_response(17, values)


def test_ten_thousand_aborted_transactions_in_small_pieces() -> None:
    aborted = [{"producer_id": n, "first_offset": n} for n in range(10_000)]
    for version in (11, 12):
        values = fetched(batches(1, 10), aborted_transactions=aborted)
        body = encode(messages.FETCH_RESPONSE, version, values)
        feed = walk.BodyFeed(walk.fetch_response, version, "broker")
        for start in range(0, len(body), 1000):
            piece = body[start : start + 1000]
            feed.feed(piece, 0, len(piece))
        assert feed.finish() == facts.fetch_response(version, values)


def test_replica_id_comes_from_a_field_until_v14_and_from_a_tag_since() -> None:
    values = {
        "replica_id": 4,
        "replica_state": {"replica_id": 5, "replica_epoch": 1},
        "max_wait_ms": 500,
        "min_bytes": 1,
        "max_bytes": 2,
        "isolation_level": 1,
        "session_id": 8,
        "session_epoch": 9,
        "topics": [],
        "forgotten_topics_data": [{"topic": b"gone", "topic_id": bytes(16), "partitions": [1, 2, 3]}],
        "rack_id": b"r",
    }
    for version, replica_id in ((11, 4), (14, 4), (15, 5), (18, 5)):
        ids = version >= 13
        gone = bytes(16) if ids else b"gone"
        body = encode(messages.FETCH_REQUEST, version, values)
        found = walk.walk_whole(walk.fetch_request, body, 0, len(body), version, "client")
        assert found == FetchRequest(replica_id, 500, 1, 8, 9, (), ids, tuple((gone, n) for n in (1, 2, 3)), 1)
    del values["replica_state"]
    body = encode(messages.FETCH_REQUEST, 15, values)
    assert walk.walk_whole(walk.fetch_request, body, 0, len(body), 15, "client").replica_id == -1


@pytest.mark.parametrize("version", [7, 12, 13])
def test_forgotten_partitions_count_towards_the_bound(version: int) -> None:
    def body(count: int) -> bytes:
        values = {
            "replica_id": -1,
            "max_wait_ms": 500,
            "min_bytes": 1,
            "max_bytes": 2,
            "isolation_level": 1,
            "session_id": 8,
            "session_epoch": 9,
            "topics": [],
            "forgotten_topics_data": [{"topic": b"gone", "topic_id": b"gone" * 4, "partitions": [7] * count}],
            "rack_id": b"r",
        }
        return encode(messages.FETCH_REQUEST, version, values)

    most = body(MAX_PARTITIONS)
    feed = walk.BodyFeed(walk.fetch_request, version, "client")
    for start in range(0, len(most), 65536):
        feed.feed(most, start, min(start + 65536, len(most)))
    assert feed.finish().forgotten == ((b"gone" if version < 13 else b"gone" * 4, 7),) * MAX_PARTITIONS
    more = body(MAX_PARTITIONS + 1)
    with pytest.raises(MalformedBody, match="200000"):
        walk.walk_whole(walk.fetch_request, more, 0, len(more), version, "client")


def test_the_longest_texts_come_through_byte_by_byte() -> None:
    text = b"x" * 32767
    partition = {
        "partition_index": 3,
        "error_code": 7,
        "error_message": text,
        "acknowledge_error_code": 8,
        "acknowledge_error_message": text,
        "current_leader": {"leader_id": 1, "leader_epoch": 2},
        "records": batches(2, 10),
        "acquired_records": [{"first_offset": 0, "last_offset": 19, "delivery_count": 1}] * 3,
    }
    values = {
        "throttle_time_ms": 20,
        "error_code": 70,
        "error_message": None,
        "acquisition_lock_timeout_ms": 30_000,
        "responses": [{"topic_id": b"i" * 16, "partitions": [partition]}],
        "node_endpoints": [{"node_id": 1, "host": text, "port": 9092, "rack": text}],
    }
    body = encode(messages.SHARE_FETCH_RESPONSE, 2, values)
    feed = walk.BodyFeed(walk.share_fetch_response, 2, "broker")
    for at in range(0, len(body), 501):
        feed.feed(body, at, min(at + 501, len(body)))
    found = feed.finish()
    assert found == walk.walk_whole(walk.share_fetch_response, body, 0, len(body), 2, "broker")
    records = RecordSet(len(partition["records"].data), 2, 20, 2, 7, 1, 2, 0)
    assert found == FetchResponse(20, 70, 0, (FetchedPartition(b"i" * 16, 3, 7, -1, records, 10),), True)


def test_the_request_says_whether_topics_are_ids() -> None:
    values = produce([topic(7, [{"index": 0, "records": NOTHING}])])
    for version, expected in ((12, b"topic-7"), (13, b"\7" * 16)):
        body = encode(messages.PRODUCE_REQUEST, version, values)
        found = walk.walk_whole(walk.produce_request, body, 0, len(body), version, "client")
        assert found.topics_are_ids == (version == 13)
        assert found.partitions[0].topic == expected
        assert found.partitions[0].records is EMPTY_RECORD_SET


def test_an_error_at_the_top_of_a_fetch_response_is_read() -> None:
    body = encode(messages.FETCH_RESPONSE, 12, {**fetched(NOTHING), "responses": []})
    found = walk.walk_whole(walk.fetch_response, body, 0, len(body), 12, "broker")
    assert found == FetchResponse(20, 70, 5, (), False)


MANY = 2**31 - 1
OLD_HEAD = struct.pack(">hhi", -1, 1, 1000)  # transactional id, acks, timeout
NEW_HEAD = b"\0" + struct.pack(">hi", 1, 1000)


@pytest.mark.parametrize(
    ("version", "body"),
    [
        pytest.param(7, OLD_HEAD + struct.pack(">i", MANY), id="topics beyond the frame"),
        pytest.param(7, OLD_HEAD + struct.pack(">i", -1), id="null topics"),
        pytest.param(7, OLD_HEAD + struct.pack(">i", -2), id="negative topics"),
        pytest.param(7, OLD_HEAD + struct.pack(">ih", 1, -1) + bytes(99), id="null topic name"),
        pytest.param(7, OLD_HEAD + struct.pack(">ih", 1, -2) + bytes(99), id="negative topic name"),
        pytest.param(7, OLD_HEAD + struct.pack(">ihi", 1, 0, MANY) + bytes(99), id="partitions beyond the frame"),
        pytest.param(7, OLD_HEAD + struct.pack(">ihi", 1, 0, -1), id="null partitions"),
        pytest.param(7, OLD_HEAD + struct.pack(">ihiii", 1, 0, 1, 0, -2), id="negative record set"),
        pytest.param(7, OLD_HEAD + struct.pack(">ihiii", 1, 0, 1, 0, MANY), id="record set beyond the frame"),
        pytest.param(7, OLD_HEAD + struct.pack(">i", 0) + b"x", id="a byte too many"),
        pytest.param(7, OLD_HEAD + struct.pack(">ihiii", 1, 0, 1, 0, 61) + bytes(61), id="a batch of zeros"),
        pytest.param(9, NEW_HEAD + b"\xff" * 10, id="endless varint"),
        pytest.param(9, NEW_HEAD + b"\0", id="null topics, compact"),
        pytest.param(9, NEW_HEAD + b"\2\0\1\0\0", id="null topic name, compact"),
        pytest.param(9, NEW_HEAD + b"\1\xff\xff\xff\xff\x0f" + bytes(99), id="tags beyond the frame"),
        pytest.param(9, NEW_HEAD + b"\1\1\0\xff\xff\xff\xff\x0f", id="a tag beyond the frame"),
        pytest.param(9, NEW_HEAD + b"\1", id="no tags section"),
        pytest.param(9, b"", id="nothing"),
    ],
)
def test_hostile_requests_are_malformed_and_blamed_on_the_client(version: int, body: bytes) -> None:
    with pytest.raises(MalformedBody) as whole:
        walk.walk_whole(walk.produce_request, body, 0, len(body), version, "client")
    assert whole.value.side == "client"
    feed = walk.BodyFeed(walk.produce_request, version, "client")
    with pytest.raises(MalformedBody) as pieces:  # noqa: PT012 - any of the pieces, or the end, may be the one
        for at in range(len(body)):
            feed.feed(body, at, at + 1)
        feed.finish()
    assert pieces.value.side == "client"


def test_a_short_replica_state_is_malformed() -> None:
    body = struct.pack(">iiibii", 500, 1, 1, 0, 0, -1) + b"\1\1\1" + b"\1\1\3abc"
    with pytest.raises(MalformedBody):
        walk.walk_whole(walk.fetch_request, body, 0, len(body), 15, "client")


def test_more_partitions_than_the_bound_are_malformed() -> None:
    def body(count: int) -> bytes:
        half = count // 2
        topics = struct.pack(">ihi", 2, 0, half) + struct.pack(">ii", 0, -1) * half
        topics += struct.pack(">hi", 0, count - half) + struct.pack(">ii", 0, -1) * (count - half)
        return OLD_HEAD + topics

    most = body(MAX_PARTITIONS)
    found = walk.walk_whole(walk.produce_request, most, 0, len(most), 7, "client")
    assert len(found.partitions) == MAX_PARTITIONS
    more = body(MAX_PARTITIONS + 1)
    with pytest.raises(MalformedBody, match="200000"):
        walk.walk_whole(walk.produce_request, more, 0, len(more), 7, "client")


def test_a_walker_never_reads_into_the_next_frame() -> None:
    values = produce([topic(1, [{"index": 0, "records": batches(1, 30)}])])
    body = encode(messages.PRODUCE_REQUEST, 9, values)
    short = len(body) - 1
    with pytest.raises(MalformedBody):
        walk.walk_whole(walk.produce_request, body + body, 0, short, 9, "client")
    feed = walk.BodyFeed(walk.produce_request, 9, "client")
    feed.feed(body + body, 0, short)
    with pytest.raises(MalformedBody):
        feed.finish()


def test_empty_pieces_change_nothing() -> None:
    body = encode(messages.PRODUCE_REQUEST, 9, produce([]))
    feed = walk.BodyFeed(walk.produce_request, 9, "client")
    feed.feed(b"", 0, 0)
    feed.feed(body, 0, 4)
    feed.feed(b"xx", 1, 1)
    feed.feed(body, 4, len(body))
    feed.feed(b"", 0, 0)
    assert feed.finish() == ProduceRequest(-1, 1500, None, (), False)
