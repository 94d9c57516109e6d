"""docs/rollout.md, step by step, on a cluster of three real brokers under load."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Consumer, ElectionType, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic

from proxy.local import broker, cluster
from proxy.local.ports import HOST, free_ports
from proxy.local.sidecars import SidecarProcess
from proxy.local.state import ClusterState, Node, save
from tests.brokers import start_again
from tests.integration.sidecars import until
from tests.integration.test_hot_restart import Load
from tests.tools.fragments import blocks
from tests.tools.topic import create

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

TOPIC = "orders"
PORTS = (9092, 9093, 19092, 19094, 9644)

BEFORE, INTERNAL_THERE, INTERNAL_USED, BEHIND_SIDECAR = range(4)
"""Steps: the blocks of the page, in its order."""


class Site:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        given = [block.properties() for block in blocks("properties", page="docs/rollout.md")]
        assert len(given) == 4
        self.lines = [
            {key: value for step in given[: number + 1] for key, value in step.items()} for number in range(4)
        ]
        ports = iter(free_ports(15))
        self.ports = {number: dict(zip(PORTS, islice(ports, len(PORTS)), strict=True)) for number in (1, 2, 3)}
        nodes = tuple(self.node(number, BEFORE) for number in self.ports)
        self.state = ClusterState("4.3.1", broker.new_id(), "broker", nodes)
        for node in nodes:
            self.write(node.id, BEFORE)
        save(folder, self.state)
        self.sidecars: dict[int, SidecarProcess] = {}

    def node(self, number: int, step: int) -> Node:
        ports = {port: f"{HOST}:{mapped}" for port, mapped in self.ports[number].items()}
        upstream = ports[19092] if step == BEHIND_SIDECAR else ports[9092]
        internal = ports[19094] if step >= INTERNAL_USED else upstream  # what a start waits for
        home = self.folder / f"node-{number}"
        return Node(number, ports[9092], upstream, internal, ports[9093], ports[9644], home)

    def write(self, number: int, step: int) -> None:
        """The properties of a broker at a step of the page, with its own ports on loopback."""
        mapped = self.ports[number]
        lines = {
            key: re.sub(r"://[\w.-]*:(\d+)", lambda found: f"://{HOST}:{mapped[int(found[1])]}", value)
            for key, value in self.lines[step].items()
        }
        broker.write_properties(self.state, self.node(number, step), {**lines, "min.insync.replicas": "2"})

    def restart(self, number: int, step: int) -> None:
        """Stop a broker and start it as it is at ``step``; wait until all its replicas are in sync."""
        cluster.stop_node(self.folder, number)
        self.write(number, step)
        known = cluster.status(self.folder)
        nodes = tuple(self.node(number, step) if node.id == number else node for node in known.nodes)
        save(self.folder, replace(known, nodes=nodes))
        start_again(self.folder, number)

    def start_sidecar(self, number: int) -> None:
        """As the README has it: with its own ports, and a broker that is another one."""
        (block,) = blocks("yaml", page="README.md")
        config = yaml.safe_load(block.text)
        ports = {port: f"{HOST}:{mapped}" for port, mapped in self.ports[number].items()}
        [listener] = config["listeners"]
        listener |= {"bind": ports[9092], "advertised": ports[9092], "upstream": ports[19092]}
        config |= {"broker.id": number, "internal.bootstrap.servers": ports[19094], "admin": {"bind": ports[9644]}}
        config["audit"]["spool.path"] = str(self.folder / "spool")
        config["takeover.socket.path"] = str(self.folder / f"{number}.sock")
        path = self.folder / f"sidecar-{number}.yaml"
        path.write_text(yaml.safe_dump(config))
        self.sidecars[number] = SidecarProcess.start(path, path.with_suffix(".log"), ports[9644])

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{ports[9092]}" for ports in self.ports.values())

    def in_sync(self) -> bool:
        """What ``--under-replicated-partitions`` asks for: every replica of every topic is in sync."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        names = [TOPIC, "__consumer_offsets"]
        try:
            found = [one.result(180) for one in admin.describe_topics(TopicCollection(names)).values()]
        except KafkaException:  # a broker that was just started may not know of them yet
            return False
        return all(len(part.isr) == len(part.replicas) == 3 for topic in found for part in topic.partitions)


class Readers(Load):
    """A producer and a consumer that know nothing of the rollout."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap, TOPIC, pause=0.01)
        self.read: list[int] = []
        settings = {"group.id": "rollout", "auto.offset.reset": "earliest", "log_level": 0}
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "enable.auto.commit": False, **settings})
        self._ended = threading.Event()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        self._consumer.subscribe([TOPIC])
        while not self._ended.is_set():
            message = self._consumer.poll(0.2)
            if message is not None and message.error() is None:
                self.read.append(int(message.value() or b""))
        self._consumer.close()

    def finish(self) -> None:
        super().finish()
        until(lambda: len(self.read) >= self.sent)
        self._ended.set()
        self._reading.join()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    folder = tmp_path / "cluster"
    folder.mkdir()
    made = Site(folder)
    try:
        cluster.up(folder, nodes=3, progress=False)
        yield made
    finally:
        for sidecar in made.sidecars.values():
            sidecar.stop()
        for number in made.ports:
            cluster.stop_node(folder, number, kill=True)


@pytest.mark.promise("rollout.md", "A cluster under load gets sidecars, and loses them, without a lost record.")
def test_a_cluster_under_load_gets_sidecars_and_loses_them_again_without_a_lost_record(site: Site) -> None:
    admin = AdminClient({"bootstrap.servers": site.bootstrap})
    create(admin, NewTopic(TOPIC, 3, 3))
    load = Readers(site.bootstrap)
    until(lambda: load.read)
    for step in (INTERNAL_THERE, INTERNAL_USED, BEHIND_SIDECAR):
        for number in site.ports:
            site.restart(number, step)
            if step == BEHIND_SIDECAR:
                site.start_sidecar(number)
            until(site.in_sync)
    read = len(load.read)
    until(lambda: len(load.read) > read + 100)
    admin.elect_leaders(ElectionType.PREFERRED).result(180)  # the last broker that was restarted leads nothing
    for sidecar in site.sidecars.values():
        until(lambda sidecar=sidecar: sidecar.metric("brokerside_requests_total") > 0)
    for number in site.ports:  # and back
        assert site.sidecars.pop(number).stop()
        site.restart(number, INTERNAL_USED)
        until(site.in_sync)
    load.finish()
    assert load.errors == []
    assert sorted(load.read) == list(range(load.sent)), "each record once"
