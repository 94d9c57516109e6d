"""A storm of connects beside a steady producer."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from proxy.local.sidecars import SidecarProcess
from tests.frames import produce
from tests.tools.bench.frames import batches
from tests.tools.conformance.crowd import Plan
from tests.tools.conformance.stage import Limits, Stage, crowd_process, finished
from tests.tools.topic import create

TOPIC = "conformance"
PRODUCER_RATE = 250.0
RECORD = 1024
"""Bytes of the one record of each request."""

RATE = 2000.0
LIMIT = 100
"""Connects per second that come, and that are let through."""

SOURCES = ("127.0.2.1", 200)
"""Addresses of the storm: the first, and how many."""

PATIENCE = 1.0
"""Seconds after which a client of the storm gives up."""

WARM = 8.0
"""Seconds of a producer before what is measured: until then the broker compiles what it does for it."""


@dataclass(frozen=True)
class Setting:
    """Who has the limit of 100/s: a sidecar whose window has so many samples, or the broker itself."""

    title: str
    samples: int = 11
    broker: bool = False


SMOOTH = Setting("sidecar, `quota.window.num: 2`", samples=2)
SIDECAR = Setting("sidecar, 11 samples as by default")
BROKER = Setting("the broker alone, 11 samples", broker=True)


@dataclass
class Beside:
    """What became of producers and of the storms beside them.

    ``before``, ``during``: latencies of a producer, in seconds. ``past_before``, ``past_during``: of another one at the
    same time, on the broker's own port. ``admitted``: connections that the sidecar let through, at most ``allowed``.
    ``answered``: those that the broker has answered a request on.
    """

    setting: Setting
    before: list[float] = field(default_factory=list)
    during: list[float] = field(default_factory=list)
    past_before: list[float] = field(default_factory=list)
    past_during: list[float] = field(default_factory=list)
    offered: int = 0
    admitted: int = 0
    allowed: int = 0
    answered: int = 0


def beside(stage: Stage, setting: Setting, seconds: float, calm: float, rounds: int) -> Beside:
    """Produce through what has a limit of 100/s; in each round first in peace, then beside 2,000 connects/s.

    The storm costs broker and machine something by itself. What that is, another producer shows that does without the
    sidecar.
    """
    key = {"listener.name.client.max.connection.creation.rate": LIMIT}
    result = Beside(setting)
    port = (stage.broker_ports if setting.broker else stage.ports)["CLIENT"]
    for _ in range(rounds):
        # Another one each time: what has been given up still waits to be accepted, and would spoil the next peace.
        limited: AbstractContextManager[SidecarProcess | None] = (
            stage.limited(Limits(key))
            if setting.broker
            else stage.sidecar(Limits(key, sidecar={"quota.window.num": setting.samples}))
        )
        with limited as sidecar, _producer(port) as samples, _producer(stage.broker_ports["CLIENT"]) as past:
            time.sleep(WARM + calm)
            before = _admitted(sidecar)
            visits = finished(crowd_process(_storm(port, int(RATE * seconds), RATE)))
            result.admitted += _admitted(sidecar) - before
            passed = time.monotonic() - visits.began
        begin, end = visits.began, visits.began + visits.dialled[-1]
        result.before += [took for when, took in samples if begin - calm <= when < begin]
        result.during += [took for when, took in samples if begin <= when < end]
        result.past_before += [took for when, took in past if begin - calm <= when < begin]
        result.past_during += [took for when, took in past if begin <= when < end]
        result.offered += len(visits.dialled)
        result.allowed += int(LIMIT * (passed + setting.samples - 1)) + 1
        result.answered += len(visits.accepted())
    return result


def create_topic(stage: Stage) -> None:
    admin = AdminClient({"bootstrap.servers": stage.cluster.internal_bootstrap, "log_level": 3})
    create(admin, NewTopic(TOPIC, 1, 1))


def _admitted(sidecar: SidecarProcess | None) -> int:
    return int(sidecar.metric("brokerside_connections_admitted_total")) if sidecar else 0


def _storm(port: int, count: int, rate: float) -> Plan:
    first, sources = SOURCES
    return Plan(port, count, first, sources, rate, leave="answered", patience=PATIENCE, watch=PATIENCE)


@contextmanager
def _producer(port: int) -> Iterator[list[tuple[float, float]]]:
    """Produce to a port; the list is filled at the end."""
    samples: list[tuple[float, float]] = []
    command = [sys.executable, "-m", "tests.tools.conformance.producer", str(port), str(PRODUCER_RATE)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    try:
        process.stdin.write(produce(1, 1, batches(1, RECORD), topic=TOPIC))
        process.stdin.close()
        process.stdin = None
        yield samples
    finally:
        process.terminate()
        said, _ = process.communicate(timeout=10)
    samples += json.loads(said)
