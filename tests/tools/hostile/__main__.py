"""``python -m tests.tools.hostile``: all attacks at once beside honest clients; 1 if a promise was broken.

First the honest clients alone, for as long as ``--quiet`` says, then with the attackers. The sidecar's stderr is a pipe
that nobody reads, from its start to its end. A step that fails is a check that does not hold; the others go on.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from proxy.errors import LocalError
from tests.integration.metrics import sample
from tests.tools.hostile import checks
from tests.tools.hostile.attacks import ATTACKS
from tests.tools.hostile.checks import Check
from tests.tools.hostile.honest import SHARING
from tests.tools.hostile.stage import (
    COMMITTED,
    CONSUMED,
    CONSUMED_PARTITIONS,
    TOPIC,
    Running,
    Stage,
    Watched,
    attack,
    python,
    staged,
)
from tests.tools.topic import messages

RATE = 100
"""Records a second of each honest producer."""

MAX_RSS = 256
CONSUMER_RSS = 1 / 32
"""MiB, and of these for each hostile consumer above ``CONNECTIONS``."""

CONNECTIONS = 90
"""Of hostile consumers: all from one address, as each other attack."""

DRAIN = 15.0
"""Seconds in which SIGTERM ends the sidecar: the drain and five more."""

ENDED = 60.0
"""Seconds after the attack until each attacker has ended, on processors that all share."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.hostile", description=__doc__)
    parser.add_argument("--seconds", type=int, default=600, help="of the attack (600)")
    parser.add_argument("--quiet", type=int, default=30, help="seconds without attackers before it (30)")
    parser.add_argument(
        "--only", nargs="+", choices=ATTACKS, default=list(ATTACKS), metavar="ATTACK", help=", ".join(ATTACKS)
    )
    parser.add_argument(
        "--connections",
        type=int,
        default=CONNECTIONS,
        help="of hostile consumers at the same time, 90 from one address each; the sidecar has more descriptors (90)",
    )
    options = parser.parse_args(arguments)
    run = Run(options.only, options.seconds, options.quiet)
    try:
        with run.step("the run"), staged(_settings, options.connections) as stage:
            run.measure(stage)
    except KeyboardInterrupt:
        return 130
    finally:
        for check in run.checks:
            print(f"{'ok ' if check.ok else 'NOT'}  {check.what}: {check.found}")
    return 0 if all(check.ok for check in run.checks) else 1


