"""One of the sidecars' topics with one partition, by librdkafka. Every call may block: never call one on the event
loop.

Imported when it is first used: librdkafka is large, and the start does not wait for it.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from observers.kafka_admin import RdkafkaLog
from proxy.core.authentication import Authenticator
from proxy.fleet.topic_client import TopicError, common_settings, raising, signature
from proxy.fleet.topic_consumer import TopicConsumer, end_offset
from proxy.fleet.topic_creation import create_topic, require_topic
from proxy.fleet.topic_spec import TopicRecord, TopicSpec

DELIVERY_TIMEOUT_MS = 3000
"""Milliseconds until a record that the cluster has not acknowledged is given up."""


class CompactedTopic:
    """Reads the topic from its beginning, committed records only, and writes to it.

    For one thread, or for one that reads and another one that does all else.
    """

    def __init__(
        self,
        spec: TopicSpec,
        settings: Mapping[str, Any],
        authenticator: Authenticator | None = None,
        *,
        create: bool = True,
    ) -> None:
        """Create the topic if it does not exist; without ``create`` raise TopicMissing then. Raises TopicError.

        ``authenticator``: signs written records; records that are read must be signed then.
        """
        self._name = spec.name
        self._authenticator = authenticator
        common = common_settings(settings)
        writing = {"acks": "all", "linger.ms": 0, "message.timeout.ms": DELIVERY_TIMEOUT_MS}
        with raising(self._name):
            self._admin = AdminClient({**common}, logger=RdkafkaLog())
            if create:
                create_topic(spec, self._admin)
            else:
                require_topic(self._name, self._admin)
            self._consumer = TopicConsumer(self._name, 0, settings, authenticator)
            self._producer = Producer({**common, **writing}, logger=RdkafkaLog())

    @property
    def dropped(self) -> Counter[str]:
        """Numbers of records without a valid signature, by what is wrong with them."""
        return self._consumer.dropped

    @property
    def position(self) -> int:
        """The offset of the next record to read."""
        return self._consumer.position

    @property
    def has_signatures(self) -> bool:
        """Whether a record that was read is signed. Only known without an authenticator."""
        return self._consumer.has_signatures

    def read(self, seconds: float) -> tuple[list[TopicRecord], bool]:
        """Return the records that have arrived, and whether the end was reached; see ``TopicConsumer.read``."""
        return self._consumer.read(seconds)

    def end(self) -> int:
        """Return the offset behind the last committed record. Raises TopicError."""
        return end_offset(self._admin, self._name, 0)

    def write(self, key: bytes, value: bytes | None, done: Callable[[str | None], None]) -> None:
        """Send a record. This or a later call calls ``done`` with the error, or None if the topic has the record.

        Raises TopicError if nothing can be written any more; ``done`` is then called by ``close`` at the latest.
        """

        def delivered(error: KafkaError | None, message: Message) -> None:
            done(None if error is None else error.str())

        try:
            headers = signature(self._authenticator, key, value)
            self._producer.produce(
                self._name, key=key, value=value, partition=0, headers=headers, on_delivery=delivered
            )
        except BufferError:
            done("too much waits to be sent")
        except KafkaException as error:  # it is too large, the topic was deleted, or the producer has failed for good
            done(error.args[0].str())
        self.report_delivered()

    def report_delivered(self) -> None:
        """Call ``done`` of written records that the topic has, or that were given up.

        Raises TopicError if nothing can be written any more: the producer has had a fatal error, which is possible with
        ``enable.idempotence``.
        """
        try:
            self._producer.poll(0)
        except (KafkaException, SystemError) as error:  # SystemError: if the same poll has called a ``done``
            raise TopicError(f"{self._name}: {error.__cause__ or error}") from None

    def close(self, seconds: float) -> None:
        """Close both clients; see ``close_producer``."""
        self.close_consumer()
        self.close_producer(seconds)

    def close_consumer(self) -> None:
        """End reading; while another thread reads, this is only for that thread."""
        self._consumer.close()

    def close_producer(self, seconds: float) -> None:
        """End writing. Records that the topic does not have within ``seconds`` are dropped."""
        with contextlib.suppress(KafkaException, SystemError):  # as above
            self._producer.flush(seconds)
        self._producer.purge()
        with contextlib.suppress(TopicError):
            self.report_delivered()
