from __future__ import annotations

from typing import Any

import pytest

from observers.event import RequestEvent, TopicPartition
from observers.topics import TopicNames
from observers.translate import MAX_SESSIONS, UNKNOWN_RESULT, Scope, Translator
from tests.unit.observers.samples import (
    FETCH,
    PRINTED_ID,
    PRODUCE,
    TOPIC_ID,
    connection,
    exchange,
    fetch,
    produce,
)

AUDIT, SECRET = b"audit", b"secret"


def names() -> TopicNames:
    return TopicNames(lambda: {TOPIC_ID: "orders"}, clock=lambda: 0.0, sleep=lambda seconds: None)


def scope(**changes: Any) -> Scope:
    values: dict[str, Any] = {"topics": {"audit", "secret"}, "principals": {"User:probe"}, "client_ids": {"own"}}
    return Scope(names(), **{**values, **changes})


def event(one: Any) -> RequestEvent:
    return Translator({0: "Produce", 1: "Fetch", 3: "Metadata"}, names(), scope()).event(one, 1_700_000_000.0)


class TestEvent:
    def test_what_every_request_tells(self) -> None:
        client = connection(
            principal="User:ann", client_software_name="librdkafka", client_software_version="2.16.0", id="c9"
        )
        assert event(exchange(connection=client, decode="none")) == RequestEvent(
            seq=0,
            listener="CLIENT",
            connection_id="c9",
            correlation_id=5,
            api_key=3,
            api="Metadata",
            api_version=12,
            principal="User:ann",
            client_ip="10.0.0.7",
            ts_request=1_700_000_100_000_000,
            latency_us=2000,
            request_bytes=50,
            response_bytes=80,
            client_id="app",
            client_software_name="librdkafka",
            client_software_version="2.16.0",
        )

    def test_an_unknown_api_key_has_its_number_for_a_name(self) -> None:
        assert event(exchange(api_key=30001)).api == "ApiKey(30001)"

    def test_without_a_response_there_is_no_latency(self) -> None:
        lost = event(exchange(outcome="connection_lost", answered_at=0.0, response_bytes=0))
        assert (lost.outcome, lost.latency_us) == ("connection_lost", 0)

    def test_strings_a_client_chose_are_cut(self) -> None:
        long = event(exchange(client_id="x" * 1000, connection=connection(client_software_name="y" * 1000)))
        assert long.client_id == "x" * 255 + "…"
        assert long.client_software_name == "y" * 255 + "…"


class TestProduce:
    def test_partitions_are_joined_with_their_answers_by_topic_and_number(self) -> None:
        got = event(produce([(b"a", 0, 100, 3), (b"b", 0, 20, 1), (b"a", 1, 5, 1)]))
        assert (got.acks, got.throttle_ms) == (-1, 4)
        assert [(t.topic, t.partition, t.bytes, t.records, t.base_offset) for t in got.topics] == [
            ("a", 0, 100, 3, 500),
            ("b", 0, 20, 1, 500),
            ("a", 1, 5, 1, 501),
        ]
        assert {(t.error_code, t.producer_id, t.base_sequence) for t in got.topics} == {(0, 7, 3)}

    def test_a_refused_partition_has_the_brokers_error(self) -> None:
        assert [t.error_code for t in event(produce([(b"a", 0, 100, 3)], error_code=29)).topics] == [29]

    def test_topic_ids_are_named_and_kept(self) -> None:
        (topic,) = event(produce([(TOPIC_ID, 0, 100, 3)], ids=True)).topics
        assert (topic.topic, topic.topic_id, topic.error_code) == ("orders", PRINTED_ID, 0)

    @pytest.mark.parametrize("outcome", ["no_response", "connection_lost"])
    def test_without_a_response_the_outcome_tells_and_no_error_is_invented(self, outcome: str) -> None:
        got = event(produce([(b"a", 0, 100, 3)], outcome=outcome, response=None))
        assert got.outcome == outcome
        assert got.topics == (
            TopicPartition(topic="a", partition=0, bytes=100, records=3, producer_id=7, base_sequence=3),
        )

    def test_an_answer_that_could_not_be_read_is_not_taken_for_success(self) -> None:
        got = event(produce([(b"a", 0, 100, 3)], response=None, decode="malformed"))
        assert [t.error_code for t in got.topics] == [UNKNOWN_RESULT]

    def test_a_body_that_could_not_be_read_gives_an_event_without_topics(self) -> None:
        got = event(exchange(api_key=PRODUCE, decode="malformed"))
        assert (got.api, got.decode, got.acks, got.topics) == ("Produce", "malformed", None, ())

    def test_excluded_topics_are_left_out_of_a_mixed_request(self) -> None:
        assert [t.topic for t in event(produce([(SECRET, 0, 9, 1), (b"a", 0, 100, 3)])).topics] == ["a"]