class Run:
    """One run: its steps, and the checks that these have made so far."""

    def __init__(self, names: Sequence[str], seconds: int, quiet: int) -> None:
        self.checks: list[Check] = []
        self._names = names
        self._seconds = seconds
        self._quiet = quiet
        self._running = Running()
        self._begun = time.monotonic()
        self._say(
            f"{_processor()}, {len(os.sched_getaffinity(0))} CPUs that broker, sidecar, clients and attackers share"
        )

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Do something that may fail: then it is a check that does not hold."""
        try:
            yield
        except (LocalError, OSError, ValueError, LookupError, TypeError, subprocess.SubprocessError) as error:
            self._say(f"{what}: {error}")
            self.checks.append(Check(what, f"{type(error).__name__}: {error}", False))

    def measure(self, stage: Stage) -> None:
        """Attack the sidecar of ``stage``, and end it."""
        try:
            with self.step("the attack"):
                self._measure(stage)
            with self.step("log lines dropped, stderr unread"):
                dropped = sample(stage.metrics(), "brokerside_log_lines_dropped_total")
                self.checks.append(Check("log lines dropped, stderr unread", f"{dropped:.0f}", True))
            self._end(stage)
        finally:
            self._running.stop()

    def _measure(self, stage: Stage) -> None:
        running, address, seconds = self._running, stage.node.advertised, self._seconds
        whole = str(self._quiet + seconds)
        self._say("honest clients")
        consuming = (CONSUMED, str(CONSUMED_PARTITIONS), str(RATE), stage.upstream)
        running.start("honest consumers", python("honest", "consume", address, whole, *consuming), stage.folder)
        with self.step("honest consumers that share partitions before the attack"):
            self._say(f"honest consumers: {running.first_line('honest consumers', SHARING)}")
        running.start("librdkafka", python("honest", "produce", address, whole, TOPIC, str(RATE)), stage.folder)
        time.sleep(5)  # their start is not what is measured
        running.start("quiet", python("honest", "small", address, str(self._quiet)), stage.folder)
        with stage.watched(reload=False) as before:
            calm = self._found("quiet", self._quiet + ENDED)
        self._say(f"{len(self._names)} attacks for {seconds} s")
        running.start("small", python("honest", "small", address, str(seconds - 5)), stage.folder)
        running.start("direct", python("honest", "small", stage.upstream, str(seconds - 5)), stage.folder)
        running.start(
            "transactions", python("honest", "commit", stage.node.internal, str(seconds - 5), COMMITTED), stage.folder
        )
        for number, name in enumerate(self._names):
            running.start(name, attack(name, stage, number + 1, seconds - 5), stage.folder)
        with stage.watched(reload=True) as during:
            small = self._found("small", seconds + ENDED)
        self._say("what clients and attackers have counted")
        deadline = time.monotonic() + ENDED
        direct = self._found("direct", ENDED)
        transactions = self._found("transactions", ENDED)
        if transactions is not None:
            shown = {name: value for name, value in transactions.items() if name != "commits"}
            self._say(f"transactions past the sidecar: {shown}")
        counts = {name: self._found(name, max(1.0, deadline - time.monotonic())) for name in self._names}
        for name, found in counts.items():
            self._say(f"{name}: {found}")
        if small is not None:
            self.checks += checks.latencies(calm, small, direct)
        self._check_records(stage)
        self._check_sidecar(stage, before, during)
        if (consumed := self._found("honest consumers", 180)) is not None:
            self.checks += checks.consumed(consumed, transactions)
        self.checks += checks.refused({name: found for name, found in counts.items() if found is not None})

    def _check_records(self, stage: Stage) -> None:
        if (found := self._found("librdkafka", 120)) is None:
            return
        self._say("what the topic holds")
        with self.step("records of the topic"):
            stored = [(message.value() or b"").decode() for message in messages(stage.node.internal, TOPIC)]
            self.checks += checks.stored_once({str(n) for n in found["acknowledged"]}, found["failed"], stored)

    def _check_sidecar(self, stage: Stage, before: Watched, during: Watched) -> None:
        max_rss = MAX_RSS + CONSUMER_RSS * (stage.connections - CONNECTIONS)
        shown = f"{during.peak_rss:.0f} MiB (quiet {before.peak_rss:.0f})"
        self.checks.append(Check("peak RSS", shown, during.peak_rss <= max_rss))
        shown = f"{during.peak_descriptors} of {stage.descriptors}"
        self.checks.append(Check("descriptors at most", shown, during.peak_descriptors < stage.descriptors))
        self.checks += checks.livez(during.probes)
        self.checks += checks.balanced(before.scraped + during.scraped, before.unbalanced + during.unbalanced)

    def _end(self, stage: Stage) -> None:
        alive = stage.process.poll() is None
        took = stage.end()
        self.checks.append(Check("the sidecar runs to the end", "yes" if alive else "no", alive))
        shown = "no" if took is None else f"{took:.1f} s"
        self.checks.append(Check("SIGTERM ends it", shown, took is not None and took <= DRAIN))

    def _found(self, name: str, patience: float) -> Any:
        """Return what a process has found, its last line; None, and a check that does not hold, where it failed."""
        found = []
        with self.step(name):
            found.append(json.loads(self._running.output(name, patience).splitlines()[-1]))
        return found[0] if found else None

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._begun:5.0f} s  {text}", file=sys.stderr, flush=True)


def _settings(folder: Path, descriptors: int) -> dict[str, Any]:
    """What the sidecar is given besides what the cluster wrote: keys to sign with, and groups of consumers."""
    keys = folder / "hmac-keys"
    keys.write_text(f"k1:{secrets.token_hex(32)}\n")
    return {
        "audit": {"hmac.keys.file": str(keys)},
        "registry": {"hmac.keys.file": str(keys)},
        "coordinator": {"enabled": True, "max.consumers": descriptors // 8},
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(": ")[2]
    return platform.processor()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
