"""Real clients and requests of every version on the sidecars' own topics: refused, and the broker's logs stay as they
are."""

from __future__ import annotations

import asyncio
import json
import struct
import subprocess
import time
import uuid
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from proxy.core.accessors import Accessors
from proxy.core.struct import view
from proxy.interceptors.topic_protection import (
    ADD_PARTITIONS_TO_TXN,
    ALTER_CONFIGS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    INCREMENTAL_ALTER_CONFIGS,
)
from proxy.local import cluster as local_cluster
from proxy.local.cluster import ClusterState
from proxy.local.sidecars import SidecarProcess
from tests.cases import each
from tests.frames import batch
from tests.integration.asking import Asker
from tests.integration.librdkafka import consume
from tests.integration.metrics import sample
from tests.integration.test_audit import until
from tests.tools.topic import messages

pytestmark = pytest.mark.kafka

REGISTRY = "__brokerside_registry"
REFUSED = 29
PRODUCE, METADATA = 0, 3
HOSTILE = b"hostile"


@dataclass(frozen=True)
class Site:
    """A broker with a sidecar. ``topic``: a protected one of two partitions; ``other``: one like it that is not."""

    cluster: ClusterState
    sidecar: SidecarProcess
    topic: str
    other: str
    admin: AdminClient

    def ends(self, topic: str) -> list[int]:
        """The end offset of each partition, asked past the sidecar."""
        latest = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in (0, 1)}
        return [one.result(30).offset for one in self.admin.list_offsets(latest).values()]

    def denied(self, api: str) -> float:
        return sample(
            self.sidecar.metrics(),
            "brokerside_intercepted_requests_total",
            listener="CLIENT",
            api=api,
            verdict="denied",
        )

    def denied_before(self, api: str) -> float:
        """The same once all connections have ended: a worker that has reported these has reported what they asked."""
        until(lambda: not sample(self.sidecar.metrics(), "brokerside_connections_active"))
        return self.denied(api)

    def until_denied(self, api: str, count: float) -> None:
        """Wait until so many were: workers report their counts when they come to it."""
        deadline = time.monotonic() + 60
        while (found := self.denied(api)) != count:
            assert time.monotonic() < deadline, (found, count)
            time.sleep(0.1)


@pytest.fixture(scope="module")
def site(cluster: ClusterState) -> Iterator[Site]:
    node = cluster.nodes[0]
    folder = node.home.parent
    config = yaml.safe_load((folder / "sidecar-1.yaml").read_text())
    config["workers"] = 2
    path = folder / "protected.yaml"
    path.write_text(yaml.safe_dump(config))
    admin = AdminClient({"bootstrap.servers": cluster.internal_bootstrap})
    number = uuid.uuid4().hex[:8]
    topic, other = f"__brokerside_{number}", f"my-brokerside-{number}"
    for created in admin.create_topics([NewTopic(topic, 2, 1), NewTopic(other, 2, 1)]).values():
        created.result(30)
    process = SidecarProcess.start(path, path.with_suffix(".log"), node.admin)
    try:
        yield Site(cluster, process, topic, other, admin)
    finally:
        assert process.stop()
        admin.delete_topics([topic, other])


def produced(topic: str | bytes, acks: int = -1, values: bytes = HOSTILE, count: int = 1) -> dict[str, Any]:
    """A Produce of a topic's name, or of its id."""
    named = {"Name": topic} if isinstance(topic, str) else {"TopicId": topic}
    records = real_batch(values)
    return {
        "Acks": acks,
        "TimeoutMs": 10_000,
        "TopicData": [named | {"PartitionData": [{"Index": at, "Records": records} for at in range(count)]}],
    }


def real_batch(value: bytes) -> bytes:
    """A record batch of magic 2 that a broker takes."""
    record = b"\0\0\0\1" + zigzag(len(value)) + value + b"\0"
    made = bytearray(batch(1, zigzag(len(record)) + record))
    struct.pack_into(">I", made, 17, crc32c(bytes(made[21:])))
    return bytes(made)


def zigzag(number: int) -> bytes:
    number <<= 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def codes(answer: Any) -> list[int]:
    """Every error code of an answer but the topmost."""
    if isinstance(answer, tuple):
        return [code for one in answer for code in codes(one)]
    if not isinstance(answer, Accessors):
        return []
    found = [answer.get(name) for name in ("ErrorCode", "PartitionErrorCode") if answer.has_field(name)]
    return found + [code for name in answer.field_names() for code in codes(answer.get(name))]


