"""What the event of a throttle contains."""

from __future__ import annotations

import msgspec
import pytest

from observers.event import ThrottleEvent
from observers.numbered_events import encode_throttle_reports
from tests.unit.observers.samples import report

GOLDEN = (
    b'{"kind":"throttle","seq":7,"listener":"CLIENT","client_ip":"10.0.0.7","scope":"ip",'
    b'"quota":"connection_creation_rate","action":"hold","count":3,"limit":20,"observed":21.5,'
    b'"ts_first":1700000100000000,"ts_last":1700000100250000,"delay_ms":750}'
)


def test_the_bytes_of_an_event() -> None:
    made = encode_throttle_reports([report()], 7, 1_700_000_000.0)
    assert [(chunk.first, chunk.count, chunk.json) for chunk in made.chunks] == [(7, 1, GOLDEN)]
    assert made.last == 7


def test_an_event_says_what_its_report_says_and_leaves_out_what_is_nothing() -> None:
    dropped = report(
        address="*", scope="broker", quota="connections", action="drop", limit=100, observed=101 / 3, delay_ms=0
    )
    (chunk,) = encode_throttle_reports([dropped], 1, 0.0).chunks
    assert b"delay_ms" not in chunk.json
    assert msgspec.json.decode(chunk.json, type=ThrottleEvent) == ThrottleEvent(
        seq=1,
        listener="CLIENT",
        client_ip="*",
        scope="broker",
        quota="connections",
        action="drop",
        count=3,
        limit=100,
        observed=33.667,
        ts_first=100_000_000,
        ts_last=100_250_000,
    )


def test_of_a_principal_s_limit_the_event_names_the_principal() -> None:
    (chunk,) = encode_throttle_reports([report(scope="principal", principal="User:alice")], 1, 0.0).chunks
    reported = msgspec.json.decode(chunk.json, type=ThrottleEvent)
    assert (reported.scope, reported.principal, reported.client_ip) == ("principal", "User:alice", "10.0.0.7")


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_json_cannot_say_loses_that_event_alone_with_its_number(number: float) -> None:
    made = encode_throttle_reports([report(), report(observed=number), report()], 1, 0.0)
    assert [(chunk.first, chunk.count) for chunk in made.chunks] == [(1, 1), (3, 1)]
    assert (made.last, made.failed) == (3, 1)
