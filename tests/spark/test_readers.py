"""Jobs as readers of the registry: a real registry, a broker with an authorizer, and the jobs' own Kafka clients."""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation, AdminClient, ResourceType
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from proxy.config.hmac_keys import FEATURES as FEATURES_LABEL
from proxy.config.hmac_keys import REGISTRY as REGISTRY_LABEL
from proxy.core.authentication import Authenticator
from proxy.features.records import FEATURES_KEY, ReaderRecord, decode_reader, reader_key
from proxy.fleet.compacted_topic import CompactedTopic
from proxy.fleet.topic_spec import REGISTRY_TOPIC as REGISTRY
from spark_jobs import kafka, readers
from spark_jobs.errors import JobError
from spark_jobs.kafka import AuditTopicSource
from spark_jobs.query import query
from spark_jobs.reader_records import AuditReader, default_name
from spark_jobs.readers import FEATURES_TOPIC, REGISTRY_TOPIC, registered
from spark_jobs.run import backfill, run
from tests.brokers import Acl, SharedBroker
from tests.integration.logins import LOGIN
from tests.integration.sidecars import until
from tests.spark.conftest import AuditTopic
from tests.spark.envelopes import METADATA, encoded, event
from tests.tools.topic import create
from tests.unit.jobs.test_reader_records import finalized

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

JOBS: dict[str, str] = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.jaas.config": f'{LOGIN} username="jobs" password="jobs-secret";',
}
"""Settings of a job that logs in."""

UNREGISTERED = "this job is not registered with the sidecars: __brokerside_registry: "
UNKNOWN_LEVEL = "it is not known whether this job can read the finalized level of brokerside.audit.event.schema: "

Said = list[str]


