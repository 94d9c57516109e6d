import struct

import pytest

from proxy.compiled import walk_door as walk
from proxy.core import apis
from proxy.core.bodies import MAX_PARTITIONS
from proxy.core.exchange import FetchedPartition, FetchResponse, RecordSet
from proxy.errors import MalformedBody
from tests.cases import each
from tests.tools import facts, messages
from tests.tools.messages import Made, Values, encode


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


@each(("key", "name"), [(0, "produce"), (1, "fetch"), (78, "share_fetch")])
def test_there_is_a_walker_for_every_version_of_the_api_table_and_for_none_beyond(key: int, name: str) -> None:
    api = apis.APIS[key]
    for version in range(api.min_version, api.max_version + 1):
        assert walk.walker_for_request(key, version) is getattr(walk, f"{name}_request")
        assert walk.walker_for_response(key, version) is getattr(walk, f"{name}_response")
    for version in (-1, api.max_version + 1, 32767):
        assert walk.walker_for_request(key, version) is None
        assert walk.walker_for_response(key, version) is None


@each("version", range(14))
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


@each("version", [7, 12, 13])
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


MANY = 2**31 - 1
OLD_HEAD = struct.pack(">hhi", -1, 1, 1000)  # transactional id, acks, timeout
NEW_HEAD = b"\0" + struct.pack(">hi", 1, 1000)


@pytest.mark.promise("architecture.md", "A hostile body is counted as malformed in the event of its request.")
@each(
    ("version", "body"),
    [
        (7, OLD_HEAD + struct.pack(">i", MANY)),
        (7, OLD_HEAD + struct.pack(">i", -1)),
        (7, OLD_HEAD + struct.pack(">i", -2)),
        (7, OLD_HEAD + struct.pack(">ih", 1, -1) + bytes(99)),
        (7, OLD_HEAD + struct.pack(">ih", 1, -2) + bytes(99)),
        (7, OLD_HEAD + struct.pack(">ihi", 1, 0, MANY) + bytes(99)),
        (7, OLD_HEAD + struct.pack(">ihi", 1, 0, -1)),
        (7, OLD_HEAD + struct.pack(">ihiii", 1, 0, 1, 0, -2)),
        (7, OLD_HEAD + struct.pack(">ihiii", 1, 0, 1, 0, MANY)),
        (7, OLD_HEAD + struct.pack(">i", 0) + b"x"),
        (7, OLD_HEAD + struct.pack(">ihiii", 1, 0, 1, 0, 61) + bytes(61)),
        (9, NEW_HEAD + b"\xff" * 10),
        (9, NEW_HEAD + b"\0"),
        (9, NEW_HEAD + b"\2\0\1\0\0"),
        (9, NEW_HEAD + b"\1\xff\xff\xff\xff\x0f" + bytes(99)),
        (9, NEW_HEAD + b"\1\1\0\xff\xff\xff\xff\x0f"),
        (9, NEW_HEAD + b"\1"),
        (9, b""),
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
