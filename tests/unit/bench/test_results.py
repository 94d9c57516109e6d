"""Medians and ratios: within a round, never across rounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.results import Measurement, Results, Summary, ratios_within, rotated, summary
from tests.unit.bench.samples import results


def test_ratios_are_of_the_same_round() -> None:
    assert ratios_within({0: 2.0, 1: 6.0, 2: 5.0}, {0: 1.0, 1: 2.0}) == [2.0, 3.0]


def test_the_median_of_ratios_is_not_the_ratio_of_medians() -> None:
    ratios = ratios_within({0: 1.0, 1: 3.0, 2: 8.0}, {0: 1.0, 1: 1.0, 2: 4.0})
    assert summary(ratios) == Summary(median=2.0, least=1.0, greatest=3.0)


def test_without_the_reference_there_is_no_ratio() -> None:
    assert ratios_within({0: 1.0}, {}) == []


def test_a_reference_of_zero_gives_no_ratio() -> None:
    assert ratios_within({0: 1.0}, {0: 0.0}) == []


def test_nothing_measured_has_no_summary() -> None:
    assert summary([]) is None


@pytest.mark.parametrize(("by", "first"), [(0, "a"), (1, "b"), (3, "a"), (5, "c")])
def test_each_round_begins_with_another_one(by: int, first: str) -> None:
    turned = rotated("abc", by)
    assert turned[0] == first
    assert sorted(turned) == ["a", "b", "c"]


def test_nobody_can_be_rotated() -> None:
    assert rotated([], 2) == []


def test_a_failed_measurement_has_no_figure() -> None:
    made = results({("small", "haproxy"): {"cpu_us": [10.0]}})
    made.measurements.append(Measurement("small", "haproxy", 1, {}, error="it ended"))
    assert made.by_round("small", "haproxy", "cpu_us") == {0: 10.0}


def test_the_audit_costs_what_it_adds_within_a_round() -> None:
    made = results(
        {
            ("small", "brokerside"): {"cpu_us": [12.0, 20.0, 13.0]},
            ("small", "brokerside-audit"): {"cpu_us": [14.0, 21.5, 16.0], "log_bytes_per_event": [15.0, 15.0, 16.0]},
        }
    )
    assert made.by_round("audit", "brokerside-audit", "cpu_us") == {0: 2.0, 1: 1.5, 2: 3.0}
    assert made.by_round("audit", "brokerside-audit", "log_bytes_per_event") == {0: 15.0, 1: 15.0, 2: 16.0}
    assert made.by_round("audit", "brokerside", "cpu_us") == {}


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    made = results({("small", "haproxy"): {"cpu_us": [10.0, 11.0]}}, missing={"nginx": "not here"})
    made.save(tmp_path / "bench.json")
    assert Results.load(tmp_path / "bench.json") == made
