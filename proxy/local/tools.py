"""Command lines of Kafka's own Java tools."""

from __future__ import annotations

from proxy.errors import LocalError
from proxy.local.archive import archive_of, archive_options
from proxy.local.broker import broker_jars, class_path
from proxy.local.jars import java

TOOLS = {
    "acls": "org.apache.kafka.tools.AclCommand",
    "api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "cluster": "org.apache.kafka.tools.ClusterTool",
    "configs": "kafka.admin.ConfigCommand",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "console-share-consumer": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "consumer-perf": "org.apache.kafka.tools.ConsumerPerformance",
    "delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "features": "org.apache.kafka.tools.FeatureCommand",
    "groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "producer-perf": "org.apache.kafka.tools.ProducerPerformance",
    "quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "streams-groups": "org.apache.kafka.tools.streams.StreamsGroupCommand",
    "topics": "org.apache.kafka.tools.TopicCommand",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
}
JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def tool(name: str, *args: str, kafka_version: str = "4.3.1") -> list[str]:
    """Return the command line that runs a tool with ``args``.

    Kafka 4.4.0 comes without tools here, and gets those of 4.3.1. Raises LocalError for a name there is not.
    """
    if name not in TOOLS:
        raise LocalError(f"there is no tool named {name!r}; there are {', '.join(TOOLS)}")
    jars = broker_jars("4.3.1" if kafka_version == "4.4.0" else kafka_version, progress=True)
    return [str(java()), *JVM, *archive_options(archive_of(java(), jars)), "-cp", class_path(jars), TOOLS[name], *args]
