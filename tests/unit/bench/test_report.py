"""Tables, goals and the picture."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from proxy.errors import LocalError
from tests.bench.plot import svg
from tests.bench.report import BEGIN, END, SECTIONS, Goal, filled, goal_rows, markdown, section_rows, text, verdict
from tests.bench.results import REFERENCE, Measurement
from tests.unit.bench.samples import results

SMALL = SECTIONS[0]
FIGURES = {
    ("small", "direct"): {"per_s": [90_000.0, 91_000.0, 89_000.0]},
    ("small", "haproxy"): {"cpu_us": [12.0, 12.5, 11.0], "per_s": [60_000.0, 58_000.0, 59_000.0]},
    ("small", "brokerside"): {"cpu_us": [12.6, 14.0, 11.0], "per_s": [60_000.0, 29_000.0, 59_000.0]},
}


def test_a_row_has_median_spread_and_ratio() -> None:
    rows = section_rows(results(FIGURES), SMALL)
    assert rows == [
        ["2 CPUs", "CPU µs/request", "×", "requests/s", "×"],
        ["the direct", "–", "–", "90,000 (89,000–91,000)", "1.51 (1.50–1.57)"],
        ["the haproxy", "12.0 (11.0–12.5)", "1.00", "59,000 (58,000–60,000)", "1.00"],
        ["the brokerside", "12.6 (11.0–14.0)", "1.05 (1.00–1.12)", "59,000 (29,000–60,000)", "1.00 (0.50–1.00)"],
    ]


def test_who_was_not_measured_has_no_row_and_what_was_not_has_no_column() -> None:
    made = results({("small", "haproxy"): {"cpu_us": [12.0]}, ("paced", "nginx"): {"p50_us": [100.0]}})
    assert section_rows(made, SMALL) == [["2 CPUs", "CPU µs/request", "×"], ["the haproxy", "12.0", "1.00"]]


def test_a_goal_is_reached_by_the_median_of_the_ratios() -> None:
    cpu = {
        ("small", "haproxy"): {"cpu_us": [12.0, 13.0, 12.5]},
        ("small", "brokerside"): {"cpu_us": [12.0, 13.1, 12.5]},
    }
    rows = goal_rows(results(cpu))
    assert rows[0][0] == "goal, on 2 CPUs"
    assert rows[1] == [
        "CPU per small request, no observer", "1.00 (1.00–1.01) × haproxy", "≤ 1.10 × haproxy", "reached"
    ]  # fmt: skip


LESS = Goal("", "", "", "brokerside", REFERENCE, 0.5)
MORE = Goal("", "", "", "brokerside", REFERENCE, 2.0, at_least=True)


@pytest.mark.parametrize(
    ("goal", "own", "reference", "said"),
    [
        (LESS, [4.0, 4.9, 4.5], [10.0, 12.0, 11.0], "reached"),
        (LESS, [4.0, 5.0, 4.5], [10.0, 12.0, 11.0], "reached"),  # its worst is as good as the bound's best
        (LESS, [4.0, 5.1, 4.5], [10.0, 12.0, 11.0], "not decided (ranges overlap)"),
        (LESS, [4.0], [10.0], "not decided (one round)"),
        (LESS, [6.0, 6.2, 5.4], [10.0, 12.0, 11.0], "not reached"),
        (MORE, [25.0, 24.0, 26.0], [10.0, 12.0, 11.0], "reached"),
        (MORE, [25.0, 23.9, 26.0], [10.0, 12.0, 11.0], "not decided (ranges overlap)"),
        (MORE, [21.0, 23.0, 24.0], [10.0, 12.0, 11.0], "not decided (ranges overlap)"),
        (MORE, [19.0, 23.0, 21.0], [10.0, 12.0, 11.0], "not reached"),
        (LESS._replace(every=True), [0.4, 0.5, 0.3], [1.0, 1.0, 1.0], "reached"),
        (LESS._replace(every=True), [0.4, 0.6, 0.3], [1.0, 1.0, 1.0], "not reached"),
    ],
)
def test_a_goal_is_reached_where_ranges_do_not_overlap(
    goal: Goal, own: list[float], reference: list[float], said: str
) -> None:
    ratios = [a / b for a, b in zip(own, reference, strict=True)]
    assert verdict(goal, own, reference, ratios) == said


def test_a_goal_that_is_missed_says_so() -> None:
    made = results({("small", "haproxy"): {"cpu_us": [10.0]}, ("small", "brokerside"): {"cpu_us": [11.5]}})
    assert goal_rows(made)[1][-1] == "not reached"


def test_a_goal_that_asks_for_more_is_reached_from_above() -> None:
    made = results({("storm", "haproxy"): {"per_s": [100.0] * 2}, ("storm", "brokerside-audit"): {"per_s": [61.0] * 2}})
    (row,) = [row for row in goal_rows(made) if "0.60" in row[2]]
    assert row[-1] == "reached"


@pytest.mark.parametrize("failed", [{}, {"small_ratio": 1.0, "small_errors": 1.0}])
def test_a_goal_for_every_round_is_missed_by_a_round_that_failed(failed: dict[str, float]) -> None:
    made = results({("features", "brokerside"): {"small_ratio": [1.0, 1.0]}})
    assert goal_rows(made)[1][-1] == "reached"
    made.measurements.append(Measurement("features", "brokerside", 2, failed))
    assert goal_rows(made)[1][-1] == "not reached"


def test_a_goal_against_who_is_missing_is_open() -> None:
    made = results(
        {("small", "haproxy"): {"cpu_us": [10.0] * 2}, ("small", "brokerside-audit"): {"cpu_us": [11.0] * 2}}
    )
    assert [row[-1] for row in goal_rows(made)[1:]] == ["reached", "kafka-proxy is missing"]


def test_an_absolute_goal_needs_no_reference() -> None:
    made = results({("idle", "brokerside-audit"): {"kib_9500": [4.0, 5.0, 4.5]}})
    assert goal_rows(made)[1][1:] == ["4.50 (4.00–5.00)", "≤ 5.00", "reached"]
    made = results({("idle", "brokerside-audit"): {"kib_9500": [4.0, 6.0, 4.5]}})
    assert goal_rows(made)[1][1:] == ["4.50 (4.00–6.00)", "≤ 5.00", "not decided (ranges overlap)"]


def test_nobody_disappears_in_silence() -> None:
    made = results(FIGURES, missing={"nginx": "apt-get install nginx"}, skipped={"workers": "no such key"})
    made.measurements.append(Measurement("fetch", "haproxy", 2, {}, error="it does not listen\nmore"))
    said = text(made)
    assert "nginx: apt-get install nginx" in said
    assert "workers: no such key" in said
    assert "fetch of haproxy, round 3: it does not listen\n" in said + "\n"


def test_use_of_the_machine_by_others_is_said() -> None:
    made = results(FIGURES)
    made.measurements.append(Measurement("fetch", "haproxy", 0, {}, foreign=0.4))
    assert "In 1 of 10 measurements others used more than 25% of a CPU, at most 40%." in text(made)


def test_a_quick_run_says_that_its_figures_mean_nothing() -> None:
    made = results(FIGURES)
    assert "mean nothing" not in text(made)
    made.quick = True
    assert "mean nothing" in text(made)


def test_markdown_has_a_table_for_each_section() -> None:
    lines = markdown(results(FIGURES)).splitlines()
    assert "### Small requests" in lines
    assert "| the haproxy | 12.0 (11.0–12.5) | 1.00 | 59,000 (58,000–60,000) | 1.00 |" in lines
    assert "|---|---:|---:|---:|---:|" in lines
    assert "### Bulk fetch" not in lines


def test_figures_replace_those_of_a_page_and_nothing_else() -> None:
    page = f"# Title\n{BEGIN}\nold\n{END}\nrest\n"
    once = filled(page, results(FIGURES), "images/p.svg")
    assert once.startswith(f"# Title\n{BEGIN}\n![")
    assert once.endswith(f"\n{END}\nrest\n")
    assert "old" not in once
    assert filled(once, results(FIGURES), "images/p.svg") == once


def test_a_page_without_a_place_for_figures_is_refused() -> None:
    with pytest.raises(LocalError, match="no place for figures"):
        filled(f"{END}\n{BEGIN}\n", results(FIGURES), "p.svg")


def test_columns_of_text_are_aligned() -> None:
    lines = text(results(FIGURES)).splitlines()
    start = lines.index("Small requests") + 2
    assert len({len(line) for line in lines[start : start + 4]}) == 1


def test_the_picture_has_a_bar_for_each_figure() -> None:
    picture = ElementTree.fromstring(svg(results({**FIGURES, ("small", "a<b"): {"cpu_us": [1.0]}})))
    bars = [one for one in picture.iter("{http://www.w3.org/2000/svg}rect") if one.get("fill") != "#fff"]
    assert len(bars) == 3
    assert float(bars[0].get("width", 0)) > float(bars[2].get("width", 0))


def test_the_picture_of_nothing_is_still_one() -> None:
    assert ElementTree.fromstring(svg(results({}))).tag.endswith("svg")
