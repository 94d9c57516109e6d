"""What became of the schedules, side by side, and whether that is within the tolerance. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.tools.conformance.crowd import Visits
from tests.tools.conformance.schedules import PER_ADDRESS, SLOTS, Sizes
from tests.tools.conformance.storm import Beside

TOLERANCE = 0.15
"""Seconds between what is expected and what is seen."""

COUNT_TOLERANCE = 0.02
"""Of the connections that the broker accepted in a storm."""

LONGEST_HOLD = 1.1
"""Seconds: KIP-612's bound of one window, and a tenth for this machine."""

MODEL = {"rate20": {200: 0.0, 210: 0.5, 240: 11.95, 300: 11.95}, "rate5": {50: 0.0, 60: 6.0}}
"""When connections are accepted according to the model of Kafka's rate on a virtual clock, by their number; seconds."""

HELD = 0.5
"""Seconds that the model holds 30 connections at once under a rate of 2/s: (21 / 10 - 2) / 2 of 10 s."""

P99_RISE = 1.25
"""By which factor the p99 of a producer may rise beside a storm, more than it does without the sidecar."""

ENOUGH = 10_000
"""Latencies of which a p99 says something; a quick run has fewer."""

DEFAULT_OPEN = 20
"""Of 30 at once, those that the default rate of 2/s lets through: ten windows of it."""


@dataclass(frozen=True)
class Row:
    """One line of the table; ``kafka``: the sidecar with ``ip.throttle.recheck: false``."""

    what: str
    model: str = ""
    broker: str = ""
    sidecar: str = ""
    kafka: str = ""


@dataclass(frozen=True)
class Check:
    """One thing that has to hold."""

    what: str
    ok: bool


@dataclass(frozen=True)
class Outcome:
    """What became of every schedule, by name. ``kafka`` has only those that hold connections."""

    broker: Mapping[str, Visits]
    sidecar: Mapping[str, Visits]
    kafka: Mapping[str, Visits]
    sizes: Sizes


def judge(outcome: Outcome) -> tuple[list[Row], list[Check]]:
    """Return the table, and what had to hold."""
    lines = [line for part in (_rates, _default, _storm, _slots, _per_address) for line in part(outcome)]
    return [line for line in lines if isinstance(line, Row)], [line for line in lines if isinstance(line, Check)]


def judge_beside(all_: Iterable[Beside]) -> list[Check]:
    """Return what had to hold of the storms beside a producer.

    What is judged is by how much more the sidecar is slower than the way past it, as the storm costs machine and broker
    something in any case.
    """
    checks = []
    for one in all_:
        title = f"a producer beside a storm, {one.setting.title}"
        if not one.setting.broker and len(one.during) >= ENOUGH:
            calm, stormy = _p99(one.before) / _p99(one.past_before), _p99(one.during) / _p99(one.past_during)
            rise = stormy / max(calm, 1.0)
            text = f"{title}: its p99 rises by less than {P99_RISE} beyond that of one past the sidecar: {rise:.2f}"
            checks.append(Check(text, rise < P99_RISE))
        if not one.setting.broker:
            within = one.answered <= one.admitted <= one.allowed
            checks.append(Check(f"{title}: at most {one.allowed:,} are let through: {one.admitted:,}", within))
    return checks


def _p99(latencies: Iterable[float]) -> float:
    return quantile(sorted(latencies), 0.99)


def _rates(outcome: Outcome) -> Iterator[Row | Check]:
    for name, limit, count in (("rate20", 20, outcome.sizes.rate20), ("rate5", 5, 60)):
        title = f"listener limit {limit}/s, {count} one after another"
        broker, sidecar = outcome.broker[name].accepted(), outcome.sidecar[name].accepted()
        complete = len(broker) == len(sidecar) == count
        yield Row(title, "", f"{len(broker)} accepted", f"{len(sidecar)} accepted")
        yield Check(f"{title}: all accepted", complete)
        if not complete:
            continue
        for number, when in MODEL[name].items():
            if number <= count:
                yield Row(f"– #{number} at", _s(when), _s(broker[number - 1]), _s(sidecar[number - 1]))
                for side, times in (("broker", broker), ("sidecar", sidecar)):
                    what = f"{title}: #{number} at {when:.2f} s on the {side}: {times[number - 1]:.2f} s"
                    yield Check(what, abs(times[number - 1] - when) <= TOLERANCE)
        furthest = max(abs(ours - theirs) for ours, theirs in zip(sidecar, broker, strict=True))
        yield Row("– furthest from the broker, any of them", "", "", _s(furthest))
        what = f"{title}: every one within {TOLERANCE} s of the broker's: {furthest:.3f} s"
        yield Check(what, furthest <= TOLERANCE)