class Fleet(NamedTuple):
    """A broker with an authorizer, and the topics of sidecars. ``bootstrap``: may do everything; ``secured``: SASL."""

    broker: SharedBroker
    bootstrap: str
    secured: str
    admin: AdminClient

    def grant(self, operation: AclOperation, topic: str) -> None:
        self.broker.allow(Acl("User:jobs", operation, ResourceType.TOPIC, topic))

    def revoke(self, operation: AclOperation, topic: str) -> None:
        self.broker.revoke(Acl("User:jobs", operation, ResourceType.TOPIC, topic))

    def delete(self, *topics: str) -> None:
        there = [topic for topic in topics if topic in self.admin.list_topics(timeout=30).topics]
        for future in self.admin.delete_topics(there).values() if there else ():
            future.result(180)
        until(lambda: not {*topics} & self.admin.list_topics(timeout=30).topics.keys())

    def finalize(
        self, *values: bytes | None, commit: bool = True, authenticator: Authenticator | None = None
    ) -> Producer:
        """Write records of finalized levels in one transaction; returns the producer."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": "brokerside-features-0"})
        producer.init_transactions(30)
        producer.begin_transaction()
        for value in values:
            headers: Any = [] if authenticator is None else [authenticator.header(FEATURES_KEY, value)]
            producer.produce(FEATURES_TOPIC, key=FEATURES_KEY, value=value, headers=headers)
        producer.flush(30)
        if commit:
            producer.commit_transaction(30)
        return producer


@pytest.fixture
def fleet(secured: SharedBroker) -> Iterator[Fleet]:
    """With the topic of the features, and without a registry. Other tests find neither, and no rights."""
    made = Fleet(secured, secured.node.internal, secured.listeners["OWN"].address, secured.admin())
    made.delete(REGISTRY_TOPIC, FEATURES_TOPIC)
    create(made.admin, NewTopic(FEATURES_TOPIC, 1, 1))
    yield made
    made.delete(REGISTRY_TOPIC, FEATURES_TOPIC)
    secured.forget_acls()


class Registry:
    """The registry as sidecars see it, who create it."""

    def __init__(self, fleet: Fleet, authenticator: Authenticator | None = None) -> None:
        settings = {"bootstrap.servers": fleet.bootstrap, "client.id": "registry"}
        self._topic = CompactedTopic(REGISTRY, settings, authenticator)
        self._read: list[tuple[bytes, bytes | None]] = []

    def of(self, name: str) -> list[ReaderRecord]:
        """The records of a reader that have been read so far."""
        self._read += [(one.key, one.value) for one in self._topic.read(0.1)[0]]
        return [decode_reader(value or b"") for key, value in self._read if key == reader_key(name)]  # type: ignore[misc]

    def until_stopped(self, name: str, times: int = 1) -> list[ReaderRecord]:
        """The same, as soon as so many of them are of ends."""
        until(lambda: [one.state for one in self.of(name)].count("stopped") == times)
        return self.of(name)

    def close(self) -> None:
        self._topic.close(5)


@pytest.fixture
def registry(fleet: Fleet) -> Iterator[Registry]:
    made = Registry(fleet)
    yield made
    made.close()


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "HEARTBEAT_SECONDS", 0.2)
    monkeypatch.setattr(readers, "MAX_RETRY_SECONDS", 0.2)


def source(fleet: Fleet) -> AuditTopicSource:
    return AuditTopicSource(fleet.bootstrap, "audit")


@pytest.mark.promise(
    "jobs.md",
    "With `--registry-hmac-keys` a job signs its registration, and ignores levels that no sidecar has signed.",
)
def test_with_keys_sidecars_and_readers_accept_each_other_alone(spark: SparkSession, fleet: Fleet) -> None:
    keys = {"k1": b"k" * 32}
    levels = Authenticator(FEATURES_LABEL, keys)
    fleet.finalize(finalized(2))
    signed = Registry(fleet, Authenticator(REGISTRY_LABEL, keys))
    for signing in ({}, {"k1": b"x" * 32}, keys):
        with registered(spark, source(fleet), AuditReader("signed", "run", signing), print):
            pass
    assert [one.state for one in signed.until_stopped("signed")] == ["running", "stopped"]
    signed.close()
    fleet.finalize(finalized(2), authenticator=levels)
    fleet.finalize(finalized(3))
    with registered(spark, source(fleet), AuditReader("signed", "run", keys), print):
        pass
    fleet.finalize(finalized(3), authenticator=levels)
    fleet.finalize(None, finalized(2))
    with (
        pytest.raises(JobError, match="finalized at 3"),
        registered(spark, source(fleet), AuditReader("signed", "run", keys), print),
    ):
        pytest.fail("it has started")


@pytest.mark.promise("jobs.md", "A job that is refused for its level touches no table.")
def test_a_level_above_refuses_every_job(spark: SparkSession, fleet: Fleet, registry: Registry, tmp_path: Path) -> None:
    audit, root = AuditTopic(fleet.bootstrap), tmp_path / "tables"
    arguments: dict[str, Any] = {
        "bootstrap_servers": fleet.bootstrap, "topic": audit.name, "tables": str(root), "jars": []}  # fmt: skip

    def refusals() -> set[str]:
        found = set()
        for job, more in ((run, {"reader": "late", "available_now": True}), (backfill, {"first": None, "last": None})):
            with pytest.raises(JobError) as refused:
                job(**arguments, **more)  # type: ignore[operator]
            found.add(str(refused.value))
        return found

    fleet.finalize(finalized(2, pending=3), b"malformed")
    what = "brokerside.audit.event.schema {} finalized at 3, this job reads up to 2: run a newer release"
    assert refusals() == {what.format("is about to be")}
    fleet.finalize(finalized(3))
    assert refusals() == {what.format("is")}
    assert not root.exists()
    late = registry.until_stopped("late", 2)
    assert [(one.state, one.durable) for one in late] == [("running", True), ("stopped", True)] * 2
    early = registry.until_stopped(default_name("backfill", str(root)), 2)
    assert {(one.job, one.durable) for one in early} == {("backfill", False)}
    # What is not committed is not finalized, and is not waited for.
    fleet.finalize(finalized(2))
    raising = fleet.finalize(finalized(3), commit=False)
    with registered(spark, source(fleet), AuditReader("early", "run"), print):
        raising.abort_transaction(30)


@pytest.mark.usefixtures("often")
@pytest.mark.timeout(600)
@pytest.mark.promise(
    "jobs.md", "Nothing of the registry stops a job that runs; it reports when it is registered, and when it is not."
)
@pytest.mark.slow
def test_a_job_runs_whatever_it_may_do_with_the_registry(
    spark: SparkSession, fleet: Fleet, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the right to write at its start; it is granted, taken away and granted again while the job runs."""
    monkeypatch.setattr(kafka, "MAX_BATCH_DELAY", "1s")
    audit = AuditTopic(fleet.bootstrap)
    audit.send(encoded(event(METADATA)))
    fleet.grant(AclOperation.READ, audit.name)
    fleet.grant(AclOperation.DESCRIBE, REGISTRY_TOPIC)

    def grant() -> None:
        fleet.grant(AclOperation.WRITE, REGISTRY_TOPIC)

    def revoke() -> None:
        fleet.revoke(AclOperation.WRITE, REGISTRY_TOPIC)

    def end() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    known = "this job is registered with the sidecars as reader/rights"
    refused = "TopicAuthorizationException: Not authorized to access topics: [{}]"
    steps: list[tuple[str, Callable[[], object]]] = [
        (UNREGISTERED + refused.format(REGISTRY_TOPIC), lambda: None),
        (UNKNOWN_LEVEL + refused.format(FEATURES_TOPIC), lambda: None),
        ("batch 0: 1 record, 1 event", grant),
        (known, revoke),
        (UNREGISTERED + refused.format(REGISTRY_TOPIC), lambda: audit.send(encoded(event(METADATA), first_seq=2))),
        ("batch 1: 1 record, 1 event", grant),
        (known, end),
    ]
    said: Said = []

    def progress(line: object) -> None:
        said.append(str(line))
        if steps and said[-1].startswith(steps[0][0]):
            steps.pop(0)[1]()

    patience = threading.Timer(400, end)
    patience.start()
    try:
        summary = run(
            bootstrap_servers=fleet.secured, topic=audit.name, tables=str(tmp_path / "tables"), jars=[],
            only=["traffic"], kafka_options=JOBS, reader="rights", progress=progress,
        )  # fmt: skip
    finally:
        patience.cancel()
    assert steps == [], said
    assert (summary.records, summary.events, summary.failed) == (2, 2, ())
    assert query(tmp_path / "tables", "SELECT sum(requests)::BIGINT FROM traffic")[1] == [(2,)]
    records = registry.until_stopped("rights")
    assert [one.state for one in records[-2:]] == ["running", "stopped"]
    assert {one.durable for one in records} == {True}