class TestFetch:
    def test_only_partitions_with_records_or_an_error_are_told(self) -> None:
        got = event(fetch([(b"a", 0)], [(b"a", 0, 50, 2, 0), (b"a", 1, 0, 0, 0), (b"a", 2, 0, 0, 6)]))
        assert got.max_wait_ms == 500
        assert got.topics == (
            TopicPartition(topic="a", partition=0, bytes=50, records=2, base_offset=40),
            TopicPartition(topic="a", partition=2, error_code=6),
        )

    def test_a_fetch_that_was_never_answered_tells_what_it_asked_to_wait(self) -> None:
        got = event(fetch([(b"a", 0)], [], outcome="connection_lost", response=None))
        assert (got.outcome, got.max_wait_ms, got.topics) == ("connection_lost", 500, ())


class TestScope:
    def test_ordinary_traffic_is_seen(self) -> None:
        for one in (exchange(), produce([(b"a", 0, 1, 1)]), fetch([(b"a", 0)], []), fetch([], [])):
            assert not scope().hides(one)

    def test_excluded_principals_are_hidden(self) -> None:
        assert scope().hides(exchange(connection=connection(principal="User:probe")))

    def test_only_excluded_topics_hide_an_exchange(self) -> None:
        assert scope().hides(produce([(AUDIT, 0, 1, 1), (SECRET, 0, 1, 1)]))
        assert not scope().hides(produce([(AUDIT, 0, 1, 1), (b"a", 0, 1, 1)]))
        assert scope().hides(fetch([(AUDIT, 0)], [(AUDIT, 0, 10, 1, 0)]))
        assert scope().hides(fetch([(AUDIT, 0)], [], outcome="connection_lost", response=None))

    def test_excluded_topics_are_known_by_their_ids(self) -> None:
        by_id = produce([(TOPIC_ID, 0, 1, 1)], ids=True)
        assert scope(topics={"orders"}).hides(by_id)
        assert not scope().hides(by_id)

    def test_the_own_client_id_hides_calls_without_topics_and_no_access_to_data(self) -> None:
        assert scope().hides(exchange(client_id="own"))
        assert not scope().hides(produce([(b"a", 0, 1, 1)], client_id="own"))
        assert not scope().hides(fetch([(b"a", 0)], [], client_id="own"))

    def test_idle_fetches_of_a_session_on_excluded_topics_are_hidden_too(self) -> None:
        """A consumer of the audit topic must not cause an event each time it finds nothing."""
        seen = scope()
        assert seen.hides(fetch([(AUDIT, 0)], [], session_epoch=0, answered_session=77))
        idle = fetch([], [], session_id=77, session_epoch=1, answered_session=77)
        assert seen.hides(idle)
        assert not seen.hides(fetch([], [], session_id=78, session_epoch=1, answered_session=78))
        assert not seen.hides(fetch([(b"a", 0)], [], session_id=77, session_epoch=2, answered_session=77))
        assert not seen.hides(idle), "the session now has a topic that is not excluded"

    def test_a_session_that_began_with_a_visible_topic_stays_visible(self) -> None:
        seen = scope()
        assert not seen.hides(fetch([(AUDIT, 0), (b"a", 0)], [], session_epoch=0, answered_session=5))
        assert seen.hides(fetch([], [(AUDIT, 0, 1, 1, 0)], session_id=5, session_epoch=1, answered_session=5))
        assert not seen.hides(fetch([], [], session_id=5, session_epoch=2, answered_session=5))

    def test_sessions_remembered_are_bounded(self) -> None:
        seen = scope()
        for session in range(1, MAX_SESSIONS + 2):
            seen.hides(fetch([(AUDIT, 0)], [], session_epoch=0, answered_session=session))
        assert not seen.hides(fetch([], [], session_id=1, session_epoch=1)), "the oldest is forgotten"
        assert seen.hides(fetch([], [], session_id=2, session_epoch=1))

    def test_a_body_that_was_not_read_hides_nothing(self) -> None:
        assert not scope().hides(exchange(api_key=FETCH, decode="unsupported"))
