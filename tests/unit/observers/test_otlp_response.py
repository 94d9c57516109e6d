"""What a collector's response means, as OTLP says."""

from __future__ import annotations

from email.utils import formatdate

import pytest

from observers.otlp_response import DELIVERED, MAX_RETRY_AFTER, ExportOutcome, outcome_of, retry_delay
from observers.record_sender import FIRST_RETRY_DELAY, LAST_RETRY_DELAY

NOW = 1_795_260_000.0


@pytest.mark.promise("opentelemetry.md", "A collector's Retry-After is waited for, up to 5 minutes.")
def test_the_pause_that_a_collector_asks_for_is_bounded() -> None:
    for text, seconds in (
        ("", 0),
        ("7", 7),
        ("0", 0),
        ("999999999", MAX_RETRY_AFTER),
        ("9" * 400, 0),
        ("-7", 0),
        ("soon", 0),
        ("nan", 0),
        (formatdate(NOW + 42, usegmt=True), 42),
        (formatdate(NOW - 42, usegmt=True), 0),
        ("Tue, 99 Nov 2026 00:00:00 GMT", 0),
        ("Tue, 24 Nov 99999999999999 00:00:00 GMT", 0),
    ):
        outcome = outcome_of(503, {"retry-after": text}, b"", NOW)
        assert (outcome.reason, outcome.retry_after) == ("http_503", seconds), text


def test_a_success_is_a_delivery_unless_its_body_is_too_large_to_say_what_was_refused() -> None:
    for status in (200, 202, 204, 299):
        assert outcome_of(status, {}, b"{}", NOW) == DELIVERED
    assert outcome_of(200, {}, None, NOW) == ExportOutcome("response_too_large")
    assert outcome_of(503, {}, None, NOW).retry_after == 0
    assert outcome_of(400, {}, None, NOW) == ExportOutcome("http_400")


def test_pauses_grow_up_to_a_bound_and_vary() -> None:
    pauses = [retry_delay(attempt, 0, 1.0) for attempt in range(2000)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (FIRST_RETRY_DELAY, LAST_RETRY_DELAY)
    assert retry_delay(0, 0, 0.0) == FIRST_RETRY_DELAY / 2
    assert retry_delay(0, 30, 0.0) == 30
