"""``python -m tests.tools.conformance``: the same connects to a real broker and to the sidecar; 1 if they differ."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from proxy.errors import LocalError
from tests.tools.conformance import schedules, storm
from tests.tools.conformance.crowd import Visits
from tests.tools.conformance.stage import Stage, run_together
from tests.tools.conformance.storm import LIMIT, RATE, Beside
from tests.tools.conformance.verdicts import Check, Outcome, Row, judge, judge_beside, quantile

STORMS = ((storm.SMOOTH, 30.0, 10.0, 2), (storm.SIDECAR, 30.0, 10.0, 2), (storm.BROKER, 30.0, 11.0, 1))
QUICK_STORMS = ((storm.SMOOTH, 5.0, 4.0, 1),)
"""Beside a producer: who has the limit, seconds of each storm, seconds of peace before it, and how many."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.conformance", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller storms; in under a minute instead of seven")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was started is ended
    try:
        checks: list[Check] = []
        print("\n".join(_run(options.quick, checks)))
    except KeyboardInterrupt:
        return 130
    except (LocalError, OSError) as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 1
    return 0 if all(check.ok for check in checks) else 1


def _run(quick: bool, checks: list[Check]) -> Iterator[str]:
    """Yield the report, and add to ``checks``."""
    begun = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - begun:5.0f} s  {text}", file=sys.stderr, flush=True)

    sizes = schedules.QUICK if quick else schedules.FULL
    with Stage() as stage:
        say("a broker")
        run_together(schedules.warm_up(stage.broker_ports))
        say("the broker, with limits set by kafka-configs")
        with stage.limited(schedules.LIMITS):
            broker = _all(stage.broker_ports, quick)
        say("the sidecar, with the same limits in its file, and none on the broker")
        with stage.sidecar(schedules.LIMITS):
            sidecar = _all(stage.ports, quick)
        say("the same without a second look at held connections")
        with stage.sidecar(schedules.AS_KAFKA):
            kafka = run_together(
                {"default": schedules.default(stage.ports), **schedules.storm(stage.ports, sizes, begin_after=4.0)}
            )
        say("a producer beside storms")
        storm.create_topic(stage)
        besides = [storm.beside(stage, *planned) for planned in (QUICK_STORMS if quick else STORMS)]
        say("done")
    rows, found = judge(Outcome(broker, sidecar, kafka, sizes))
    checks += [*found, *judge_beside(besides)]
    cpus = f"{len(os.sched_getaffinity(0))} CPUs that broker, sidecar and clients share"
    yield f"{datetime.now(UTC):%Y-%m-%d}, {cpus}{', a quick run' if quick else ''}"
    for part in (side_by_side(rows), table(beside_rows(besides)), judged(checks)):
        yield ""
        yield from part


def _all(ports: Mapping[str, int], quick: bool) -> dict[str, Visits]:
    """Run all schedules; a quick run lets the storm fall into the time when the slowest of the others only waits."""
    if quick:
        return run_together(schedules.light(ports, schedules.QUICK) | schedules.storm(ports, schedules.QUICK, 6.5))
    return run_together(schedules.light(ports, schedules.FULL)) | run_together(schedules.storm(ports, schedules.FULL))


# ---- tables for a terminal that are Markdown too --------------------------------------------------------------------

HEAD = ("", "model", "broker", "sidecar", "sidecar, `recheck: false`")


def side_by_side(rows: Iterable[Row]) -> Iterator[str]:
    return table([HEAD, *((row.what, row.model, row.broker, row.sidecar, row.kafka) for row in rows)])


def beside_rows(all_: Iterable[Beside]) -> list[tuple[str, ...]]:
    """Return the table of the storms beside a producer."""
    rows: list[tuple[str, ...]] = [(f"a producer beside {RATE:,.0f} connects/s", "before", "during", "ratio")]
    for one in all_:
        rows.append((f"{one.setting.title}, {one.offered:,} connects", "", "", ""))
        rows += _latency_rows("", one.before, one.during)
        if not one.setting.broker:
            rows += _latency_rows(", past the sidecar", one.past_before, one.past_during)
        if not one.setting.broker:
            rows.append((f"– let through, with a limit of {LIMIT}/s", "", f"{one.admitted:,} of {one.allowed:,}", ""))
        rows.append(("– answered", "", f"{one.answered:,}", ""))
    return rows


def _latency_rows(where: str, before: Sequence[float], during: Sequence[float]) -> Iterator[tuple[str, ...]]:
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)):
        calm, stormy = quantile(sorted(before), share), quantile(sorted(during), share)
        yield f"– {name}{where}", f"{1000 * calm:.2f} ms", f"{1000 * stormy:.2f} ms", f"{stormy / calm:.2f}"


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table; the first row is its head, the first column is what the others are of."""
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        yield f"| {' | '.join(cells)} |"
        if not number:
            yield f"|{'-' * (widths[0] + 2)}|{'|'.join('-' * (width + 1) + ':' for width in widths[1:])}|"


def judged(checks: Sequence[Check]) -> Iterator[str]:
    """Yield how many hold, and each that does not."""
    failed = [check for check in checks if not check.ok]
    yield f"{len(checks) - len(failed)} of {len(checks)} checks hold"
    for check in failed:
        yield f"NOT: {check.what}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
