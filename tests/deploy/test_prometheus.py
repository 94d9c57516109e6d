"""The alerts: checked by promtool, and each fired by a provoked fault and resolved, in a real Prometheus.

No fault is provoked for MemoryFull (it takes 96 MB of requests that a broker does not answer), SessionsAbandoned (a bug
of ours) and LogLinesLost (a log that nobody reads: tests/integration/test_process.py): promtool alone tests these.
"""

import contextlib
import os
import re
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from msgspec import structs

from proxy.fleet.sidecar_record import decode, encode, record_key
from proxy.local import cluster as local_cluster
from proxy.local.broker import AUDIT_TOPIC
from proxy.local.cluster import ClusterState
from proxy.local.sidecars import SidecarProcess
from proxy.telemetry.definitions import METRICS
from tests.brokers import start_again
from tests.deploy.prometheus import CASES, RULES, Prometheus, program, rules, scraping, shortened_rules
from tests.deploy.running import Running, configuration, output_of, transfer, until
from tests.frames import request
from tests.tools.bench.measure import children
from tests.tools.topic import messages

DOCS = Path(__file__).parents[2] / "docs"
OF_PROMETHEUS = {"up", "process_start_time_seconds"}
METADATA = 3
FAULTY = "tests.faults.harmful:Faulty"


@pytest.mark.slow
@pytest.mark.promise("operations.md", "Prometheus takes the rules of the alerts, and they fire in their cases.")
def test_promtool_finds_no_mistake() -> None:
    promtool, environment = program("promtool")
    for arguments in (("check", "rules", RULES), ("test", "rules", CASES)):
        assert "SUCCESS" in output_of(promtool, *arguments, env=environment)


@pytest.mark.promise("operations.md", "Each alert leads to its section of the runbook.")
def test_each_alert_has_a_case_a_severity_and_a_section_in_the_runbook() -> None:
    headings = re.findall(r"^#+ (\w+)$", (DOCS / "operations.md").read_text(), re.MULTILINE)
    names = [rule["alert"] for rule in rules()]
    assert sorted(set(re.findall(r'alertname="(\w+)"', CASES.read_text()))) == sorted(names)
    assert [heading for heading in headings if heading.startswith("Brokerside")] == names
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
        assert rule["annotations"]["runbook_url"] == f"docs/operations.md#{rule['alert'].lower()}"


def test_each_metric_of_an_alert_is_one_that_there_is() -> None:
    known = {f"brokerside_{metric.name}" for metric in METRICS}
    for rule in rules():
        used = set(re.findall(r"\b(?:brokerside|process)_\w+|\bup\b", rule["expr"]))
        assert used
        assert used - known <= OF_PROMETHEUS


class Site:
    """A sidecar with two workers before the cluster's first node, and a Prometheus that scrapes it."""

    def __init__(self, cluster: ClusterState, folder: Path) -> None:
        self.node = cluster.nodes[0]
        self.cluster = cluster
        self.folder = folder
        self.fault = folder / "fault"
        self.config = configuration(
            cluster,
            workers=2,
            observer_class_names=["observers.audit:AuditObserver", FAULTY],
            observers={FAULTY: {"while": str(self.fault)}},
        )
        self.config["audit"]["spool.path"] = str(folder / "spool")
        self.file = folder / "sidecar.yaml"
        self.running = Running(self.node.admin)
        self.sidecar: SidecarProcess
        self.prometheus: Prometheus

    @property
    def broker(self) -> int:
        """Its pid, which changes with each start."""
        state = local_cluster.status(self.node.home.parent)
        assert state is not None
        assert state.nodes[0].process is not None
        return state.nodes[0].process.pid

    def start(self, **changes: Any) -> None:
        """Start the sidecar, with other values for some keys."""
        self.write(**changes)
        self.sidecar = SidecarProcess.start(self.file, self.folder / "sidecar.log", self.node.admin)

    def restart(self, **changes: Any) -> None:
        assert self.sidecar.stop()
        self.start(**changes)

    def write(self, **changes: Any) -> None:
        """Write its configuration, with other values for some keys."""
        self.file.write_text(yaml.safe_dump(self.config | {key.replace("_", "."): v for key, v in changes.items()}))

    def workers(self) -> list[int]:
        return children(self.sidecar.process.pid)

    def connect(self) -> socket.socket:
        host, _, port = self.node.advertised.rpartition(":")
        return socket.create_connection((host, int(port)), 10)

    @contextmanager
    def connecting(self) -> Iterator[None]:
        """Open connections all the time, and close each at once."""
        with repeating(lambda: self.connect().close(), 0.02):
            yield


