"""What ``make conformance`` calls equal, and what it does not let pass."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.conformance.crowd import Visits
from tests.conformance.reload import Reload
from tests.conformance.report import beside_rows, judged, side_by_side, table
from tests.conformance.schedules import PER_ADDRESS, SLOTS, Sizes
from tests.conformance.storm import BROKER, SIDECAR, SMOOTH, Beside, Setting, crc32c, request
from tests.conformance.verdicts import ENOUGH, Outcome, judge, judge_beside, judge_reload

SIZES = Sizes(rate20=240, storm=100)
Change = Callable[[Outcome], None]


def visits(rows: Iterator[tuple[float, float, float, float, str]]) -> Visits:
    """``rows``: dialled, connected, answered, ended, how."""
    return Visits(0.0, *map(list, zip(*rows, strict=True)))


def rate(limit: int, count: int) -> Visits:
    def times() -> Iterator[tuple[float, float, float, float, str]]:
        for n in range(count):
            over = n + 1 - 10 * limit
            at = 0.0 if over <= 0 else 0.05 * over if limit == 20 and over <= 10 else 11.95 if limit == 20 else 6.0
            yield 0.0, 0.0, at, at, "left"

    return visits(times())


def closed(opened: int, refused: int, after: float, *, asks: bool = False, how: str = "fin") -> Visits:
    kept = [(0.0, 0.0, 0.0 if asks else -1.0, -1.0, "open")] * opened
    return visits(iter([*kept, *[(0.0, 0.0, -1.0, after, how)] * refused]))


def slots() -> Visits:
    first = (0.0, 0.0, 0.01, 1.5, "left")
    return visits(iter([first, *[(0.0, 0.0, 0.01, -1.0, "open")] * (SLOTS - 1), (0.0, 0.0, 1.51, -1.0, "open")]))


def same() -> Outcome:
    """A sidecar that does as the broker does, where it is not to do better."""
    broker = {
        "rate20": rate(20, SIZES.rate20),
        "rate5": rate(5, 60),
        "default": closed(20, 10, 0.5),
        "slots": slots(),
        "per_address": closed(PER_ADDRESS, 1, 0.01),
        "storm": closed(60, 40, 10.0, asks=True, how="rst"),
        "bystander": closed(5, 0, 0.0, asks=True),
    }
    kafka = copy.deepcopy(broker) | {"storm": closed(60, 40, 1.0, asks=True, how="rst")}
    sidecar = copy.deepcopy(kafka) | {"default": closed(21, 9, 0.5)}
    return Outcome(broker, sidecar, kafka, SIZES)


def late(visits: Visits, number: int, seconds: float) -> None:
    for n in range(number, len(visits.answered)):
        visits.answered[n] += seconds


def failed(outcome: Outcome) -> list[str]:
    return [check.what for check in judge(outcome)[1] if not check.ok]


def test_a_sidecar_that_does_as_the_broker_does_passes() -> None:
    assert failed(same()) == []


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda o: late(o.sidecar["rate20"], 215, 0.2), "every one within 0.15 s of the broker's"),
        (lambda o: late(o.sidecar["rate5"], 55, 0.2), "#60 at 6.00 s on the sidecar"),
        (lambda o: late(o.broker["rate5"], 55, 0.2), "#60 at 6.00 s on the broker"),
        (lambda o: o.sidecar["rate20"].answered.__setitem__(-1, -1.0), "all accepted"),
        (lambda o: o.sidecar.__setitem__("default", closed(20, 10, 0.5)), "21 stay open on the sidecar"),
        (lambda o: o.kafka.__setitem__("default", closed(21, 9, 0.5)), "20 stay open on the sidecar as Kafka"),
        (lambda o: o.kafka.__setitem__("default", closed(20, 10, 0.8)), "closed 0.5 s later on the sidecar as Kafka"),
        (lambda o: o.sidecar.__setitem__("default", closed(21, 9, 0.5, how="rst")), "closed in order on the sidecar"),
        (lambda o: o.kafka.__setitem__("storm", closed(63, 37, 1.0, asks=True)), "as many as the broker"),
        (lambda o: o.sidecar.__setitem__("storm", closed(60, 40, 1.2, asks=True)), "held at most 1.1 s by the sidecar"),
        (
            lambda o: o.sidecar.__setitem__("storm", closed(60, 39, 1.0, asks=True)),
            "accepted or refused by the sidecar",
        ),
        (lambda o: o.sidecar.__setitem__("bystander", closed(4, 1, 0.0, asks=True)), "another address is not refused"),
        (lambda o: late(o.sidecar["slots"], SLOTS, 0.2), "right after that end by the sidecar"),
        (lambda o: late(o.sidecar["slots"], SLOTS, -1.0), "right after that end by the sidecar"),
        (lambda o: o.sidecar.__setitem__("per_address", closed(21, 0, 0.0)), "closed at once by the sidecar"),
        (lambda o: o.sidecar.__setitem__("per_address", closed(20, 1, 0.5)), "closed at once by the sidecar"),
    ],
)
def test_what_is_different_does_not_pass(change: Change, what: str) -> None:
    outcome = same()
    change(outcome)
    assert any(what in line for line in failed(outcome)), failed(outcome)


def beside(setting: Setting, during: float, admitted: int, past: float = 0.001) -> Beside:
    latencies = [[0.001] * ENOUGH, [during] * ENOUGH, [0.001] * ENOUGH, [past] * ENOUGH]
    return Beside(setting, *latencies, 1000, admitted, allowed=100, answered=99)


def test_a_storm_may_cost_a_producer_a_quarter_and_the_broker_what_is_allowed() -> None:
    good = beside(SMOOTH, 0.0012, 100)
    assert [check.ok for check in judge_beside([good])] == [True, True]
    assert [check.ok for check in judge_beside([beside(SMOOTH, 0.0013, 101)])] == [False, False]
    assert [check.ok for check in judge_beside([beside(SMOOTH, 0.001, 98)])] == [True, False]
    assert [check.ok for check in judge_beside([beside(SMOOTH, 0.0024, 100, past=0.002)])] == [True, True]
    assert [check.ok for check in judge_beside([beside(SMOOTH, 0.0026, 100, past=0.002)])] == [False, True]
    assert [check.ok for check in judge_beside([beside(SIDECAR, 1.0, 101), beside(BROKER, 1.0, 0)])] == [False, False]
    short = replace(beside(SMOOTH, 1.0, 100), during=[1.0] * (ENOUGH - 1))
    assert [check.ok for check in judge_beside([short])] == [True]
    assert ("– p99", "1.00 ms", "1.20 ms", "1.20") in beside_rows([good])


def test_a_changed_limit_has_a_second_to_act_and_closes_nothing() -> None:
    assert [check.ok for check in judge_reload(Reload(0.9, 100, 0))] == [True, True]
    assert [check.ok for check in judge_reload(Reload(1.1, 100, 1))] == [False, False]


def test_of_refused_connections_it_is_known_how_many_were_held_at_a_time() -> None:
    rows = [(0.0, start, -1.0, start + 1.0, "fin") for start in (0.0, 0.5, 0.9, 1.5)]
    held = visits(iter([*rows, (0.0, 0.0, 0.1, 0.2, "fin")]))  # the last one was answered, so it was not refused
    assert held.most_held() == 3
    assert held.holds() == pytest.approx([1.0] * 4)


def test_tables_line_up_and_name_what_does_not_hold() -> None:
    lines = list(table([("a", "b"), ("long cell", "1"), ("c", "22,222")]))
    assert len({len(line) for line in lines}) == 1
    assert lines[1] == "|-----------|-------:|"
    assert all(line.count("|") == 6 for line in side_by_side(judge(same())[0]))
    summary, wrong = judged(judge_reload(Reload(0.9, 100, 1)))
    assert summary == "1 of 2 checks hold"
    assert wrong == "NOT: a reload: closes no connection: 1"


def test_the_producers_request_has_kafkas_checksum() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert len(request()) > 1024
