"""Creates the sidecars' topics, and bounds what can be written to existing ones. Every call may block."""

from __future__ import annotations

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from proxy.fleet.topic_client import ADMIN_TIMEOUT, TopicMissing
from proxy.fleet.topic_spec import BOUNDED_BY, CREATED_WITH, MAX_REPLICATION, TopicSpec

log = structlog.get_logger(__name__)


def require_topic(topic: str, admin: AdminClient) -> None:
    """Raise TopicMissing for a topic that does not exist, and KafkaException for one that cannot be seen."""
    error = admin.list_topics(topic, timeout=ADMIN_TIMEOUT).topics[topic].error
    if error is None:
        return
    if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        raise TopicMissing(f"{topic}: there is no such topic")
    raise KafkaException(error)


def create_topic(spec: TopicSpec, admin: AdminClient) -> None:
    """Create a topic if it does not exist; what one that exists is like wins. Raises KafkaException."""
    topic = spec.name
    listed = admin.list_topics(timeout=ADMIN_TIMEOUT)
    if topic in listed.topics:
        _bound(topic, admin)
        return
    replicas = min(MAX_REPLICATION, len(listed.brokers))
    config = {**CREATED_WITH, "min.insync.replicas": str(min(2, replicas))}
    new = NewTopic(topic, num_partitions=spec.partitions, replication_factor=replicas, config=config)
    try:
        admin.create_topics([new], request_timeout=ADMIN_TIMEOUT, operation_timeout=ADMIN_TIMEOUT)[topic].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    else:
        log.info("topic_created", topic=topic, replicas=replicas)


def _bound(topic: str, admin: AdminClient) -> None:
    """Set ``BOUNDED_BY`` on an existing topic. If that is not permitted, the log asks the operator to."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    try:
        found = admin.describe_configs([resource], request_timeout=ADMIN_TIMEOUT)[resource].result()
        wrong = {name: value for name, value in BOUNDED_BY.items() if found[name].value != value}
        if wrong:
            entries = [
                ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in wrong.items()
            ]
            altered = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
            admin.incremental_alter_configs([altered], request_timeout=ADMIN_TIMEOUT)[altered].result()
            log.info("topic_bounded", topic=topic, **wrong)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return  # another sidecar has just created it, with these; not every broker knows it yet
        advice = ", ".join(f"{name}={value}" for name, value in BOUNDED_BY.items())
        log.warning("topic_not_bounded", topic=topic, error=error.args[0].str(), advice=f"set {advice}")