def test_every_version_of_produce_is_refused(site: Site) -> None:
    before, denied = site.ends(site.topic), site.denied_before("Produce")
    with Asker(site.cluster.bootstrap) as asker, Asker(site.cluster.nodes[0].internal) as direct:
        versions = [version for version in asker.versions()[PRODUCE] if 3 <= version <= 12]
        assert len(versions) == 10
        for version in versions:
            answer = asker.answer(PRODUCE, version, produced(site.topic, count=2))
            assert codes(answer) == [REFUSED, REFUSED], version
            assert codes(asker.answer(PRODUCE, version, produced(site.other))) == [0], version
        assert site.ends(site.topic) == before
        site.until_denied("Produce", denied + len(versions))
        assert codes(direct.answer(PRODUCE, 12, produced(site.topic))) == [0], "the test's batches are good"


def topic_id(asker: Asker, topic: str) -> bytes:
    """Its id, once there is such a topic."""

    def found(body: bytes) -> bool:
        (one,) = view(METADATA, 12, body, response=True).get("Topics")
        return one.get("ErrorCode") == 0

    answer = asker.until(METADATA, 12, {"Topics": [{"Name": topic}]}, found)
    (one,) = view(METADATA, 12, answer, response=True).get("Topics")
    return urlsafe_b64decode(one.get("TopicId") + "==")


def test_topic_ids_of_the_registry_are_refused(site: Site) -> None:
    value = f"hostile {uuid.uuid4()}".encode()
    with Asker(site.cluster.bootstrap) as asker:
        registry, other = topic_id(asker, REGISTRY), topic_id(asker, site.other)
        deadline, agreed = time.monotonic() + 60, 0  # the sidecar asks for the id when the topic is there
        while agreed < 4:  # on any worker
            assert time.monotonic() < deadline
            with Asker(site.cluster.bootstrap) as another:
                refused = [codes(one.answer(PRODUCE, 13, produced(registry, values=value))) for one in (asker, another)]
                assert codes(another.answer(PRODUCE, 13, produced(other))) == [0]
            agreed = agreed + 1 if refused == [[REFUSED]] * 2 else 0
            time.sleep(0.05)
        answer = asker.answer(DELETE_TOPICS, 6, {"Topics": [{"Name": None, "TopicId": registry}], "TimeoutMs": 1000})
        assert codes(answer) == [REFUSED]


