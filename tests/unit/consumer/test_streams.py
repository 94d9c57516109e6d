"""What an application gets from its streams, with a membership in virtual time."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from proxy.client.consumer import streams
from proxy.client.consumer.errors import ConsumerFailed
from proxy.client.consumer.events import LinkEnded, LinkFailed
from proxy.client.consumer.streams import FetchedMessage, HandoutGate, MessageStream
from proxy.coordinator import wire
from tests.unit.consumer.driven import LEASE, T0_AT_42, Driven, joined, responses

SECONDS = 20.0


class Streamed:
    """A consumer that fetches partition 0 of t from offset 42 on, and its stream."""

    def __init__(self) -> None:
        self.driven: Driven = joined()
        self.driven.start(T0_AT_42)
        self.gate = HandoutGate(self.driven.machine, lambda: self.driven.now)
        self.stream = MessageStream(self.gate)

    def put(self, *offsets: int, epoch: int | None = None, size: int = 1) -> None:
        """Messages that are their offsets."""
        if epoch is None:
            epoch = self.driven.assigned[0].epoch
        self.stream.put([FetchedMessage(message(one), "t", 0, epoch, one, size) for one in offsets])

    def changed(self, change: Callable[[], object]) -> None:
        """As the thread of the membership does it."""
        with self.gate.lock:
            change()
            self.stream.refresh()

    def end(self, error: str | None = None) -> None:
        with self.gate.lock:
            self.gate.has_ended, self.gate.error = True, error
            self.stream.refresh()


def message(offset: int) -> Any:
    return offset


@pytest.fixture
def streamed() -> Streamed:
    return Streamed()


@pytest.mark.promise("consumer.md", "A message counts as consumed from when its stream returns it, not before.")
def test_messages_come_in_order_and_what_is_handed_out_is_consumed(streamed: Streamed) -> None:
    streamed.put(42, 43, 44)
    (response,) = responses(streamed.driven.ping())
    assert response.offsets == ()
    assert [next(streamed.stream), next(streamed.stream)] == [42, 43]
    (response,) = responses(streamed.driven.ping())
    assert response.offsets == (wire.ConsumedOffset("t", 1, 0, 44),)


def test_what_an_earlier_assignment_has_fetched_is_dropped(streamed: Streamed) -> None:
    old = streamed.driven.assigned[0].epoch
    streamed.put(42, 43)
    assert streamed.stream.poll(0) == message(42)
    streamed.changed(streamed.driven.stop)
    assert streamed.stream.poll(0) is None
    streamed.changed(lambda: streamed.driven.start((("t", 0, 43),)))
    assert streamed.stream.poll(0) is None
    streamed.put(43, 44, epoch=old)
    assert streamed.stream.poll(0) is None
    streamed.put(43)
    assert streamed.stream.poll(0) == message(43)


@pytest.mark.promise(
    "consumer.md", "A consumer's stream hands out nothing after its lease, even if nobody has noticed."
)
def test_messages_wait_while_it_is_held_and_after_the_lease_none_is_handed_out(streamed: Streamed) -> None:
    streamed.put(42, 43, 44)
    streamed.driven.ping()
    streamed.changed(lambda: streamed.driven.lose(LinkEnded("reset")))
    assert streamed.stream.poll(0) is None
    streamed.changed(lambda: streamed.driven.lose(LinkFailed("refused", refused=True)))
    assert streamed.stream.poll(0) == message(42)
    streamed.driven.now = LEASE - 1
    assert streamed.stream.poll(0) == message(43)
    streamed.driven.now = LEASE
    assert streamed.stream.poll(0) is None, "even if nobody has noticed"


def test_one_who_waits_gets_a_message_or_the_end_that_comes(streamed: Streamed) -> None:
    assert not streamed.stream.is_starving
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, streamed.stream)
        while not streamed.stream.is_starving:
            assert not waiting.done()
        streamed.put(42)
        assert waiting.result(SECONDS) == 42
        assert not streamed.stream.is_starving
        rest = pool.submit(list, streamed.stream)
        streamed.end()
        assert rest.result(SECONDS) == []


def test_an_error_is_raised_again_and_again(streamed: Streamed) -> None:
    streamed.put(42)
    streamed.end("group g has other members")
    for _ in range(2):
        with pytest.raises(ConsumerFailed, match="group g has other members"):
            streamed.stream.poll(0)


@pytest.mark.promise("consumer.md", "A stream with 1,000 messages or 8 MiB that nobody takes is not fetched any more.")
def test_it_is_full_by_number_until_it_is_half_empty_or_by_size(streamed: Streamed, monkeypatch) -> None:
    assert (streams.MAX_STREAM_MESSAGES, streams.MAX_STREAM_BYTES) == (1000, 8 * 1024 * 1024)
    monkeypatch.setattr(streams, "MAX_STREAM_MESSAGES", 4)
    calls: list[bool] = []
    streamed.gate.room_made = lambda: calls.append(True)
    streamed.put(42, 43, 44)
    assert not streamed.stream.is_full
    streamed.put(45)
    assert streamed.stream.is_full
    next(streamed.stream)
    assert streamed.stream.is_full
    assert calls == []
    next(streamed.stream)
    assert not streamed.stream.is_full
    assert calls == [True]
    streamed.put(46, size=streams.MAX_STREAM_BYTES)
    assert streamed.stream.is_full
    streamed.changed(streamed.driven.stop)
    assert not streamed.stream.is_full


def test_an_application_stands_still_if_messages_wait_and_it_does_not(streamed: Streamed) -> None:
    streamed.driven.now = 1000
    assert streamed.stream.untaken_ms() == 0
    streamed.put(42, 43)
    streamed.driven.now = 1500
    assert streamed.stream.untaken_ms() == 500
    next(streamed.stream)
    assert streamed.stream.untaken_ms() == 0
    streamed.driven.now = 1600
    assert streamed.stream.untaken_ms() == 100
    next(streamed.stream)
    streamed.driven.now = 1700
    assert streamed.stream.untaken_ms() == 0
