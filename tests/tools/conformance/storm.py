"""A storm of connects beside a steady producer, and what accepted and refused connections cost."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from proxy.limits.model import DEFAULT_ADDRESS
from proxy.local.sidecars import SidecarProcess
from tests.frames import batch, produce
from tests.tools.bench.measure import cpu_seconds, family
from tests.tools.conformance.crowd import Plan, Visits
from tests.tools.conformance.stage import Limits, Stage, crowd_process, finished

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

SETTLE = 1.0
"""Seconds between a start and what is measured."""

WARM = 8.0
"""The same for producers: until then the broker compiles what it does for them."""

CRC32C = 0x82F63B78


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
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)


def _admitted(sidecar: SidecarProcess | None) -> int:
    return int(sidecar.metric("brokerside_connections_admitted_total")) if sidecar else 0


@dataclass(frozen=True)
class Cost:
    """``accepts``: connections per second without a limit, each asking the broker once, of the whole machine.

    The others are CPU of the sidecar, µs per connection: accepted so; held for its address' rate and then refused;
    refused at once for the number of its address.
    """

    accepts: float
    accepted_us: float
    held_us: float
    dropped_us: float


def cost(stage: Stage, count: int) -> Cost:
    """Measure with so many connections of each kind."""
    port = stage.ports["CLIENT"]
    accepting, accepted = _cpu_us(stage, Limits(), _storm(port, count, 0))
    one_address = Plan(port, count, SOURCES[0], rate=RATE / 2, ask=False, watch=2 * PATIENCE)
    held, _ = _cpu_us(stage, Limits(ips={DEFAULT_ADDRESS: 1}), one_address)
    dropped, _ = _cpu_us(stage, Limits({"max.connections.per.ip": 1}), one_address)
    took = max(accepted.answered) - accepted.dialled[0]
    return Cost(len(accepted.accepted()) / took, accepting, held, dropped)


def _storm(port: int, count: int, rate: float) -> Plan:
    first, sources = SOURCES
    return Plan(port, count, first, sources, rate, leave="answered", patience=PATIENCE, watch=PATIENCE)


def _cpu_us(stage: Stage, limits: Limits, plan: Plan) -> tuple[float, Visits]:
    """CPU of a sidecar for each connection of ``plan``, in µs, without what it uses anyway."""
    with stage.sidecar(limits) as sidecar:
        pids = family(sidecar.process.pid)
        time.sleep(SETTLE)
        idle = -cpu_seconds(pids)
        time.sleep(SETTLE)
        idle = (idle + cpu_seconds(pids)) / SETTLE
        used, began = -cpu_seconds(pids), time.monotonic()
        visits = finished(crowd_process(plan))
        used += cpu_seconds(pids) - idle * (time.monotonic() - began)
    return used / plan.count * 1e6, visits


@contextmanager
def _producer(port: int) -> Iterator[list[tuple[float, float]]]:
    """Produce to a port; the list is filled at the end."""
    samples: list[tuple[float, float]] = []
    command = [sys.executable, "-m", "tests.tools.conformance.producer", str(port), str(PRODUCER_RATE)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    try:
        process.stdin.write(request())
        process.stdin.close()
        process.stdin = None
        yield samples
    finally:
        process.terminate()
        said, _ = process.communicate(timeout=10)
    samples += json.loads(said)


def request() -> bytes:
    """A ProduceRequest with one record that a broker takes: with a checksum, unlike other frames made by hand."""
    value = bytes(RECORD)
    body = b"\0\0\0\x01" + _varint(len(value)) + value + b"\0"  # attributes, two deltas, no key; value; no headers
    records = bytearray(batch(1, _varint(len(body)) + body))
    records[17:21] = crc32c(bytes(records[21:])).to_bytes(4, "big")
    return produce(1, 1, bytes(records), topic=TOPIC)


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (CRC32C if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def _varint(value: int) -> bytes:
    """A signed number as records have it: zigzag, seven bits in each byte."""
    rest, out = value << 1, bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])
