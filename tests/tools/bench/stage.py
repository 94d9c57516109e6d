"""What a run needs around its contestants: CPUs, stub broker, load generator, the cluster that takes the audit."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from observers.background import BackgroundThreads
from proxy.errors import LocalError
from proxy.local import cluster
from proxy.local.ports import HOST, free_ports, is_free
from proxy.local.state import Node
from proxy.local.workload import create_topics
from tests.tools.bench import native
from tests.tools.bench.contestants import Contestant, Running, Wiring
from tests.tools.bench.frames import write_frames
from tests.tools.bench.measure import Clock, pinned

DESCRIPTORS = 65_536
"""Wanted limit of open files: 9,500 connections take 19,000 in a proxy."""

DESCRIPTORS_BESIDE = 100
"""That a proxy may need beside those of connections."""

SETTLE = 0.3
"""Seconds after a load in which a sidecar continues delivering, before that is checked."""

START_ATTEMPTS = 3
"""Of one contestant: a port that was free may be another process's a moment later."""

DELIVERY_TIMEOUT = 60.0
QUIET = 0.1
"""Foreign CPU, as a share of one, below which the machine is quiet."""

LOAD_TIMEOUT = 180.0
IDLE_TIMEOUT = 20.0

BOUNDS = {"group.consumer.min.session.timeout.ms": "1000", "group.consumer.min.heartbeat.interval.ms": "500"}
"""Of brokers, lowered: what groups may ask for."""


@dataclass(frozen=True)
class Sizes:
    """How much of everything; times in seconds. ``seconds`` of each load follow after ``warm``, which is also how long
    each kind of traffic goes through a contestant before its first load; ``idle``: how many connections stay open;
    ``calm``: from a start until a process is at rest, which is then watched for ``watch``; ``kafka_records``: of 1 KiB.
    ``quiet_wait``: how long to wait for others to be quiet; with 0 a measurement that was disturbed is not repeated
    either. ``job_events``, ``job_keys``: of the topics that jobs
    read, events and keys a minute; ``job_batches`` of a continuous job are watched, and ``job_cold_events`` are read
    by a new process; ``table_rows``: of the table ``traffic`` that others are computed from.
    ``group_members`` of each group, which reads ``group_partitions``; ``group_slow``: also events that take a session
    timeout of 45 s; ``scale_consumers`` are watched for ``scale_seconds``."""

    seconds: float
    warm: float
    idle: tuple[int, ...]
    calm: float
    watch: float
    kafka_records: int
    quiet_wait: float
    job_events: tuple[int, ...]
    job_keys: tuple[int, ...]
    job_batches: int
    job_cold_events: int
    table_rows: int
    group_members: int
    group_partitions: int
    group_slow: bool
    scale_consumers: int
    scale_seconds: float


