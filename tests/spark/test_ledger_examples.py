"""Every table's example query and every question has an answer on the scripted load, and the docs show it."""

from __future__ import annotations

import pytest

from tests.ledger import examples
from tests.ledger.build import Built

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(600)]


def test_the_committed_pages_are_what_the_tables_answer(ledger_root: Built) -> None:
    for name, text in examples.pages(ledger_root.root).items():
        assert (examples.DOCS / name).read_text() == text, "run: python -m tests.ledger.examples"
