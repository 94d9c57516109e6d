"""``python -m tests.tools.conformance``: the same connects to a real broker and to the sidecar; 1 if they differ."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from proxy.errors import LocalError
from tests.tools.bench.report import filled
from tests.tools.conformance import reload, schedules, storm
from tests.tools.conformance.crowd import Visits
from tests.tools.conformance.report import beside_rows, cost_rows, judged, reload_rows, side_by_side, table
from tests.tools.conformance.stage import Stage, run_together
from tests.tools.conformance.verdicts import Check, Outcome, judge, judge_beside, judge_reload

STORMS = ((storm.SMOOTH, 30.0, 10.0, 2), (storm.SIDECAR, 30.0, 10.0, 2), (storm.BROKER, 30.0, 11.0, 1))
QUICK_STORMS = ((storm.SMOOTH, 5.0, 4.0, 1),)
"""Beside a producer: who has the limit, seconds of each storm, seconds of peace before it, and how many."""

COST_COUNT = 5_000


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.conformance", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller storms; in under a minute instead of seven")
    parser.add_argument("--into", type=Path, metavar="PAGE", help="put the tables into a page of docs/ too")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was started is ended
    try:
        checks: list[Check] = []
        lines = list(_run(options.quick, checks))
        print("\n".join(lines))
        if options.into:
            options.into.write_text(filled(options.into.read_text(), "\n".join(lines)))
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
        say("a changed limit")
        changed = reload.measure(stage)
        cost = None
        if not quick:
            say("what connections cost")
            cost = storm.cost(stage, COST_COUNT)
        say("done")
    rows, found = judge(Outcome(broker, sidecar, kafka, sizes))
    checks += [*found, *judge_beside(besides), *judge_reload(changed)]
    cpus = f"{len(os.sched_getaffinity(0))} CPUs that broker, sidecar and clients share"
    yield f"{datetime.now(UTC):%Y-%m-%d}, {cpus}{', a quick run' if quick else ''}"
    tables = [side_by_side(rows), table(beside_rows(besides)), table(reload_rows(changed))]
    if cost:
        tables.append(table(cost_rows(cost)))
    for part in (*tables, judged(checks)):
        yield ""
        yield from part


def _all(ports: Mapping[str, int], quick: bool) -> dict[str, Visits]:
    """Run all schedules; a quick run lets the storm fall into the time when the slowest of the others only waits."""
    if quick:
        return run_together(schedules.light(ports, schedules.QUICK) | schedules.storm(ports, schedules.QUICK, 6.5))
    return run_together(schedules.light(ports, schedules.FULL)) | run_together(schedules.storm(ports, schedules.FULL))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