FULL = Sizes(
    seconds=2.0, warm=0.3, idle=(1_000, 5_000, 9_500), calm=1.5, watch=3.0, kafka_records=300_000,
    quiet_wait=3.0, job_events=(1_000_000,), job_keys=(500, 5_000), job_batches=5,
    job_cold_events=10_000, table_rows=1_000_000, group_members=50, group_partitions=200, group_slow=True,
    scale_consumers=5_000, scale_seconds=60.0,
)  # fmt: skip
QUICK = Sizes(
    seconds=0.4, warm=0.1, idle=(200,), calm=0.5, watch=0.5, kafka_records=20_000,
    quiet_wait=0.0, job_events=(5_000,), job_keys=(500,), job_batches=1, job_cold_events=1_000,
    table_rows=5_000, group_members=10, group_partitions=40, group_slow=False, scale_consumers=200, scale_seconds=5.0,
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What one load gave. ``load``: what the generator printed; ``cpu``: seconds of the contestant over all of it;
    ``system_share``: of it, in the kernel; ``foreign``: CPU of others, as a share of one; ``events`` and
    ``log_bytes``: what reached the audit topic."""

    load: Mapping[str, float]
    cpu: float
    foreign: float
    events: float = 0.0
    log_bytes: int = 0
    system_share: float = 0.0


class Stage:
    """Use as a context manager: what was started is ended, and the folder removed, whatever happens."""

    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self.folder = folder
        self.sizes = sizes
        self.cluster: cluster.ClusterState | None = None
        self.running: list[Running] = []
        self.versions: dict[str, str] = {}
        self._native = native.build()
        self._affinity = os.sched_getaffinity(0)
        self.cpus = sorted(self._affinity)
        self.load_cpus = self.cpus[1:] or self.cpus
        self._count = 0
        self._kept: dict[str, Running] = {}
        self._contexts = ExitStack()
        self._brokers: list[int] = []
        self.descriptors = _raise_descriptor_limit()

    def __enter__(self) -> Stage:
        with ExitStack() as contexts:
            self._prepare(contexts)
            self._contexts = contexts.pop_all()
        return self

    def _prepare(self, contexts: ExitStack) -> None:
        contexts.callback(shutil.rmtree, self.folder, ignore_errors=True)
        contexts.callback(os.sched_setaffinity, 0, self._affinity)
        os.sched_setaffinity(0, self.load_cpus)
        (self.stub_port,) = free_ports(1)
        frames = self.folder / "frames"
        self._frames = write_frames(frames)
        log = contexts.enter_context((self.folder / "stub.log").open("wb"))
        self._stub = subprocess.Popen([str(self._native / "stub"), str(self.stub_port), str(frames)], stderr=log)
        contexts.callback(self._stub.wait)
        contexts.callback(self._stub.kill)
        while is_free(self.stub_port):
            if self._stub.poll() is not None:
                raise LocalError(f"the stub broker ended: {(self.folder / 'stub.log').read_text()}")
            time.sleep(0.01)

    def __exit__(self, *_: object) -> None:
        self._contexts.close()

    def start_cluster(self) -> cluster.ClusterState:
        """The single node that takes the audit topics, started at the first call. Raises LocalError."""
        if self.cluster is None:
            folder = self.folder / "cluster"
            # Stub and load share its CPUs, and are not to wait for it: that would count as a proxy's latency.
            with BackgroundThreads():
                self.cluster = cluster.up(folder, progress=False)
                self._contexts.callback(cluster.stop_node, folder, 1, kill=True)
        return self.cluster

    def kept(self, contestant: Contestant) -> Running:
        """The process of a contestant that runs through the run, stopped between measurements; started, and warm,
        from the first call on. Raises MissingError, LocalError."""
        running = self._kept.get(contestant.name)
        if running is None or not running.alive:
            running = self._kept[contestant.name] = self.start(contestant)
            for request in ("small", "produce", "fetch"):
                self.load(running, "requests", request, conns=8, warm=0.0, secs=self.sizes.warm)
        return running

    def start(
        self,
        contestant: Contestant,
        *,
        cpus: Collection[int] | None = None,
        keys: Mapping[str, object] | None = None,
        listen: int | None = None,
        upstream: int | None = None,
    ) -> Running:
        """Start one before the stub, or before ``upstream``. Raises MissingError, LocalError.

        ``cpus``: where it runs, by default on the first one alone. ``keys``: further configuration of a sidecar.
        """
        audit = self.start_cluster().internal_bootstrap if contestant.audited else ""
        for left in reversed(range(START_ATTEMPTS)):
            self._count += 1
            admin, port = free_ports(2)
            folder = self.folder / f"{contestant.name}-{self._count}"
            wiring = Wiring(folder, listen or port, upstream or self.stub_port, admin, audit, dict(keys or {}))
            try:
                running = Running(contestant, wiring, cpus or self.cpus[:1])
                break
            except LocalError as error:
                if not left or "address already in use" not in str(error).lower():
                    raise
        self.running.append(running)
        self._contexts.callback(self.stop, running)
        if contestant.command is not None:
            self.versions[contestant.name] = running.version
        return running

    @contextmanager
    def started(self, contestant: Contestant, **more: Any) -> Iterator[Running]:
        """One for the block; see ``start``."""
        running = self.start(contestant, **more)
        try:
            yield running
        finally:
            self.stop(running)

    @contextmanager
    def broker(self, topic: str) -> Iterator[Node]:
        """One of its own for the block, with the topic that all groups read. Raises LocalError."""
        folder = Path(mkdtemp(prefix="broker-", dir=self.folder))
        state = cluster.up(folder, broker_properties=BOUNDS, progress=False)
        try:
            create_topics(state.internal_bootstrap, {topic: {}}, self.sizes.group_partitions)
            self._brokers = [node.pid for node in state.nodes if node.pid]
            yield state.nodes[0]
        finally:
            self._brokers = []
            cluster.discard(folder)

    @contextmanager
    def everywhere(self) -> Iterator[None]:
        """Let stub and load run on every CPU too."""
        os.sched_setaffinity(self._stub.pid, self.cpus)
        try:
            with pinned(self.cpus):
                yield
        finally:
            os.sched_setaffinity(self._stub.pid, self.load_cpus)

    def check_descriptors(self, connections: int) -> None:
        """Raises LocalError where a proxy would need more descriptors than are allowed."""
        needed = connections + DESCRIPTORS_BESIDE
        if needed > self.descriptors:
            raise LocalError(
                f"{needed} descriptors are needed (allowed here: {self.descriptors}; raise it by ulimit -n)"
            )

    def stop(self, running: Running) -> None:
        if running in self.running:
            self.running.remove(running)
            running.stop()

    def wait_quiet(self) -> None:
        """Wait until nobody else uses the machine, or as long as this run may wait."""
        deadline = time.monotonic() + self.sizes.quiet_wait
        while time.monotonic() < deadline:
            before = self.read([])
            time.sleep(0.2)
            if self.read([]).foreign(before) < QUIET:
                return

    def read(self, measured: list[int]) -> Clock:
        """A reading of the clocks; ``measured`` are a contestant's processes."""
        others = [self._stub.pid, *self._brokers]
        if self.cluster is not None and (pid := self.cluster.nodes[0].pid):
            others.append(pid)
        return Clock.read(measured, others)

    def frame(self, request: str) -> bytes:
        return self._frames[request].read_bytes()

    def load(self, running: Running, mode: str, request: str, **numbers: float) -> Outcome:
        """Put one load on ``running``, which is up to ``SETTLE`` seconds and more behind it if it audits."""
        running.resume()
        pids = running.pids
        audited = running.contestant.audited
        events, log_bytes = (self._delivered(running), self._log_bytes(running)) if audited else (0.0, 0)
        before = self.read(pids)
        said = self._run_load(running.port, mode, request, numbers)
        after = self._settled(running, pids, events + said["requests"]) if audited else self.read(pids)
        return Outcome(
            said,
            after.measured - before.measured,
            after.foreign(before),
            self._delivered(running) - events if audited else 0.0,
            self._log_bytes(running) - log_bytes if audited else 0,
            after.system_share(before),
        )

    @contextmanager
    def holding_idle(self, running: Running, count: int) -> Iterator[None]:
        """So many connections that have had one request, open for the block. Raises OSError, LocalError."""
        with ExitStack() as stack:
            for _ in range(count):
                sock = stack.enter_context(socket.create_connection((HOST, running.port), IDLE_TIMEOUT))
                sock.sendall(self.frame("hello"))
                answers = sock.makefile("rb")
                if not answers.read(int.from_bytes(answers.read(4), "big")):
                    raise LocalError(f"{running.contestant.name} has closed one of {count} connections")
            yield

    def _run_load(self, port: int, mode: str, request: str, numbers: dict[str, float]) -> dict[str, Any]:
        given = {"warm": self.sizes.warm, "secs": self.sizes.seconds, **numbers}
        options = [f"{name}={value:g}" for name, value in given.items()]
        command = [str(self._native / "load"), mode, str(port), str(self._frames[request]), *options]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LOAD_TIMEOUT, check=True)
        except subprocess.TimeoutExpired:
            raise LocalError(f"the load {mode} {request} has not ended after {LOAD_TIMEOUT:.0f} s") from None
        except subprocess.CalledProcessError as error:
            raise LocalError(f"the load {mode} {request} ended with {error.returncode}: {error.stderr}") from None
        said: dict[str, Any] = json.loads(done.stdout)
        if not said["requests"]:
            raise LocalError(f"no request of {mode} {request} was answered; {said['errors']} errors")
        return said

    def _settled(self, running: Running, pids: list[int], events: float) -> Clock:
        """The clocks at the moment when ``events`` have been delivered; asking for metrics is not counted."""
        deadline = time.monotonic() + DELIVERY_TIMEOUT
        while True:
            time.sleep(SETTLE)
            clock = self.read(pids)
            if self._delivered(running) >= events or time.monotonic() > deadline:
                return clock

    def _delivered(self, running: Running) -> float:
        return running.counted("brokerside_audit_delivered_total")

    def _log_bytes(self, running: Running) -> int:
        assert self.cluster is not None
        topic = f"audit-{running.wiring.folder.name}"
        logs = self.cluster.nodes[0].data.glob(f"{topic}-*/*.log")
        return sum(log.stat().st_size for log in logs)


def port_of(address: str) -> int:
    """Of ``host:port``."""
    return int(address.rpartition(":")[2])


def _raise_descriptor_limit() -> int:
    """Raise the soft limit to the hard one, and the hard one where that is allowed; returns what it is then."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(hard, DESCRIPTORS), max(hard, DESCRIPTORS)))
    except (OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
