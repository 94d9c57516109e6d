"""``workers: N``: connections spread over processes, counts that add up, and what happens when one of them dies."""

import contextlib
import os
import select
import signal
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from observers.account_events import StatusEvent
from observers.cluster_events import InventoryEvent
from observers.event import ConnectionEvent, RequestEvent
from proxy.local import process
from proxy.local.sidecars import SidecarProcess
from tests.frames import API_VERSIONS, request
from tests.integration.librdkafka import consume, produce
from tests.integration.metrics import sample, unbalanced
from tests.integration.quotas import Peer
from tests.integration.sidecars import config_of, running, until
from tests.integration.test_audit import envelopes, events, gaps
from tests.tools.bench.measure import children

pytestmark = pytest.mark.kafka


@pytest.fixture
def start(cluster):
    node = cluster.nodes[0]
    with contextlib.ExitStack() as stack:

        def start(**settings):
            config = config_of(node, **{"workers": 2, "observer.class.names": None, **settings})
            return stack.enter_context(running(config, node.home.parent))

        yield start


class Client(Peer):
    def send(self) -> None:
        self._asked += 1
        self.sock.sendall(request(API_VERSIONS, 0, self._asked))

    def answered(self, seconds: float = 60) -> bool:
        """Whether the answer came; False where none did in time, or the connection ended."""
        self.sock.settimeout(seconds)
        try:
            return bool(self._answer(self._asked))
        except OSError:
            return False

    def works(self) -> bool:
        with contextlib.suppress(OSError):
            self.send()
        return self.answered()


@pytest.fixture
def dial(cluster):
    clients: list[Client] = []

    def dial(count):
        new = [Client(cluster.bootstrap) for _ in range(count)]
        clients.extend(new)
        return new

    yield dial
    for client in clients:
        client.sock.close()


def workers_of(sidecar: SidecarProcess) -> list[int]:
    return sorted(filter(alive, children(sidecar.process.pid)))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def spread(text: str) -> list[float]:
    """Open connections of each worker."""
    return [sample(text, "brokerside_worker_connections", worker=worker) for worker in ("1", "2")]


@pytest.mark.promise(
    "architecture.md",
    "With `workers: N` each connection goes to the worker that has the fewest, and counts of all processes "
    "add up exactly.",
)
def test_connections_are_spread_and_counts_are_exact(start, dial):
    sidecar = start()
    clients = dial(20)
    for _ in range(50):
        for client in clients:
            client.send()
        assert all(client.answered() for client in clients)
    until(lambda: sample(sidecar.metrics(), "brokerside_responses_total", api="ApiVersions") == 1000)
    text = sidecar.metrics()
    assert spread(text) == [10, 10]
    assert sample(text, "brokerside_requests_total", api="ApiVersions") == 1000
    assert sample(text, "brokerside_connections_active") == 20
    assert unbalanced(text) == []
    for client in clients[::2]:
        client.sock.close()
    until(lambda: sample(sidecar.metrics(), "brokerside_connections_closed_total", cause="client_closed") >= 10)
    clients = clients[1::2] + dial(10)
    until(lambda: spread(sidecar.metrics()) == [10, 10])
    assert unbalanced(sidecar.metrics()) == []
    pids = [sidecar.process.pid, *workers_of(sidecar)]
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    cpu = sum(int(ticks) for stat in stats for ticks in stat[11:13])
    assert abs(sidecar.metric("process_cpu_seconds_total") - cpu / os.sysconf("SC_CLK_TCK")) < 0.5


