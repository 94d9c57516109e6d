"""Every table's example query and every question has an answer on the scripted load, and the docs show it."""

from __future__ import annotations

import pytest

from tests.ledger import examples
from tests.ledger.build import Built

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(600)]


def test_the_committed_page_is_what_the_tables_answer(ledger_root: Built) -> None:
    assert examples.PAGE.read_text() == examples.markdown(ledger_root.root), "run: python -m tests.ledger.examples"
