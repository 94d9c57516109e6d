"""The list of defects that the tests must catch."""

from __future__ import annotations

import pytest

from tests.tools.defects import ROOT, defects, problems


@pytest.mark.promise("CONTRIBUTING.md", "Each listed defect fits the code, and names tests that should catch it.")
def test_each_defect_can_be_planted_and_names_its_tests() -> None:
    assert list(problems(defects(), ROOT)) == []