@pytest.mark.promise(
    "audit-delivery.md", "With several workers no event is missing, and one of them alone emits the inventory."
)
def test_the_audit_of_all_workers_is_complete(start, cluster, topic):
    audit = f"audit-{topic}"
    settings = {"observer.class.names": ["observers.audit:AuditObserver"], "audit": {"topic": audit}}
    sidecar = start(**settings, **{"observer.shutdown.timeout.ms": 20_000})  # there is no spool
    for _ in range(2):  # each client opens several connections, so both workers get some
        assert produce(cluster.bootstrap, topic, [b"v"] * 500, **{"linger.ms": 0, "batch.num.messages": 10}) == 500
    assert len(consume(cluster.bootstrap, topic, 1000)) == 1000
    until(lambda: sample(sidecar.metrics(), "brokerside_connections_active") == 0)
    requests = sample(sidecar.metrics(), "brokerside_requests_total")
    accepted = sample(sidecar.metrics(), "brokerside_connections_accepted_total")
    until(lambda: events(envelopes(cluster.internal_bootstrap, audit), InventoryEvent))  # in its own time
    assert sidecar.stop()
    read = envelopes(cluster.internal_bootstrap, audit)
    boots = {envelope.boot_id for envelope in read}
    assert len(boots) == 2
    assert [gaps([envelope for envelope in read if envelope.boot_id == boot]) for boot in boots] == [0, 0]
    assert len(events(read, RequestEvent)) == requests
    changes = Counter(event.change for event in events(read, ConnectionEvent))
    assert changes == {"opened": accepted, "closed": accepted}
    assert sum(event.requests for event in events(read, ConnectionEvent)) == requests
    last = [event for event in events(read, StatusEvent) if event.last]
    assert sum(event.seen for event in last) == requests + 2 * accepted
    assert (sum(event.waiting for event in last), sum(event.hidden for event in last)) == (0, 0)
    listed = {envelope.boot_id for envelope in read if events([envelope], InventoryEvent)}
    assert len(listed) == 1, "one of the workers emits the inventory"


@pytest.mark.promise(
    "architecture.md",
    "A worker that hangs holds up no connection of another one, and what it has no room for goes to the others.",
)
@pytest.mark.slow
def test_a_worker_that_hangs_holds_up_nobody_else(start, dial):
    sidecar = start()
    stopped = workers_of(sidecar)[0]
    os.kill(stopped, signal.SIGSTOP)
    clients = dial(10)
    for client in clients:
        client.send()
    sockets = [client.sock for client in clients]
    until(lambda: len(select.select(sockets, [], [], 0)[0]) >= 5)
    waiting = [client for client in clients if not client.answered(0.2)]
    assert len(waiting) == 5
    assert sample(sidecar.metrics(), "brokerside_connections_active") == 10
    os.kill(stopped, signal.SIGCONT)
    assert all(client.answered() for client in waiting)
    until(lambda: sample(sidecar.metrics(), "brokerside_requests_total") == 10)

    os.kill(stopped, signal.SIGSTOP)
    clients += dial(790)  # its socket holds less than 300 messages
    until(lambda: sample(sidecar.metrics(), "brokerside_connections_accepted_total") == 800)
    fewer, more = sorted(spread(sidecar.metrics()))
    assert fewer < 305 < more
    os.kill(stopped, signal.SIGKILL)
    until(lambda: sample(sidecar.metrics(), "brokerside_worker_restarts_total") == 1)
    works = [client.works() for client in clients]
    text = sidecar.metrics()
    lost = sample(text, "brokerside_connections_closed_total", cause="worker_lost")
    assert lost == works.count(False)
    assert lost in {fewer - 1, fewer}  # the one that was on its way goes to another
    assert unbalanced(text) == []
    workers = workers_of(sidecar)
    process.stop([sidecar.process], 5, kill=True)
    until(lambda: not any(map(alive, workers)))  # they end with the main process


@pytest.mark.promise(
    "operations.md", "At SIGTERM a sidecar with workers answers what is open, drains in each of them, and all end."
)
def test_a_drain_waits_for_what_is_open(start, cluster, topic):
    sidecar = start()
    workers = workers_of(sidecar)
    settings = {"fetch.wait.max.ms": 1000, "fetch.min.bytes": 1000, "socket.timeout.ms": 2000}
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", **settings})
    with contextlib.closing(consumer):
        consumer.assign([TopicPartition(topic, 0, 0)])
        until(lambda: consumer.poll(0.05) or sample(sidecar.metrics(), "brokerside_requests_total", api="Fetch"))
        os.kill(sidecar.process.pid, signal.SIGTERM)
        until(lambda: not sidecar.process.alive())
    assert not any(map(alive, workers))
    log = sidecar.log.read_text()
    assert [log.count(f'"drained", "cut": 0, "worker": {worker}') for worker in (1, 2)] == [1, 1]
    assert log.count('"stopped"') == 1