@pytest.mark.promise("jobs.md", "A job that may not log in or read says so in one sentence, and ends.")
def test_a_job_without_login_or_rights_ends_with_one_sentence(
    fleet: Fleet, spark: SparkSession, tmp_path: Path
) -> None:
    audit = AuditTopic(fleet.bootstrap)
    audit.send(encoded(event(METADATA)))

    def refusal(name: str, settings: dict[str, str]) -> str:
        with pytest.raises(JobError) as raised:
            run(
                bootstrap_servers=fleet.secured, topic=audit.name, tables=str(tmp_path / name), jars=[],
                kafka_options=settings,
            )  # fmt: skip
        return str(raised.value).partition(" (Spark's log:")[0]

    cannot = f"the topic {audit.name} at {fleet.secured} cannot be read"
    wrong = JOBS | {"sasl.jaas.config": JOBS["sasl.jaas.config"].replace("jobs-secret", "wrong")}
    assert refusal("login", wrong).startswith(f"{cannot}: SaslAuthenticationException: Authentication failed")
    assert refusal("nothing", JOBS).startswith(f"{cannot}: TopicAuthorizationException")
    fleet.grant(AclOperation.DESCRIBE, audit.name)
    assert refusal("describe", JOBS) == (
        f"the topic {audit.name} cannot be read: TopicAuthorizationException: Not authorized to access topics: "
        f"[{audit.name}]; the job needs Read and Describe on it"
    )


@pytest.mark.promise("jobs.md", "A job creates neither the registry nor the topic of the features.")
def test_missing_topics_are_not_created(spark: SparkSession, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is a registry that is deleted while a job runs."""
    monkeypatch.setattr(readers, "HEARTBEAT_SECONDS", 0.2)
    fleet.delete(FEATURES_TOPIC)
    said: Said = []
    with registered(spark, source(fleet), AuditReader("alone", "run"), lambda one: said.append(str(one))):
        assert said == [
            f"{UNREGISTERED}UnknownTopicOrPartitionException: This server does not host this topic-partition."
        ]
    assert not {REGISTRY_TOPIC, FEATURES_TOPIC} & fleet.admin.list_topics(timeout=30).topics.keys()
    Registry(fleet).close()
    gone = threading.Event()
    with registered(spark, source(fleet), AuditReader("deleted", "run"), lambda _: gone.set()):
        fleet.delete(REGISTRY_TOPIC)
        assert gone.wait(240)
    assert REGISTRY_TOPIC not in fleet.admin.list_topics(timeout=30).topics


@pytest.mark.promise(
    "jobs.md", "A cluster that does not answer about the registry does not hold up the start of a job."
)
def test_a_cluster_that_does_not_answer_holds_no_job_up(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    short = dict.fromkeys(
        ("request.timeout.ms", "default.api.timeout.ms", "max.block.ms", "delivery.timeout.ms"), "1000"
    )
    for settings in (readers.CLIENT_SETTINGS, readers.PRODUCER_SETTINGS, readers.CONSUMER_SETTINGS):
        for name in settings.keys() & short.keys():
            monkeypatch.setitem(settings, name, short[name])
    said: Said = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        nobody = AuditTopicSource("{}:{}".format(*silent.getsockname()), "audit")
        with registered(spark, nobody, AuditReader("held-up", "run"), lambda notice: said.append(str(notice))):
            pass
    assert [line.partition("TimeoutException")[0] for line in said] == [UNREGISTERED, UNKNOWN_LEVEL], said
