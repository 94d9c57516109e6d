"""kafka-python, and the Java console tools: see ``tests.interop`` for what every client program does."""

import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import kafka
import msgspec
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import TopicAlreadyExistsError

from tests.interop.clients import Report, digest
from tests.tools.kafka_tools import KafkaTools

POLL = 30_000
"""Milliseconds for one poll, in which joining the group has to fit: interrupted at the wrong moment of it, kafka-python
3.0.12 holds itself for a member with no partitions, for ever."""


def kafka_python(
    bootstrap: str, topic: str, group: str, client_id: str, partitions: str, lines: list[str], ca: str | None
) -> Report:
    codecs = (None, "gzip")  # the others need packages that kafka-python does not bring
    common = {"bootstrap_servers": bootstrap, "client_id": client_id}
    if ca:
        common |= {"security_protocol": "SSL", "ssl_cafile": ca}
    admin = KafkaAdminClient(**common)
    with suppress(TopicAlreadyExistsError):
        new = {topic: {"num_partitions": int(partitions), "replication_factor": 1}}
        admin.create_topics(new, wait_for_metadata=True)
    assert topic in admin.list_topics()
    (described,) = admin.describe_topics([topic])
    produced = 0
    for n, codec in enumerate(codecs):
        with KafkaProducer(**common, acks="all", compression_type=codec) as producer:
            pairs = (line.split("\t") for line in lines[n :: len(codecs)])
            sent = [producer.send(topic, key=key.encode(), value=value.encode()) for key, value in pairs]
            produced += len([future.get(timeout=120) for future in sent])
    consumed: list[str] = []
    with KafkaConsumer(
        topic, **common, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        while len(consumed) < len(lines):
            for records in consumer.poll(timeout_ms=POLL).values():
                consumed += [f"{record.key.decode()}\t{record.value.decode()}" for record in records]
        consumer.commit()
    committed = sum(offset.offset for offset in admin.list_group_offsets(group)[group].values())
    admin.close()
    used, found = tuple(codec or "none" for codec in codecs), len(described["partitions"])
    version: str = kafka.__version__
    return Report("kafka-python", version, used, found, produced, len(consumed), committed, digest(consumed))


def java_tools(
    bootstrap: str, topic: str, group: str, client_id: str, partitions: str, lines: list[str], ca: str | None
) -> Report:
    """What was produced and committed is what the broker says, for the tools do not report it."""
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    with tempfile.TemporaryDirectory() as folder, KafkaTools() as tools:

        def run(name: str, *args: str, text: str = "") -> str:
            """What the tool prints; what it says on stderr is passed on."""
            done = tools.run(name, *args, text=text)
            sys.stderr.write(done.stderr)
            done.check_returncode()
            return done.stdout

        properties = Path(folder) / "client.properties"
        settings = [f"client.id={client_id}"]
        if ca:
            settings += ["security.protocol=SSL", "ssl.truststore.type=PEM", f"ssl.truststore.location={ca}"]
        properties.write_text("\n".join(settings))
        common = ("--bootstrap-server", bootstrap, "--command-config", str(properties))
        run("topics", *common, "--create", "--if-not-exists", "--topic", topic, "--partitions", partitions)
        assert topic in run("topics", *common, "--list").splitlines()
        described = run("topics", *common, "--describe", "--topic", topic)
        for n, codec in enumerate(codecs):
            run(
                "console-producer", *common, "--topic", topic, "--compression-codec", codec,
                "--reader-property", "parse.key=true", text="\n".join(lines[n :: len(codecs)]),
            )  # fmt: skip
        consumed = run(
            "console-consumer", *common, "--topic", topic, "--group", group, "--from-beginning",
            "--max-messages", str(len(lines)), "--formatter-property", "print.key=true",
        ).splitlines()  # fmt: skip
        offsets = run("groups", *common, "--describe", "--offsets", "--group", group)
        version = run("topics", "--version").strip()
    rows = [line.split() for line in offsets.splitlines() if line.split()[:2] == [group, topic]]
    produced, committed = (sum(int(row[column]) for row in rows) for column in (4, 3))
    found = described.count("\tPartition: ")
    return Report("Java console tools", version, codecs, found, produced, len(consumed), committed, digest(consumed))


if __name__ == "__main__":
    client = {"kafka-python": kafka_python, "java-console-tools": java_tools}[sys.argv[1]]
    report = client(*sys.argv[2:], lines=sys.stdin.read().splitlines(), ca=os.environ.get("TLS_CA"))
    print(msgspec.json.encode(report).decode())
