"""``python -m tests.hostile``: all attacks at once beside honest clients; 1 if a promise was broken.

First the honest clients alone, for as long as ``--quiet`` says, then with the attackers. The sidecar's stderr is a pipe
that nobody reads, from its start to its end.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from proxy.config.keys import KEYS
from proxy.errors import LocalError
from tests.hostile.attacks import ATTACKS
from tests.hostile.stage import (
    CONSUMED,
    CONSUMED_PARTITIONS,
    TOPIC,
    Running,
    Stage,
    attack,
    java_producer,
    python,
    staged,
)
from tests.integration.metrics import sample
from tests.tools.topic import messages

RATE = 100
"""Records a second of each honest producer."""

MIB = 1 << 20
MAX_RSS = 256 * MIB
CONSUMER_RSS = 32 << 10
"""Bytes for each hostile consumer above ``CONNECTIONS``."""

CONNECTIONS = 90
"""Of hostile consumers: all from one address, as each other attack."""

MAX_SLOWDOWN = 5.0
"""99th percentile of small honest requests during the attack, in multiples of that before it, or of what the broker
itself takes at the same time: everything shares a few processors, and some attacks reach the broker as they may."""

FLOOR_MS = 1.0
"""Milliseconds below which the quiet percentile is taken for this much: less than a scheduler's own turns."""

DRAIN = 15.0
"""Seconds in which SIGTERM ends the sidecar: the drain and five more."""


KEY = "hmac.keys.file"
"""An earlier release, which this can be run with as well, has no such key."""


class Check(NamedTuple):
    """One promise: what was found, and whether it holds."""

    what: str
    found: str
    ok: bool


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
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
    parser.add_argument("--log", type=Path, metavar="FILE", help="let the sidecar's log go to a file, to look at it")
    options = parser.parse_args(arguments)
    try:
        checks = list(_run(options.only, options.seconds, options.quiet, options.log, options.connections))
    except KeyboardInterrupt:
        return 130
    except (LocalError, OSError) as error:
        print(f"hostile: {error}", file=sys.stderr)
        return 1
    for check in checks:
        print(f"{'ok ' if check.ok else 'NOT'}  {check.what}: {check.found}")
    return 0 if all(check.ok for check in checks) else 1


def _run(names: Sequence[str], seconds: int, quiet: int, log: Path | None, connections: int) -> Iterator[Check]:
    begun = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - begun:5.0f} s  {text}", file=sys.stderr, flush=True)

    say(f"{_processor()}, {len(os.sched_getaffinity(0))} CPUs that broker, sidecar, clients and attackers share")
    with staged(_settings, log, connections) as stage:
        running = Running()
        try:
            yield from _measured(stage, running, names, seconds, quiet, say)
            if log is None:
                yield _dropped(stage)
            yield from _ended(stage)
        finally:
            running.stop()


def _measured(
    stage: Stage, running: Running, names: Sequence[str], seconds: int, quiet: int, say: Any
) -> Iterator[Check]:
    address = stage.node.advertised
    whole = quiet + seconds
    say("honest clients")
    running.start("java", java_producer(address, TOPIC, str(whole), str(RATE)), stage.folder)
    running.start("librdkafka", python("honest", "produce", address, str(whole), TOPIC, str(RATE)), stage.folder)
    consuming = (CONSUMED, str(CONSUMED_PARTITIONS), str(RATE), stage.upstream)
    running.start("honest consumers", python("honest", "consume", address, str(whole), *consuming), stage.folder)
    time.sleep(5)  # their start is not what is measured
    running.start("quiet", python("honest", "small", address, str(quiet)), stage.folder)
    with stage.watched(reload=False) as before:
        calm = json.loads(running.output("quiet", quiet + 60))
    say(f"{len(names)} attacks for {seconds} s")
    running.start("small", python("honest", "small", address, str(seconds - 5)), stage.folder)
    running.start("direct", python("honest", "small", stage.upstream, str(seconds - 5)), stage.folder)
    for number, name in enumerate(names):
        running.start(name, attack(name, stage, number + 1, seconds - 5), stage.folder)
    with stage.watched(reload=True) as during:
        small = json.loads(running.output("small", seconds + 60))
    direct = json.loads(running.output("direct", seconds + 60))
    say("counts of the attackers")
    found: dict[str, dict[str, int]] = {}
    for name in names:
        found[name] = json.loads(running.output(name, 60).splitlines()[-1])
        say(f"{name}: {found[name]}")
    java = running.output("java", 120).split()
    librdkafka = json.loads(running.output("librdkafka", 120))
    consumed = json.loads(running.output("honest consumers", 180))
    say("what the topic holds")
    yield from _latencies(calm, small, direct)
    acknowledged = set(java[: java.index("failed")]), {f"librdkafka-{n}" for n in librdkafka["acknowledged"]}
    stored = [(message.value() or b"").decode() for message in messages(stage.node.internal, TOPIC)]
    for name, its in zip(("java", "librdkafka"), acknowledged, strict=True):
        lost = len(its - set(stored))
        yield Check(f"records that were acknowledged to {name}", f"{len(its)}, lost {lost}", bool(its) and not lost)
    yield Check("records stored twice", str(len(stored) - len(set(stored))), len(stored) == len(set(stored)))
    yield Check("records that failed", f"java {java[-1]}, librdkafka {librdkafka['failed']}", True)
    quiet_rss, rss = before.peak_rss / MIB, during.peak_rss / MIB
    max_rss = MAX_RSS + CONSUMER_RSS * (stage.connections - CONNECTIONS)
    yield Check("peak RSS", f"{rss:.0f} MiB (quiet {quiet_rss:.0f})", during.peak_rss <= max_rss)
    descriptors = f"{during.peak_descriptors} of {stage.descriptors}"
    yield Check("descriptors at most", descriptors, during.peak_descriptors < stage.descriptors)
    share = f"{during.asked - len(during.late)} of {during.asked} within 1 s, slowest {during.slowest:.2f} s"
    yield Check("/livez", share, not during.late)
    yield from _consumed(consumed)
    yield from _refused(found)