def changes(topic: str) -> list[tuple[int, str, dict[str, Any]]]:
    """Each of the requests that change a topic, on this one and another."""
    both = (topic, "honest")
    configs = [{"Name": "retention.ms", "Value": "1"}]
    resources = {"Resources": [{"ResourceType": 2, "ResourceName": one, "Configs": configs} for one in both]}
    created = [{"Name": f"{one}-new", "NumPartitions": 1, "ReplicationFactor": 1} for one in both]
    emptied = [{"Name": one, "Partitions": [{"PartitionIndex": 0, "Offset": -1}]} for one in both]
    grown = [{"Name": one, "Count": 5} for one in both]
    added = [{"Name": one, "Partitions": [0, 1]} for one in both]
    deleted = {"TopicNames": both, "Topics": [{"Name": one} for one in both], "TimeoutMs": 1000}
    begun = {
        "V3AndBelowTransactionalId": "t",
        "V3AndBelowTopics": added,
        "Transactions": [{"TransactionalId": "t", "Topics": added}],
    }
    return [
        (CREATE_TOPICS, "CreateTopics", {"Topics": created, "timeoutMs": 1000}),
        (DELETE_TOPICS, "DeleteTopics", deleted),
        (DELETE_RECORDS, "DeleteRecords", {"Topics": emptied, "TimeoutMs": 1000}),
        (ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxn", begun),
        (ALTER_CONFIGS, "AlterConfigs", resources),
        (CREATE_PARTITIONS, "CreatePartitions", {"Topics": grown, "TimeoutMs": 1000}),
        (INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigs", resources),
    ]


@each("index", range(7))
def test_every_version_of_a_change_is_refused_as_a_whole(site: Site, index: int) -> None:
    key, name, values = changes(site.topic)[index]
    honest = changes(site.other)[index][2] | {"ValidateOnly": True}
    before, denied = described(site), site.denied_before(name)
    with Asker(site.cluster.bootstrap) as asker:
        versions = list(asker.versions()[key])
        for version in versions:
            answer = codes(asker.answer(key, version, values))
            assert answer.count(REFUSED) >= 2, (version, answer)
            assert set(answer) <= {REFUSED, 0}, (version, answer)
        site.until_denied(name, denied + len(versions))
        # What names no protected topic is the broker's to answer.
        if key not in (CREATE_TOPICS, DELETE_TOPICS):
            assert REFUSED not in codes(asker.answer(key, versions[-1], honest))
    assert described(site) == before
    assert site.denied(name) == denied + len(versions)


def described(site: Site) -> Any:
    topics = site.admin.list_topics(timeout=30).topics
    resource = ConfigResource(ConfigResource.Type.TOPIC, site.topic)
    configs = site.admin.describe_configs([resource])[resource].result(30)
    found = {name: len(topic.partitions) for name, topic in topics.items() if name.startswith(site.topic)}
    return found, configs["retention.ms"].value, site.ends(site.topic)


def test_acks_0_ends_the_connection_and_nothing_is_appended(site: Site) -> None:
    before = site.ends(site.topic)
    for version in (3, 9, 12):
        with Asker(site.cluster.bootstrap) as asker, pytest.raises(struct.error):  # the end, in place of a size
            asker.ask(PRODUCE, version, produced(site.topic, acks=0))
    assert site.ends(site.topic) == before
    ended = {"listener": "CLIENT", "cause": "protected_topic"}
    until(lambda: sample(site.sidecar.metrics(), "brokerside_connections_closed_total", **ended) >= 3)


@each("size", [1_000, 900_000])
def test_a_frame_with_a_protected_topic_at_its_end_is_never_complete(site: Site, size: int) -> None:
    before = site.ends(site.topic), site.ends(site.other)
    values = produced(site.other, values=b"v" * size)
    values["TopicData"] += produced(site.topic)["TopicData"]
    with Asker(site.cluster.bootstrap) as asker:
        if size < 60_000:
            assert codes(asker.answer(PRODUCE, 12, values)) == [REFUSED, REFUSED]
        else:
            with pytest.raises((struct.error, OSError)):
                asker.ask(PRODUCE, 12, values)
    assert (site.ends(site.topic), site.ends(site.other)) == before


def test_librdkafka_gets_an_authorization_error(site: Site) -> None:
    before = site.ends(site.topic)
    reports: list[KafkaError | None] = []
    for value in (b"v", b"v" * 900_000):
        producer = Producer({"bootstrap.servers": site.cluster.bootstrap})
        producer.produce(site.topic, value, on_delivery=lambda error, message: reports.append(error))
        producer.flush(30)
    assert [error and error.code() for error in reports] == [KafkaError.TOPIC_AUTHORIZATION_FAILED] * 2
    producer.produce(site.other, b"v", on_delivery=lambda error, message: reports.append(error))
    producer.flush(30)
    assert reports[2] is None, "the same producer serves other topics"
    admin = AdminClient({"bootstrap.servers": site.cluster.bootstrap})
    alter = ConfigResource(
        ConfigResource.Type.TOPIC,
        site.topic,
        incremental_configs=[ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET)],
    )
    asked = [
        admin.delete_topics([site.topic])[site.topic],
        admin.create_partitions([NewPartitions(site.topic, 5)])[site.topic],
        admin.incremental_alter_configs([alter])[alter],
        *admin.delete_records([TopicPartition(site.topic, 0, -1)]).values(),
    ]
    for one in asked:
        with pytest.raises(KafkaException) as raised:
            one.result(30)
        assert raised.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert site.ends(site.topic) == before


def test_a_transaction_is_refused_and_leaves_no_marker(site: Site) -> None:
    before = site.ends(site.topic), site.ends(site.other)
    settings = {"bootstrap.servers": site.cluster.bootstrap, "transactional.id": f"x-{uuid.uuid4()}"}
    producer = Producer(settings)
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(site.topic, b"v")
    with pytest.raises(KafkaException):
        producer.commit_transaction(60)
    producer = Producer(settings)  # librdkafka gives up on the first, as with any broker
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(site.other, b"v")
    producer.commit_transaction(60)
    deadline = time.monotonic() + 60
    while sum(site.ends(site.other)) < sum(before[1]) + 2:  # the record, and the marker
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert site.ends(site.topic) == before[0]


def test_aiokafka_and_kafka_python_raise_what_a_broker_would_have_them_raise(site: Site) -> None:
    import kafka
    from aiokafka import AIOKafkaProducer
    from aiokafka.errors import TopicAuthorizationFailedError as Refused

    async def send() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=site.cluster.bootstrap)
        await producer.start()
        try:
            with pytest.raises(Refused):
                await producer.send_and_wait(site.topic, b"v")
        finally:
            await producer.stop()

    before = site.ends(site.topic)
    asyncio.run(send())
    producer = kafka.KafkaProducer(bootstrap_servers=site.cluster.bootstrap)
    with pytest.raises(kafka.errors.TopicAuthorizationFailedError):
        producer.send(site.topic, b"v").get(30)
    producer.close()
    assert site.ends(site.topic) == before


