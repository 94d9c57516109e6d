"""What all of librdkafka's clients of the sidecars' topics have in common.

Imported when it is first used: librdkafka is large, and the start does not wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaException

from observers.kafka_admin import RECONNECT_SETTINGS
from proxy.core.authentication import Authenticator
from proxy.errors import BrokersideError

ADMIN_TIMEOUT = 5.0
"""Seconds one call to the cluster may take."""


class TopicError(BrokersideError):
    """The topic cannot be read or written now."""


class TopicMissing(TopicError):
    """There is no such topic."""


def common_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return librdkafka's settings of every client of these topics. ``settings``: those of the INTERNAL listeners."""
    return {
        **RECONNECT_SETTINGS,
        # A first connection to the leader counts as another attempt, which should not wait. Later ones double the time.
        "reconnect.backoff.ms": 50,
        # How long a topic may be missing before reading and writing fail and it is made again: somebody deleted it.
        "topic.metadata.propagation.max.ms": 5000,
        **settings,
        "allow.auto.create.topics": False,
    }


def signature(authenticator: Authenticator | None, key: bytes, value: bytes | None) -> Any:
    """Return the headers of a record, as librdkafka wants them."""
    return [] if authenticator is None else [authenticator.header(key, value)]


@contextmanager
def raising(topic: str) -> Iterator[None]:
    """Raise TopicError in place of KafkaException."""
    try:
        yield
    except KafkaException as error:
        raise TopicError(f"{topic}: {error.args[0].str()}") from None
