"""The audit's cluster is away while traffic continues: each request has its event in the end, no client noticed (B1).

What clients talk to is a stub that answers at once, so that they and the sidecar have the machine to themselves.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest
import yaml

from observers.account_events import StatusEvent
from observers.event import decoder
from proxy.errors import LocalError
from proxy.local import cluster as local_cluster
from proxy.local.cluster import ClusterState
from proxy.local.ports import HOST, free_ports
from proxy.local.sidecars import SidecarProcess
from tests.faults.gate import Gate
from tests.faults.site import FULL
from tests.faults.test_reconciliation import envelopes_raw, wait_delivered
from tests.integration.metrics import sample
from tests.tools.bench.frames import write_frames
from tests.tools.bench.native import Native, build

pytestmark = pytest.mark.kafka

RATE = 5000 if FULL else 1000
"""Requests a second."""

OUTAGE = 600 if FULL else 8
CALM = 10 if FULL else 3
"""Seconds of load before the outage, and after it."""

LATE = 10
"""Seconds that this test may be late in beginning the outage."""

MEMORY = 48 * 1024 * 1024
"""Bytes that the sidecar may grow by: 16 MiB of records and 32 besides."""

CATCH_UP = 600.0


class Range(msgspec.Struct):
    """The numbers that an envelope holds."""

    decoder: ClassVar[msgspec.json.Decoder[Range]]
    first_seq: int
    last_seq: int


Range.decoder = msgspec.json.Decoder(Range)


@pytest.fixture(scope="module")
def native() -> Native:
    try:
        return build()
    except LocalError as error:
        pytest.skip(str(error))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[ClusterState, Gate, str]]:
    """The audit's cluster, behind a gate."""
    node = local_cluster.plan(tmp_path / "cluster").nodes[0]
    (port,) = free_ports(1)
    properties = {"advertised.listeners": f"CLIENT://{node.advertised},INTERNAL://{HOST}:{port}"}
    state = local_cluster.up(tmp_path / "cluster", broker_properties=properties, progress=False)
    try:
        with Gate(port, int(node.internal.rpartition(":")[2])) as gate:
            yield state, gate, f"{HOST}:{port}"
    finally:
        local_cluster.down(tmp_path / "cluster")


@pytest.mark.timeout(OUTAGE + CATCH_UP + 300)
def test_an_outage_costs_no_event_and_no_client_anything(
    cluster: tuple[ClusterState, Gate, str], native: Native, tmp_path: Path
) -> None:
    _, gate, internal = cluster
    port, upstream, admin = free_ports(3)
    frames = write_frames(tmp_path / "frames", fetched=1000, produced=1000, record=100, stub_port=port)
    path = tmp_path / "sidecar.yaml"
    config = {
        "broker.id": 1,
        "internal.bootstrap.servers": internal,
        "listeners": [{"name": "CLIENT", "bind": f"{HOST}:{port}", "upstream": f"{HOST}:{upstream}"}],
        "observer.class.names": ["observers.audit:AuditObserver"],
        "audit": {"spool.path": str(tmp_path / "spool")},
        "observer.shutdown.timeout.ms": 20_000,
        "admin": {"bind": f"{HOST}:{admin}"},
    }
    path.write_text(yaml.safe_dump(config))
    stub = subprocess.Popen([native.stub, str(upstream), tmp_path / "frames"])
    load: subprocess.Popen[str] | None = None
    try:
        sidecar = SidecarProcess.start(path, tmp_path / "sidecar.log", f"{HOST}:{admin}")
        try:
            load = subprocess.Popen(
                [native.load, "requests", str(port), frames["small"], "conns=50", f"rate={RATE}",
                 f"warm={CALM}", f"secs={OUTAGE + CALM + LATE}"],
                stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            time.sleep(CALM)
            before = sidecar.metric("process_resident_memory_bytes")
            gate.shut()
            time.sleep(OUTAGE)
            while sample(text := sidecar.metrics(), "brokerside_audit_spooled") < 0.9 * RATE * OUTAGE:
                assert load.poll() is None, "the load ended before that"
                time.sleep(0.1)  # a busy machine is behind
            gate.open()
            asked = json.loads(load.communicate(timeout=300)[0].splitlines()[-1])
            began = time.monotonic()
            wait_delivered(sidecar, CATCH_UP)
            caught_up = time.monotonic() - began
        finally:
            assert sidecar.stop()
    finally:
        for process in (load, stub):
            if process is not None:
                process.kill()
                process.communicate()

    spooled = sample(text, "brokerside_audit_spooled")
    grown = sample(text, "process_resident_memory_bytes") - before
    on_disk = sample(text, "brokerside_audit_spool_bytes")
    print(
        f"{asked['requests']:,} requests at {RATE:,}/s, {asked['errors']} errors; at the outage's end {spooled:,.0f} "
        f"events on disk in {on_disk / 2**20:.0f} MiB, {grown / 2**20:.1f} MiB more memory; caught up {caught_up:.0f} "
        f"s after the load; {asked}"
    )
    assert asked["errors"] == 0
    assert on_disk <= 2**30
    assert grown <= MEMORY
    held = list(envelopes_raw(internal))  # three million events, at full size: none is decoded that need not be
    ranges = sorted({(one.first_seq, one.last_seq) for one in map(Range.decoder.decode, held)})
    assert [first for first, _ in ranges] == [1, *[last + 1 for _, last in ranges[:-1]]]
    distinct = {Range.decoder.decode(one).first_seq: one for one in held}
    assert sum(one.count(b'"api":"Produce"') for one in distinct.values()) == asked["requests"]
    status = decoder.decode(distinct[ranges[-1][0]]).events[-1]
    assert isinstance(status, StatusEvent)
    assert (status.seq, status.dropped) == (ranges[-1][1], {})