def test_java_is_refused_by_name_and_by_topic_id(site: Site) -> None:
    def run(name: str, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        command = local_cluster.tool(name, "--bootstrap-server", site.cluster.bootstrap, *arguments)
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)

    value, denied = f"hostile {uuid.uuid4()}", site.denied_before("Produce")
    run("console-producer", "--topic", REGISTRY, text=f"{value}\n")  # it sends version 13, and only logs the error
    until(lambda: site.denied("Produce") > denied)
    done = run("topics", "--delete", "--topic", site.topic)
    assert done.returncode != 0
    assert "TopicAuthorizationException" in done.stdout
    assert value.encode() not in consume_all(site, REGISTRY)


def test_it_can_be_turned_off_while_it_runs(site: Site) -> None:
    config = yaml.safe_load(site.sidecar.config.read_text())

    def settles(protected: bool, expected: int) -> None:
        site.sidecar.config.write_text(yaml.safe_dump(config | {"internal.topics.protected": protected}))
        deadline, agreed = time.monotonic() + 60, 0
        with Asker(site.cluster.bootstrap) as asker:
            while agreed < 8:  # on any worker
                assert time.monotonic() < deadline
                with Asker(site.cluster.bootstrap) as another:
                    found = [codes(one.answer(PRODUCE, 9, produced(site.topic))) for one in (asker, another)]
                agreed = agreed + 1 if found == [[expected]] * 2 else 0
                time.sleep(0.05)

    settles(False, 0)
    settles(True, REFUSED)


def consume_all(site: Site, topic: str) -> list[bytes]:
    """Reading stays allowed: through the sidecar."""
    return [message.value() or b"" for message in messages(site.cluster.bootstrap, topic)]


def test_reading_through_the_sidecar_stays_allowed(site: Site) -> None:
    with Asker(site.cluster.nodes[0].internal) as direct:
        assert codes(direct.answer(PRODUCE, 12, produced(site.topic, values=b"readable"))) == [0]
    assert b"readable" in consume(site.cluster.bootstrap, site.topic, sum(site.ends(site.topic)))


def test_the_audit_says_who_was_refused(site: Site) -> None:
    client_id = f"spoofer-{uuid.uuid4().hex[:8]}"
    producer = Producer({"bootstrap.servers": site.cluster.bootstrap, "client.id": client_id, "acks": "all"})
    producer.produce(site.topic, b"v" * 50)
    producer.flush(30)
    admin = AdminClient({"bootstrap.servers": site.cluster.bootstrap, "client.id": client_id})
    assert admin.delete_topics([site.topic])[site.topic].exception(30)
    deadline, found = time.monotonic() + 60, {}
    while not {"Produce", "DeleteTopics"} <= found.keys():
        assert time.monotonic() < deadline, found
        time.sleep(0.3)
        for value in consume_all(site, "brokerside-audit"):
            for one in json.loads(value)["events"]:
                if one.get("client_id") == client_id and one["kind"] == "request":
                    found[one["api"]] = one
    event = found["Produce"]
    assert (event["synthesized"], event["error_code"], event.get("outcome", "answered")) == (True, REFUSED, "answered")
    assert [(one["topic"], one["error_code"]) for one in event["topics"]] == [(site.topic, REFUSED)]
    assert (found["DeleteTopics"]["synthesized"], found["DeleteTopics"]["error_code"]) == (True, REFUSED)