@contextmanager
def repeating(what: Callable[[], object], pause: float) -> Iterator[None]:
    """Do it again and again on another thread, whatever it raises of the network."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(pause):
            with contextlib.suppress(OSError):
                what()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def limited(pids: list[int], kind: int, value: int) -> Iterator[None]:
    before = [resource.prlimit(pid, kind, (value, resource.prlimit(pid, kind)[1])) for pid in pids]
    try:
        yield
    finally:
        for pid, limits in zip(pids, before, strict=True):
            resource.prlimit(pid, kind, limits)


def down(site: Site) -> AbstractContextManager[None]:
    return stopped(site.sidecar.process.pid)


@contextmanager
def restarting(site: Site) -> Iterator[None]:
    for _ in range(3):
        before = starts(site)
        site.restart()
        until(lambda before=before: starts(site) - before, "the start is scraped")
    yield


def starts(site: Site) -> set[str]:
    """Return when the sidecar has started, as Prometheus knows it; nothing while there is none."""
    return {one["value"][1] for one in site.prometheus.ask("process_start_time_seconds")}


@contextmanager
def broker_unreachable(site: Site) -> Iterator[None]:
    local_cluster.stop_node(site.node.home.parent, site.node.id)
    with site.connecting():
        yield
    start_again(site.node.home.parent, site.node.id)


@contextmanager
def not_accepting(site: Site) -> Iterator[None]:
    pid = site.sidecar.process.pid
    with limited([pid], resource.RLIMIT_NOFILE, len(os.listdir(f"/proc/{pid}/fd"))), site.connecting():
        yield


@contextmanager
def loop_late(site: Site) -> Iterator[None]:
    def stop() -> None:
        with stopped(site.sidecar.process.pid):
            time.sleep(0.5)

    with repeating(stop, 0.08):
        yield


@contextmanager
def worker_lost(site: Site) -> Iterator[None]:
    os.kill(site.workers()[0], signal.SIGKILL)
    yield


@contextmanager
def config_rejected(site: Site) -> Iterator[None]:
    site.write(log_level="loud")
    yield
    site.write()


@contextmanager
def broker_stopped(site: Site) -> Iterator[None]:
    """Also the quotas are not read then, and events are not delivered."""
    with stopped(site.broker), site.connecting():
        yield


@contextmanager
def foreign_registry_record(site: Site) -> Iterator[None]:
    producer = Producer({"bootstrap.servers": site.cluster.internal_bootstrap})
    producer.produce("__brokerside_registry", b"{}", b"of-nobody")
    assert producer.flush(30) == 0
    yield


@contextmanager
def broker_id_taken(site: Site) -> Iterator[None]:
    """A sidecar that was started later registers with the same ``broker.id``."""
    registry, key = "__brokerside_registry", record_key(site.node.id)
    own = [one.value() for one in messages(site.cluster.internal_bootstrap, registry) if one.key() == key][-1]
    record = decode(own or b"")
    later = encode(structs.replace(record, boot_id="later", timestamp=str(int(record.timestamp) + 1)))
    producer = Producer({"bootstrap.servers": site.cluster.internal_bootstrap})

    def register() -> None:
        producer.produce(registry, later, key)
        producer.flush(30)

    with repeating(register, 2):
        yield


@contextmanager
def connections_closed(site: Site) -> Iterator[None]:
    site.write(quotas={"max.connections.per.ip": 1})
    with site.connect() as kept, repeating(lambda: asked(kept), 1), site.connecting():
        yield
    site.write()


@contextmanager
def acceptor_blocked(site: Site) -> Iterator[None]:
    site.write(quotas={"max.connection.creation.rate": 1, "quota.window.num": 2})
    with site.connecting():
        yield
    site.write()


@contextmanager
def connections_near_limit(site: Site) -> Iterator[None]:
    site.write(quotas={"max.connections": 10})
    with contextlib.ExitStack() as stack:
        for _ in range(9):
            asked(stack.enter_context(site.connect()))
        yield
    site.write()


@contextmanager
def events_lost(site: Site) -> Iterator[None]:
    """Events that wait in the memory of a worker are lost with it, where there is no spool."""
    site.restart(audit={"topic": AUDIT_TOPIC})
    with stopped(site.broker):
        with site.connecting():
            until(lambda: site.running.metric("brokerside_audit_queued") > 0, "events wait in memory")
            time.sleep(2)  # until the main process has heard of them
        for worker in site.workers():
            os.kill(worker, signal.SIGKILL)
        yield
    site.restart()


@contextmanager
def spool_failed(site: Site) -> Iterator[None]:
    with limited(site.workers(), resource.RLIMIT_FSIZE, 0), site.connecting():
        yield


@contextmanager
def topic_problem(site: Site) -> Iterator[None]:
    alter_audit_topic(site, AlterConfigOpType.SET)
    site.restart()
    yield
    alter_audit_topic(site, AlterConfigOpType.DELETE)
    site.restart()


def alter_audit_topic(site: Site, operation: AlterConfigOpType) -> None:
    """Set the topic's retention to an hour, or take that back."""
    entry = ConfigEntry("retention.ms", "3600000", incremental_operation=operation)
    resource_ = ConfigResource(ResourceType.TOPIC, AUDIT_TOPIC, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": site.cluster.internal_bootstrap})
    admin.incremental_alter_configs([resource_])[resource_].result(180)


@contextmanager
def observer_raises(site: Site) -> Iterator[None]:
    site.fault.touch()
    with site.connect() as sock, repeating(lambda: asked(sock), 0.005):
        yield
    site.fault.unlink()


def asked(sock: socket.socket) -> None:
    """Ask for metadata and read the answer."""
    sock.sendall(request(METADATA, 1, 1, b"\0\0\0\0"))
    size = int.from_bytes(sock.recv(4, socket.MSG_WAITALL))
    sock.recv(size, socket.MSG_WAITALL)


FAULTS: dict[str, Callable[[Site], AbstractContextManager[None]]] = {
    "BrokersideDown": down,
    "BrokersideRestarting": restarting,
    "BrokersideBrokerUnreachable": broker_unreachable,
    "BrokersideNotAccepting": not_accepting,
    "BrokersideLoopLate": loop_late,
    "BrokersideWorkerLost": worker_lost,
    "BrokersideConfigRejected": config_rejected,
    "BrokersideQuotasUnread": broker_stopped,
    "BrokersideAuditNotDelivered": broker_stopped,
    "BrokersideRegistryRecordsDropped": foreign_registry_record,
    "BrokersideBrokerIdTaken": broker_id_taken,
    "BrokersideConnectionsClosed": connections_closed,
    "BrokersideAcceptorBlocked": acceptor_blocked,
    "BrokersideConnectionsNearLimit": connections_near_limit,
    "BrokersideAuditEventsLost": events_lost,
    "BrokersideAuditSpoolFailed": spool_failed,
    "BrokersideAuditTopicProblem": topic_problem,
    "BrokersideObserverLosesExchanges": observer_raises,
}


def test_a_fault_is_provoked_for_all_alerts_but_five() -> None:
    untested = {"BrokersideMemoryFull", "BrokersideSessionsAbandoned", "BrokersideLogLinesLost"}
    untested |= {"BrokersideCoordinatorMute", "BrokersideRebalancesFail"}  # the site coordinates no groups
    assert FAULTS.keys() | untested == {rule["alert"] for rule in rules()}


@pytest.fixture(scope="module")
def site(cluster: ClusterState, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("alerts")
    made = Site(cluster, folder)
    made.start()
    try:
        with scraping(folder / "prometheus", {"brokerside": made.node.admin}, shortened_rules()) as prometheus:
            made.prometheus = prometheus
            yield made
    finally:
        assert made.sidecar.stop()


@pytest.mark.deploy
@pytest.mark.kafka
@pytest.mark.timeout(600)
@pytest.mark.parametrize("alert", FAULTS)
@pytest.mark.promise("operations.md", "Each alert fires while its fault lasts, and resolves after it.")
def test_an_alert_fires_for_its_fault_and_resolves(alert: str, site: Site, topic: str) -> None:
    with FAULTS[alert](site):
        until(lambda: alert in site.prometheus.firing(), f"{alert} fires")
        annotations = site.prometheus.firing().get(alert)
    assert annotations is None or not re.search(r"<no value>|<error|\{\{", str(annotations))
    until(lambda: alert not in site.prometheus.firing(), f"{alert} is resolved", 180)
    site.running.wait_ready()
    transfer(site.node.advertised, topic, 20)