def _default(outcome: Outcome) -> Iterator[Row | Check]:
    title = "default ip limit 2/s, 30 at once"
    sides = {"broker": outcome.broker, "sidecar": outcome.sidecar, "sidecar as Kafka": outcome.kafka}
    visits = {side: given["default"] for side, given in sides.items()}
    yield Row(title, "20 / 10", *(f"{len(v.accepted())} / {len(v.refused())} open / closed" for v in visits.values()))
    yield Row("– closed after", _s(HELD), *(_span(v.holds()) for v in visits.values()))
    for side, its in visits.items():
        opened = DEFAULT_OPEN + (side == "sidecar")  # the second look lets one more in
        yield Check(
            f"{title}: {opened} stay open on the {side}, and {30 - opened} are closed: {len(its.accepted())}, "
            f"{len(its.refused())}",
            (len(its.accepted()), len(its.refused())) == (opened, 30 - opened),
        )
        yield Check(
            f"{title}: closed {HELD} s later on the {side}: {_span(its.holds())} s",
            all(abs(hold - HELD) <= TOLERANCE for hold in its.holds()),
        )
        yield Check(f"{title}: closed in order on the {side}, with no byte", "rst" not in its.how)


def _storm(outcome: Outcome) -> Iterator[Row | Check]:
    count = outcome.sizes.storm
    title = f"ip limit 20/s, {count:,} connects at 400/s"
    sides = (outcome.broker, outcome.sidecar, outcome.kafka)
    accepted = [len(side["storm"].accepted()) for side in sides]
    holds = [side["storm"].holds() for side in sides]
    yield Row(title, "", *(f"{number} accepted" for number in accepted))
    yield Row("– refused", "", *(f"{len(hold):,}" for hold in holds))
    yield Row("– hold of them, median", "", *(_s(quantile(hold, 0.5)) for hold in holds))
    yield Row("– hold of them, longest", "≤ 1.00 s", *(_s(quantile(hold, 1.0)) for hold in holds))
    yield Row("– held at the worst moment", "", *(f"{side['storm'].most_held():,}" for side in sides))
    connects = [_connects(side["bystander"]) for side in sides]
    for name, share in (("median", 0.5), ("p99", 0.99)):
        cells = (f"{1000 * quantile(took, share):.1f} ms" for took in connects)
        yield Row(f"– another address meanwhile, accepted after, {name}", "", *cells)
    off = accepted[2] / accepted[0] - 1 if accepted[0] else 1.0
    yield Check(
        f"{title}: the sidecar as Kafka accepts as many as the broker, to {COUNT_TOLERANCE:.0%}: {off:+.1%}",
        abs(off) <= COUNT_TOLERANCE,
    )
    for name, held in (("sidecar", holds[1]), ("sidecar as Kafka", holds[2])):
        longest = quantile(held, 1.0)
        yield Check(f"{title}: held at most {LONGEST_HOLD} s by the {name}: {longest:.2f} s", longest <= LONGEST_HOLD)
    for name, side, taken, hold in zip(("broker", "sidecar", "sidecar as Kafka"), sides, accepted, holds, strict=True):
        settled = taken + len(hold)
        yield Check(f"{title}: each is accepted or refused by the {name}: {settled}", settled == count)
        served = len(side["bystander"].accepted()) == len(side["bystander"].how)
        yield Check(f"{title}: another address is not refused meanwhile by the {name}", served)


def _slots(outcome: Outcome) -> Iterator[Row | Check]:
    title = f"max.connections {SLOTS}, {SLOTS + 1} at once, then one ends"
    both = [side["slots"] for side in (outcome.broker, outcome.sidecar)]
    waits = [visits.answered[-1] - visits.ended[0] for visits in both]
    yield Row(
        title, "", *(f"{sum(0 <= when < visits.ended[0] for when in visits.answered)} at once" for visits in both)
    )
    yield Row("– the next one, after that end", "0.00 s", *map(_s, waits))
    for side, visits, wait in zip(("broker", "sidecar"), both, waits, strict=True):
        at_once = all(0 <= when <= TOLERANCE for when in visits.answered[:SLOTS])
        yield Check(f"{title}: {SLOTS} accepted at once by the {side}", at_once)
        yield Check(f"{title}: the next one right after that end by the {side}: {wait:.3f} s", 0 <= wait <= TOLERANCE)


def _per_address(outcome: Outcome) -> Iterator[Row | Check]:
    title = f"max.connections.per.ip {PER_ADDRESS}, {PER_ADDRESS + 1} at once"
    both = [side["per_address"] for side in (outcome.broker, outcome.sidecar)]
    yield Row(title, f"{PER_ADDRESS} / 1", *(f"{len(v.accepted())} / {len(v.refused())} open / closed" for v in both))
    yield Row("– closed after", "0.00 s", *(_span(visits.holds()) for visits in both))
    for side, visits in zip(("broker", "sidecar"), both, strict=True):
        holds = visits.holds()
        exact = len(visits.accepted()) == PER_ADDRESS and len(holds) == 1
        yield Check(f"{title}: one is closed at once by the {side}", exact and holds[0] <= TOLERANCE)


def _connects(visits: Visits) -> list[float]:
    """How long each took from the connect to the answer, sorted."""
    pairs = zip(visits.dialled, visits.answered, strict=True)
    return sorted(answered - dialled for dialled, answered in pairs if answered >= 0)


def quantile(values: Sequence[float], share: float) -> float:
    """Of sorted values; 0 where there are none."""
    return values[min(len(values) - 1, int(len(values) * share))] if values else 0.0


def _s(seconds: float) -> str:
    return f"{seconds:.2f} s"


def _span(values: Sequence[float]) -> str:
    return f"{values[0]:.2f}–{values[-1]:.2f} s" if values else "–"
