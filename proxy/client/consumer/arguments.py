"""Checks the arguments of a consumer, before anything connects. Every mistake is a LocalError."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from proxy.config.values import Endpoint
from proxy.coordinator.registration import MAX_ID_BYTES, OFFSET_RESETS, is_consumer_id, is_group_id
from proxy.coordinator.subscription import MAX_STREAMS, MAX_TOPICS, is_topic_name
from proxy.errors import LocalError
from proxy.fleet.security import Security

FILTER = re.compile(r"([*!])([0-9]{1,4})\1(.+)", re.DOTALL)

OWN_SETTINGS = (
    *("group.id", "enable.auto.commit", "auto.offset.reset", "enable.auto.offset.store"),
    *("group.protocol", "group.instance.id", "session.timeout.ms", "max.poll.interval.ms"),
)
"""Of librdkafka, which the consumer sets itself, or which have no meaning without Kafka's own group protocols."""


def check_group_id(value: object) -> str:
    """Return the id of a group."""
    if isinstance(value, str) and is_group_id(value):
        return value
    raise LocalError(f"group_id is {value!r:.80} (allowed: 1 to {MAX_ID_BYTES} characters of printable ASCII)")


def check_consumer_id(value: object) -> str:
    """Return the id of a consumer."""
    try:
        if isinstance(value, str) and is_consumer_id(value):
            return value
    except UnicodeEncodeError:
        pass
    raise LocalError(f"consumer_id is {value!r:.80} (allowed: a text of 1 to {MAX_ID_BYTES} bytes without NUL)")


def check_number(name: str, value: object, most: int) -> int:
    """Return a number of milliseconds."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise LocalError(f"{name} is {value!r:.80} (allowed: 1 to {most} milliseconds)")
    return value


def check_flag(name: str, value: object) -> bool:
    """Return a flag."""
    if not isinstance(value, bool):
        raise LocalError(f"{name} is {value!r:.80} (allowed: True and False)")
    return value


def check_reset(value: object) -> str:
    """Return ``auto_offset_reset``."""
    if value not in OFFSET_RESETS:
        raise LocalError(f"auto_offset_reset is {value!r:.80} (allowed: {', '.join(OFFSET_RESETS)})")
    return str(value)


def check_brokers(value: str | Iterable[str]) -> tuple[Endpoint, ...]:
    """Return the addresses: a list, or a text with commas."""
    addresses = [one.strip() for one in (value.split(",") if isinstance(value, str) else value)]
    if not any(addresses):
        raise LocalError("bootstrap_brokers is empty (allowed: addresses of sidecars, host:port)")
    found = []
    for address in addresses:
        try:
            found.append(Endpoint.parse(address))
        except ValueError as error:
            raise LocalError(f"bootstrap_brokers: {address!r} {error}") from None
    return tuple(found)


def check_kafka(settings: Mapping[str, Any]) -> Security:
    """Return how to log in. ``settings``: librdkafka's."""
    for name in OWN_SETTINGS:
        if name in settings:
            raise LocalError(f"kafka: {name} is set by the consumer itself")
    security = Security.from_settings({name: str(value) for name, value in settings.items()})
    if security.tls is not None:
        raise LocalError(
            "kafka: security.protocol: a listener with TLS has no coordinator (allowed: plaintext, sasl_plaintext)"
        )
    return security


def topic_count_of(streams: Mapping[str, int]) -> str:
    """Return what a coordinator gets of topics and their numbers of streams."""
    if not isinstance(streams, Mapping) or not 1 <= len(streams) <= MAX_TOPICS:
        raise LocalError(f"topic_count: allowed are numbers of streams by topic, of 1 to {MAX_TOPICS} topics")
    for topic, number in streams.items():
        if not isinstance(topic, str) or not is_topic_name(topic):
            raise LocalError(f"topic_count: no topic can be named {topic!r:.300}")
        _check_streams(topic, number)
    return json.dumps(dict(streams), separators=(",", ":"))


def streams_of_filter(topic_filter: object) -> int:
    """Return the number of streams. Of the pattern, the coordinator says whether it is one."""
    found = FILTER.fullmatch(topic_filter) if isinstance(topic_filter, str) else None
    if found is None:
        allowed = "*<streams>*<pattern> and !<streams>!<pattern>"
        raise LocalError(f"topic_filter is {topic_filter!r:.80} (allowed: {allowed})")
    return _check_streams("topic_filter", int(found[2]))


def _check_streams(name: str, number: object) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= MAX_STREAMS:
        raise LocalError(f"{name}: {number!r:.80} streams (allowed: 1 to {MAX_STREAMS})")
    return number
