"""The watch over the fleet, before a cluster, a registry and brokers made of bytes."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
from msgspec import structs
from structlog.testing import capture_logs

from proxy.config import Config
from proxy.fleet import fleet_poller, later_run
from proxy.fleet.fleet_poller import FleetPoller
from proxy.fleet.membership import Membership
from proxy.fleet.registry import OnContent, RegistryThread
from proxy.fleet.sidecar_record import STOPPED, decode, encode, record_key
from proxy.fleet.topic_spec import TopicRecord
from proxy.interceptors.broker_metadata import BrokerView, FleetView
from proxy.protocol.versions import ranges, release_range, versions_for
from proxy.rpc import messages
from tests.unit.fleet.cluster import Cluster, eventually, text

NEW = versions_for(release_range("4.3"))


class Topic(RegistryThread):
    """A registry that only this process knows."""

    def __init__(self, reported: OnContent) -> None:
        self.reported = reported
        self.membership = Membership()
        self.written: list[tuple[int, bytes]] = []
        self.registered = False

    def report(self, records: Sequence[TopicRecord], end: bool) -> None:
        self.membership.apply(records)
        self.reported(self.membership.content(), end)

    def start(self) -> None:
        return

    def register(self, node_id: int, value: bytes) -> None:
        self.written.append((node_id, value))
        self.registered = True

    def withdraw(self) -> None:
        self.registered = False

    def restrict_to(self, ids: Collection[int]) -> None:
        self.membership.brokers = frozenset(ids)

    async def close(self) -> None:
        return


class Broker:
    """A port that answers ApiVersions, and who it is."""

    def __init__(self, node_id: int, supported: dict[int, tuple[int, int]]) -> None:
        self.node_id = node_id
        self.supported = supported
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                request = await reader.readexactly(size)
                key, _, correlation_id = struct.unpack_from(">hhi", request)
                if key == messages.API_VERSIONS:
                    entries = [struct.pack(">hhh", api, *span) for api, span in self.supported.items()]
                    body = struct.pack(">hi", 0, len(entries)) + b"".join(entries)
                else:
                    name = str(self.node_id).encode()
                    wrong = not request.rpartition(b"\0\0\0\1")[0].endswith(name)
                    error = f"Unexpected broker id, expected {self.node_id} or empty string, but received 1"
                    body = struct.pack(">ii", 0, 1) + (
                        struct.pack(">h", 42) + text(error) if wrong else b"\0\0\xff\xff"
                    )
                    body += b"\4" + text("1") + struct.pack(">i", 0)
                writer.write(struct.pack(">ii", 4 + len(body), correlation_id) + body)
        except asyncio.IncompleteReadError:
            writer.close()


@asynccontextmanager
async def listening(*brokers: Broker) -> AsyncIterator[None]:
    servers = [await asyncio.start_server(broker.serve, "127.0.0.1", 0) for broker in brokers]
    for broker, server in zip(brokers, servers, strict=True):
        broker.port = server.sockets[0].getsockname()[1]
    try:
        yield
    finally:
        for server in servers:
            server.close()


def config_of(upstream: int, protocol: str = "PLAINTEXT", **values: Any) -> Config:
    listener = {"name": "CLIENT", "bind": "127.0.0.1:9092", "upstream": f"127.0.0.1:{upstream}"}
    return Config.model_validate(
        {
            "broker.id": 1,
            "internal.bootstrap.servers": "127.0.0.1:1",
            "metadata.watch.ms": 100,
            "listeners": [{**listener, "security.protocol": protocol}],
            **values,
        }
    )


class Watched:
    """``views``: all that was reported."""

    def __init__(self, config: Config, cluster: Cluster) -> None:
        self.views: list[FleetView] = []
        self.problems: list[str | None] = []
        self._reported = asyncio.Event()
        self.watch = FleetPoller(config, self._report, self.problems.append, caller=cluster, registry=self._made)

    def _made(self, reported: OnContent) -> RegistryThread:
        self.registry = Topic(reported)
        return self.registry

    def _report(self, view: FleetView) -> None:
        self.views.append(view)
        self._reported.set()

    def entry(self, node_id: int) -> BrokerView | None:
        return next((one for one in self.views[-1].brokers if one.node_id == node_id), None)

    async def until(self, fits: Callable[[], Any]) -> None:
        async with asyncio.timeout(60):
            while not fits():
                self._reported.clear()
                await self._reported.wait()


@asynccontextmanager
async def watching(config: Config, cluster: Cluster) -> AsyncIterator[Watched]:
    watched = Watched(config, cluster)
    watched.watch.start()
    try:
        yield watched
    finally:
        await watched.watch.close()


@pytest.fixture
def cluster():
    found = Cluster()
    found.configs = {"message.max.bytes": "1048588"}
    found.brokers = {1: "127.0.0.1:11"}
    return found


async def test_where_tls_passes_through_the_cluster_is_asked_for_the_versions_but_of_no_other_broker(cluster):
    cluster.supported = dict(NEW)
    async with watching(config_of(1, "SSL"), cluster) as watched:
        await watched.until(lambda: watched.entry(1).protocol_max == ranges(NEW).max)
    cluster.away_reason = "broker 1 does not answer"
    async with watching(config_of(1, "SSL"), cluster) as watched:
        await watched.until(lambda: "cluster.id" in watched.entry(1).tags)
        assert watched.entry(1).protocol_max == -1
        assert "message.max.bytes" not in watched.entry(1).tags


@pytest.mark.promise(
    "protected-topics.md", "The sidecars' own topics are protected by their ids, also after they were made again."
)
async def test_the_ids_of_the_sidecars_own_topics_are_reported(cluster):
    cluster.supported = dict(NEW)
    first, second, audit = (bytes([at]) * 16 for at in (1, 2, 3))
    cluster.topic_ids = {"__brokerside_registry": first, "orders": bytes(16)}
    async with watching(config_of(1, audit={"topic": "audited"}), cluster) as watched:
        await watched.until(lambda: watched.views[-1].protected == (first,))
        cluster.topic_ids = {"__brokerside_registry": second, "audited": audit}  # it was made again
        await watched.until(lambda: watched.views[-1].protected == (second, audit))
        cluster.down = True
        await asyncio.sleep(0.3)
        assert watched.views[-1].protected == (second, audit), "what is known stays"


async def test_which_topics_are_asked_for(cluster):
    """A Produce may name that of features by its id, also at a sidecar that has no features."""
    cluster.supported = dict(NEW)
    for enabled, protected in ((True, True), (True, False), (False, True), (False, False)):
        cluster.topics_asked.clear()
        values = {"features": {"enabled": enabled}, "internal.topics.protected": protected}
        async with watching(config_of(1, **values), cluster):
            await eventually(lambda: len(cluster.topics_asked) > 1)
        expected = ["__brokerside_registry", "brokerside-audit"]
        if enabled or protected:
            expected.insert(0, "__brokerside_features")
        assert cluster.topics_asked[0] == expected, (enabled, protected)
    cluster.supported = {messages.METADATA: (0, 9)}  # without topic ids
    cluster.topics_asked.clear()
    cluster.asked.clear()
    with capture_logs() as logged:
        async with watching(config_of(1), cluster) as watched:
            await eventually(lambda: cluster.asked.count(messages.API_VERSIONS) > 2)
        assert not watched.views[-1].protected
    assert not [line for line in logged if line.get("what") == "topic ids"]


@pytest.mark.promise(
    "broker-metadata.md",
    "A broker without a sidecar is listed with what it says itself, and with the tag `sidecar=absent`.",
)
async def test_brokers_come_and_go_and_one_without_a_sidecar_is_asked_itself(cluster):
    peer = Broker(2, NEW)
    async with listening(peer), watching(config_of(1), cluster) as watched:
        watched.registry.report([], True)
        cluster.brokers = {1: "127.0.0.1:11", 3: "127.0.0.1:9"}
        await watched.until(lambda: watched.entry(3))
        assert watched.entry(3).tags["sidecar"] == "absent"
        assert watched.entry(3).tags["protocol.version.source"] == "unknown"
        cluster.brokers = {1: "127.0.0.1:11", 2: f"127.0.0.1:{peer.port}"}
        await watched.until(lambda: watched.entry(2) and watched.entry(2).protocol_max == ranges(NEW).max)
        assert watched.entry(2).tags["protocol.version.source"] == "broker"
        assert watched.entry(1).protocol_max == -1
        assert watched.entry(3) is None


@pytest.mark.promise(
    "operations.md",
    "Of two sidecars with one `broker.id` the later one is registered, and the first one says so in its log.",
)
async def test_of_two_sidecars_with_one_broker_id_the_first_one_does_not_register(cluster, monkeypatch):
    async with watching(config_of(1, "SSL"), cluster) as watched:
        own = decode(watched.registry.written[-1][1])
        times = count(1000)

        def read(**changed: str) -> bool:
            record = TopicRecord(record_key(1), encode(structs.replace(own, **changed)), next(times))
            watched.registry.report([record], True)
            return watched.registry.registered

        later = str(int(own.timestamp) + 1)
        with capture_logs() as logs:
            assert read()
            assert read(boot_id="earlier", timestamp=str(int(own.timestamp) - 1))
            assert watched.watch.broker_id_taken == ""
            assert not read(boot_id="later", timestamp=later)
            assert not read(boot_id="later", timestamp=later, endpoints=("A://\033[0m:1", "B://[::1]:9"))
            assert watched.watch.broker_id_taken == (
                "another sidecar at ::1:9, started later, has the same broker.id; this one does not register"
            )
            watched.watch.reconfigure(config_of(1, "SSL", tags={"rack": "r8a9"}))
            assert not watched.registry.registered
            assert read(boot_id="later", timestamp=later, state=STOPPED)
            assert watched.watch.broker_id_taken == ""
            assert [read(boot_id=same_time) for same_time in ("", "~")] == [True, False], "both agree who is later"
            monkeypatch.setattr(later_run, "MEMBER_DEAD_AFTER_MS", 10)
            assert not read(boot_id="~")
            await eventually(lambda: watched.registry.registered)
        assert [(one["boot_id"], one["by"]) for one in logs if one["event"] == "broker_id_taken"] == [
            (own.boot_id, "later"),
            (own.boot_id, "~"),
        ]
        assert watched.problems == []


@pytest.mark.promise(
    "operations.md", "A sidecar in front of another broker than its `broker.id` is not ready, and does not register."
)
async def test_before_another_broker_it_names_that_one_and_does_not_register(cluster):
    broker = Broker(7, NEW)
    with capture_logs() as logs:
        async with listening(broker), watching(config_of(broker.port), cluster) as watched:
            await watched.until(lambda: watched.views[-1].node_id == 7)
            watched.watch.reconfigure(config_of(broker.port, tags={"rack": "x"}))
            assert watched.entry(7).tags["broker.id"] == "7"
            assert watched.registry.written == []
            assert watched.problems == ["the broker behind the listeners is 7, but broker.id is 1"]
    assert next(one for one in logs if one["event"] == "wrong_broker")["upstream"] == 7


@pytest.mark.promise(
    "operations.md", "A sidecar whose cluster has no broker of its `broker.id` is not ready, and does not register."
)
async def test_where_no_listener_can_be_asked_the_cluster_says_that_it_has_no_such_broker(cluster, monkeypatch):
    monkeypatch.setattr(fleet_poller, "FIRST_RETRY", 0.01)
    for protocol in ("SSL", "SASL_SSL", "SASL_PLAINTEXT"):
        cluster.brokers = {2: "127.0.0.1:12", 3: "127.0.0.1:13"}
        async with watching(config_of(1, protocol), cluster) as watched:
            await eventually(lambda: watched.problems)
            said = "broker.id is 1, but the cluster of internal.bootstrap.servers has only 2, 3"
            assert watched.problems == [said], protocol
            assert not watched.registry.registered, protocol
            cluster.brokers = {1: "127.0.0.1:11", **cluster.brokers}
            await eventually(lambda: watched.problems[-1] is None)
            assert watched.registry.registered, protocol
            del cluster.brokers[1]  # it restarts
            asked = cluster.asked.count(messages.METADATA)
            await eventually(lambda: cluster.asked.count(messages.METADATA) > asked + 2)  # noqa: B023
            assert watched.problems[-1] is None, protocol


@pytest.mark.promise(
    "addresses.md", "A sidecar is ready once it knows the addresses of all brokers, by the registry or by its map."
)
async def test_a_listener_that_rewrites_is_ready_once_the_other_sidecars_are_known(cluster):
    cluster.brokers = {1: "127.0.0.1:11", 2: "127.0.0.1:12"}
    broker = Broker(1, NEW)
    async with listening(broker):
        listener = {"name": "CLIENT", "bind": "127.0.0.1:9092", "upstream": f"127.0.0.1:{broker.port}"}
        config = config_of(1, listeners=[{**listener, "rewrite.addresses": True}])
        async with watching(config, cluster) as watched:
            await watched.until(lambda: watched.entry(2))
            assert watched.problems == [fleet_poller.ADDRESSES_UNKNOWN]
            watched.registry.report([], end=True)
            assert watched.problems == [fleet_poller.ADDRESSES_UNKNOWN, None]
        mapped = {"rewrite.addresses": True, "rewrite.addresses.map": {2: "kafka-2.example:9092"}}
        async with watching(config_of(1, listeners=[{**listener, **mapped}]), cluster) as watched:
            await eventually(lambda: watched.problems == [fleet_poller.ADDRESSES_UNKNOWN, None])


@pytest.mark.promise(
    "broker-metadata.md", "While the cluster is away, what is known of its brokers stays, and that is logged once."
)
async def test_a_cluster_that_is_away_is_reported_once_and_changes_nothing(cluster, monkeypatch):
    monkeypatch.setattr(fleet_poller, "FIRST_RETRY", 0.01)
    with capture_logs() as logs:
        async with watching(config_of(1, "SSL"), cluster) as watched:
            await watched.until(lambda: "cluster.id" in watched.entry(1).tags)
            known = watched.views[-1]
            cluster.down = True
            asked = cluster.asked.count(messages.METADATA)
            await eventually(lambda: cluster.asked.count(messages.METADATA) > asked + 1)
            assert watched.views[-1].brokers == known.brokers
            cluster.down = False
            await eventually(lambda: any(one["event"] == "fleet_known" and one["what"] == "brokers" for one in logs))
    reported = [one for one in logs if one["event"] == "fleet_unknown" and one["what"] == "brokers"]
    assert [one["error"] for one in reported] == ["127.0.0.1:1: Connection refused"]
