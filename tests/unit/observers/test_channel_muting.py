"""How long a request waited because its connection was left unread, in both modes."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from observers.audit_filter import AuditFilter
from observers.audit_writer import RequestEventEncoder
from observers.channel_muting import MAX_MUTED_CONNECTIONS, MAX_SPANS_PER_CONNECTION
from observers.connection_writer import encode_connection_changes
from observers.event import RequestEvent
from observers.topic_names import TopicNames
from proxy.compiled.exchange import Exchange
from tests.unit.observers.samples import change, connection, exchange

API_NAMES = {0: "Produce", 1: "Fetch", 3: "Metadata"}
SCOPED = {"topics": {"hidden"}, "principals": {"User:probe"}}

Muted = Callable[..., list[int]]


@pytest.fixture
def audit_filter() -> AuditFilter:
    return AuditFilter(TopicNames(dict), **SCOPED)


@pytest.fixture
def muted(audit_filter: AuditFilter) -> Muted:
    """``muted_us`` of the events of exchanges."""
    translator = RequestEventEncoder(API_NAMES, TopicNames(dict), audit_filter)

    def call(*exchanges: Exchange) -> list[int]:
        made = translator.encode_exchanges(exchanges, 1, 0.0)
        events = [each for chunk in made.chunks for each in msgspec.json.decode(b"[%b]" % chunk.json)]
        return [msgspec.convert(each, RequestEvent).muted_us for each in events]

    return call


def one(came: float, went: float, throttle_ms: int = 0, **changes: Any) -> Exchange:
    """A request that came and was answered at these times."""
    times = {"received_at": came, "forwarded_at": came, "responded_at": went, "answered_at": went}
    return exchange(**{**times, "throttle_ms": throttle_ms, **changes})


@pytest.mark.promise("audit-event.md", "An event says how long its connection was left unread for a throttle.")
def test_a_request_waits_for_the_rest_of_the_throttle_time_of_those_before_it(muted: Muted) -> None:
    for exchanges, expected in (
        ([one(1.0, 2.0, 500)], [0]),  # itself was not muted
        ([one(2.25, 2.75)], [250_000]),
        ([one(2.75, 3.0)], [0]),  # it is over
        ([one(11.0, 12.0, 500), one(11.5, 12.75)], [0, 500_000]),  # what had come before waits from the answer on
        # several times
        ([one(21.0, 22.0, 500), one(21.0, 23.0, 1000), one(21.0, 24.5), one(23.5, 25.0)],
         [0, 500_000, 1_500_000, 500_000]),
        # no time is counted twice
        ([one(31.0, 32.0, 2000), one(31.0, 33.0, 2000), one(31.0, 33.5, 500), one(31.0, 39.0)],
         [0, 1_000_000, 1_500_000, 3_000_000]),
        ([one(41.0, 42.0, 60_000), one(42.5, 43.0)], [0, 500_000]),  # at most the latency
        ([one(111.0, 112.0, 500), one(112.0, 113.0, connection=connection(id="c2"))], [0, 0]),  # others are read
    ):  # fmt: skip
        assert muted(*exchanges) == expected, exchanges


def test_what_is_kept_is_bounded_and_nothing_of_a_connection_that_is_read_again_or_has_ended(
    muted: Muted, audit_filter: AuditFilter
) -> None:
    muted(one(1.0, 2.0, 500))
    assert set(audit_filter.muting.spans) == {"c1"}
    muted(one(2.5, 2.75))
    assert not audit_filter.muting.spans
    muted(one(3.0, 4.0, 500))
    encode_connection_changes([change(change="closed")], 1, 0.0, audit_filter)
    assert not audit_filter.muting.spans
    muted(*[one(0.0, n, 500) for n in range(1, MAX_SPANS_PER_CONNECTION + 2)])
    assert [begin for begin, _ in audit_filter.muting.spans["c1"]] == list(range(2, MAX_SPANS_PER_CONNECTION + 2))
    muted(*[one(1.0, 2.0, 500, connection=connection(id=str(n))) for n in range(MAX_MUTED_CONNECTIONS)])
    assert len(audit_filter.muting.spans) == MAX_MUTED_CONNECTIONS
    assert "c1" not in audit_filter.muting.spans
