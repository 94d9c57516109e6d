"""Pings: their beat, who asks for one, their watchers, and when a consumer has failed."""

import pytest

from proxy.coordinator.events import ConnectionBuffered
from proxy.coordinator.wire import PING, START_FETCHER, PingRequest
from tests.unit.coordinator.driver import Driver, owned


@pytest.mark.promise("coordinator.md", "The coordinator pings each consumer every third of its session timeout.")
def test_pings_have_a_beat_and_two_at_most_are_unanswered() -> None:
    driver = Driver(max_ping_retries=10)
    (c1,) = driver.stable("c1")
    driver.advance(9000)
    assert c1.times(PING) == [2000, 4000, 6000, 8000, 10_000]
    c1.answers = False
    driver.advance(20_000)
    numbers = [frame.request.num_retries for _, frame in c1.received if isinstance(frame.request, PingRequest)]
    assert numbers == [0] * 7, "a third ping is withheld while two are unanswered"
    assert driver.count("pings_total", "withheld") == 8
    c1.answer_all()
    driver.advance(2000)
    assert c1.last(PING).request == PingRequest("c1", 0)


def test_after_a_pause_there_is_one_ping_on_the_beat() -> None:
    driver = Driver(state_write_timeout_ms=60_000)
    (c1,) = driver.stable("c1")
    driver.now += 10_500
    driver.do(None)
    assert c1.times(PING) == [11_500]
    driver.advance(1000)
    assert c1.times(PING) == [11_500, 12_000]


@pytest.mark.promise(
    "config/coordinator.md", "A consumer has failed with one ping more than `max.ping.retries` in a row unanswered."
)
def test_a_consumer_fails_t_and_n_beats_after_the_last_ping_that_it_answered() -> None:
    for retries, verdict in ((1, 8000), (2, 10_000), (3, 12_000)):
        driver = Driver(max_ping_retries=retries)
        (c1,) = driver.stable("c1")
        driver.advance(1000)
        c1.answers = False
        driver.advance(verdict - 1)
        assert c1.closed is None, retries
        driver.advance(1)
        assert c1.closed == "consumer_failed", retries
    driver = Driver(max_ping_retries=1)
    (c1,) = driver.stable("c1")
    for _ in range(10):
        c1.answers = False
        driver.advance(2000)
        c1.answers = True
        driver.advance(18_000)
    assert c1.closed is None, "failures count in a row: one lost ping in ten never kills"


@pytest.mark.promise(
    "consumer-protocol.md", "The coordinator answers a repeated response with a ping at once, twice between two beats."
)
def test_a_repeated_response_asks_for_a_ping_at_once() -> None:
    driver = Driver()
    (c1,) = driver.stable("c1")
    driver.do(c1.response(c1.last(START_FETCHER).correlation_id, START_FETCHER))
    assert c1.times(PING) == [1000], "of StartFetcher, too"
    driver.advance(1000)
    first = c1.last(PING)
    driver.advance(1000)
    for _ in range(4):
        c1.answer(c1.last(PING))
    assert c1.times(PING) == [1000, 2000, 3000, 3000], "two between two of the beat, which stays as it was"
    assert (driver.count("offsets_total"), driver.count("pings_total", "late")) == (0, 0)
    driver.advance(1000)
    c1.answer(first)
    assert c1.times(PING)[4:] == [4000], "it was never the last one"
    assert driver.count("pings_total", "late") == 1
    answered = c1.last(PING)
    c1.answers = False
    driver.advance(2000)
    c1.answer(answered)
    assert c1.times(PING)[5:] == [6000], "one is unanswered"
    c1.answer_all()
    driver.writes_hang = True
    driver.advance(20_000)
    pings = len(c1.times(PING))
    c1.answer(c1.last(PING))
    assert len(c1.times(PING)) == pings, "the coordinator is mute"


@pytest.mark.promise("coordinator.md", "The partitions of a killed consumer move when its connection ends.")
def test_when_partitions_are_free_whose_connection_has_ended() -> None:
    driver = Driver()
    c1, c2 = driver.stable("c1", "c2")
    driver.advance(3500)
    successor = driver.successor()
    c2.end(by_peer=True)
    assert driver.logs("consumer_gone")[-1]["free_in_ms"] == 0, "a FIN: it has stopped"
    driver.advance(1000)
    assert len(owned([c1])) == 4

    driver = Driver()
    c1, c2 = driver.stable("c1", "c2")
    driver.advance(3500)
    c2.end(by_peer=False)
    driver.advance(1000)
    assert owned([c1]) == [("t", 0), ("t", 1)], "a reset is as silence"
    driver.advance(8000 - 1500 + 200)
    assert len(owned([c1])) == 4

    driver = Driver()
    _, c2 = driver.stable("c1", "c2")
    driver.do(ConnectionBuffered(c2.connection))
    driver.advance(1500)
    c2.end(by_peer=False)
    assert driver.logs("consumer_gone")[-1]["free_in_ms"] == 8000, "what is buffered may be sent up to the end"

    successor.register("c1", fetches={})
    successor.register("c2", answers=False).end(by_peer=True)
    assert successor.logs("consumer_gone")[-1]["free_in_ms"] == 13_100, "it may be another connection of it"
    successor.advance(1000)
    assert len(owned(list(successor.consumers.values()))) < 4


def test_response_to_nothing_or_of_another_ends_the_connection() -> None:
    for wrong in ({"correlation_id": 0}, {"correlation_id": 99}, {"consumer_id": "c2"}, {"api_key": 30_011}):
        driver = Driver()
        (c1,) = driver.stable("c1", answers=False)
        driver.advance(1500)
        frame = c1.last(PING)
        fields = {"correlation_id": frame.correlation_id, "api_key": frame.api_key, **wrong}
        driver.do(c1.response(**fields))
        assert c1.closed == "consumer_malformed", wrong
