from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from observers.event import Envelope, RequestEvent, ThrottleEvent, TopicPartition, encoder
from observers.reference import EXAMPLE, _meanings, markdown

PAGE = Path(__file__).parents[3] / "docs" / "audit-event.md"


def test_the_committed_page_is_what_the_code_says() -> None:
    assert PAGE.read_text() == markdown(), "run: python -m observers.reference > docs/audit-event.md"


@pytest.mark.parametrize("struct", [Envelope, RequestEvent, ThrottleEvent, TopicPartition])
def test_every_field_says_what_it_means(struct: type[msgspec.Struct]) -> None:
    assert set(_meanings(struct)) == {field.name for field in msgspec.structs.fields(struct)}


def test_the_example_follows_the_rules_it_illustrates() -> None:
    assert msgspec.json.decode(encoder.encode(EXAMPLE), type=Envelope) == EXAMPLE
    assert [e.seq for e in EXAMPLE.events] == list(range(EXAMPLE.first_seq, EXAMPLE.last_seq + 1))
