"""What is checked of RegisterConsumer, but for what depends on the group (seed 001, section 7, and its bounds)."""

from __future__ import annotations

import re

from proxy.coordinator.codes import RegistrationCode
from proxy.coordinator.settings import CoordinatorSettings
from proxy.coordinator.subscription import TopicCount, parse_topic_count
from proxy.coordinator.wire import RegisterConsumerRequest, RegistrationRefused

MAX_ID_BYTES = 255
"""Of a group id and of a consumer id."""

_GROUP_ID = re.compile(rf"[ -~]{{1,{MAX_ID_BYTES}}}")

MAX_SESSION_TIMEOUT_MS = 600_000

OFFSET_RESETS = ("smallest", "largest")


def check_request(request: RegisterConsumerRequest, settings: CoordinatorSettings) -> TopicCount:
    """Return what the consumer subscribes to. Raises RegistrationRefused: 24, 42, 17 or 26, in this order."""
    if not is_group_id(request.group_id):
        raise RegistrationRefused(RegistrationCode.INVALID_GROUP_ID, "the group id")
    if not is_consumer_id(request.consumer_id):
        raise RegistrationRefused(RegistrationCode.INVALID_REQUEST, "the consumer id")
    if request.auto_offset_reset not in OFFSET_RESETS:
        raise RegistrationRefused(RegistrationCode.INVALID_REQUEST, "auto_offset_rest")
    if request.protocol_level < 1:
        raise RegistrationRefused(RegistrationCode.INVALID_REQUEST, "protocol_level")
    subscription = parse_topic_count(request.topic_count)
    if not settings.min_session_timeout_ms < request.session_timeout_ms <= MAX_SESSION_TIMEOUT_MS:
        raise RegistrationRefused(RegistrationCode.INVALID_SESSION_TIMEOUT, "session_timeout_ms")
    return subscription


def names_denied_topic(request: RegisterConsumerRequest, unreadable: frozenset[str]) -> bool:
    """Whether it names a topic that its client may not read. One that matches a pattern is only left out."""
    if not unreadable:
        return False
    try:
        subscription = parse_topic_count(request.topic_count)
    except RegistrationRefused:
        return False
    return not unreadable.isdisjoint(subscription.named)


def is_group_id(text: str) -> bool:
    """Whether a group can have this id: librdkafka, which commits its offsets, takes printable ASCII alone."""
    return _GROUP_ID.fullmatch(text) is not None


def is_consumer_id(text: str) -> bool:
    """Whether a consumer can have this id. Raises UnicodeEncodeError for what UTF-8 does not have."""
    return 0 < len(text.encode()) <= MAX_ID_BYTES and "\0" not in text


def refusal(code: RegistrationCode) -> RegistrationRefused:
    """Return what a registration is refused with."""
    return RegistrationRefused(code, code.name)