def _consumed(found: dict[str, Any]) -> Iterator[Check]:
    kept = found["revoked"] == 0 and not found["failures"]
    yield Check("partitions that honest consumers lost", f"{found['revoked']} {found['failures'] or ''}".strip(), kept)
    whole = bool(found["produced"]) and not found["lost"] and not found["again"]
    shown = f"{found['produced']}, lost {found['lost']}, twice {found['again']}"
    yield Check("messages to honest consumers", shown, whole)


def _dropped(stage: Stage) -> Check:
    what = "log lines dropped, stderr unread"
    try:
        dropped = sample(stage.metrics(), "brokerside_log_lines_dropped_total")
    except OSError as error:
        return Check(what, f"/metrics: {error}", False)
    return Check(what, f"{dropped:.0f}", True)


def _ended(stage: Stage) -> Iterator[Check]:
    alive = stage.process.poll() is None
    took = stage.end()
    yield Check("the sidecar runs to the end", "yes" if alive else "no", alive)
    yield Check("SIGTERM ends it", "no" if took is None else f"{took:.1f} s", took is not None and took <= DRAIN)


def _latencies(calm: dict[str, Any], small: dict[str, Any], direct: dict[str, Any]) -> Iterator[Check]:
    limit = MAX_SLOWDOWN * max(calm["p99"], direct["p99"], FLOOR_MS)
    shown = f"p50 {small['p50']}, p99 {small['p99']}, max {small['max']} ms of {small['count']}"
    shown += f"; quiet p50 {calm['p50']}, p99 {calm['p99']} ms"
    shown += f"; past the sidecar p50 {direct['p50']}, p99 {direct['p99']}, max {direct['max']} ms"
    yield Check("small honest requests", shown, small["p99"] <= limit)
    yield Check("small honest requests that failed", str(small["errors"]), not small["errors"])
    yield Check("foreign addresses in Metadata", str(small["foreign"]), not small["foreign"])


def _refused(found: dict[str, dict[str, int]]) -> Iterator[Check]:
    for name, what in (("spoof", "registry records"), ("forge", "audit events")):
        if name in found:
            accepted, refused = found[name].get("accepted", 0), found[name].get("refused", 0)
            yield Check(
                f"{what} from a client", f"{accepted} accepted, {refused} refused", not accepted and refused > 0
            )
    if "rebinding" in found:
        statuses = {name: count for name, count in found["rebinding"].items() if name.startswith("status")}
        yield Check("/config and /quotas under a foreign name", str(statuses), set(statuses) == {"status 421"})


def _settings(folder: Path, descriptors: int) -> dict[str, Any]:
    """What the sidecar is given besides what the cluster wrote: keys to sign with, and groups of consumers."""
    keys = folder / "hmac-keys"
    keys.write_text(f"k1:{secrets.token_hex(32)}\n")
    signed = {section: {"hmac.keys.file": str(keys)} for section in ("audit", "registry") if (section, KEY) in KEYS}
    return {**signed, "coordinator": {"enabled": True, "max.consumers": descriptors // 8}}


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(": ")[2]
    return platform.processor()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
