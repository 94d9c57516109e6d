"""What a consumer subscribes to: the text ``topic_count`` of RegisterConsumer, in the forms of Kafka 0.7.

``{"t1": 4, "t2": 1}``   these topics, with so many streams each.
``*4*white.*``           each topic whose whole name matches the pattern, with four streams.
``!4!black.*``           each topic whose name does not.

Patterns are RE2's, because they come from clients: its time is linear in the length of a name, whatever the pattern
is (KIP-848 uses it for the same reason). Topics whose names begin with ``__`` are internal, and match no pattern.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from proxy.coordinator.codes import RegistrationCode
from proxy.coordinator.wire import RegistrationRefused

MAX_STREAMS = 1000
"""Of one topic, in one consumer."""

MAX_TOPICS = 1000
"""That a consumer names."""

MAX_PATTERN = 1024
"""Characters of a pattern."""

MAX_PATTERN_STATES = 1200
"""Instructions of a pattern's program. The worst of this size take a millisecond for a name of 249 characters."""

INTERNAL = "__"
"""How the names of internal topics begin."""

_PATTERN_MEMORY = 1 << 19
"""Bytes that RE2 may take for one pattern. It keeps the last 128."""

_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")
"""As Kafka's class Topic checks it."""

_FILTER = re.compile(r"([*!])([0-9]{1,4})\1(.*)", re.DOTALL)

_named = msgspec.json.Decoder(dict[str, Annotated[int, Meta(ge=1, le=MAX_STREAMS)]])


class TopicCount(NamedTuple):
    """Either ``named``, the streams of each topic, or the topics that match ``pattern`` or, if it ``excludes``, do not.

    ``streams``: of one topic of a pattern; of all topics the most, otherwise. So many threads has the consumer.
    """

    streams: int
    named: Mapping[str, int]
    pattern: str | None = None
    excludes: bool = False

    def select(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the streams of those of the topics that the consumer subscribes to, in the order of ``topics``."""
        if self.pattern is None:
            return {topic: self.named[topic] for topic in topics if topic in self.named}
        fullmatch, wanted = _compiled(self.pattern).fullmatch, not self.excludes
        return {
            topic: self.streams
            for topic in topics
            if not topic.startswith(INTERNAL) and (fullmatch(topic.encode()) is not None) is wanted
        }


def is_topic_name(name: str) -> bool:
    """Whether a topic can have this name."""
    return _NAME.fullmatch(name) is not None


def parse_topic_count(text: str) -> TopicCount:
    """Return what ``topic_count`` says.

    Raises RegistrationRefused: 17 for a name that no topic can have, 42 for all else that is wrong.
    """
    return _parse_named(text) if text.startswith("{") else _parse_filter(text)


def _parse_named(text: str) -> TopicCount:
    try:
        named = _named.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise _refused(f"no JSON object of topics, each with 1 to {MAX_STREAMS} streams") from None
    if not 1 <= len(named) <= MAX_TOPICS:
        raise _refused(f"{len(named)} topics (allowed: 1 to {MAX_TOPICS})")
    for topic in named:
        if not is_topic_name(topic):
            raise _refused(f"no topic can be named {topic[:MAX_PATTERN]!r}", RegistrationCode.INVALID_TOPIC)
    return TopicCount(max(named.values()), named)


def _parse_filter(text: str) -> TopicCount:
    found = _FILTER.fullmatch(text)
    if found is None:
        raise _refused("neither JSON nor *streams*pattern nor !streams!pattern")
    marker, streams, pattern = found[1], int(found[2]), found[3]
    if not 1 <= streams <= MAX_STREAMS:
        raise _refused(f"{streams} streams (allowed: 1 to {MAX_STREAMS})")
    if not (pattern.isascii() and 1 <= len(pattern) <= MAX_PATTERN):
        raise _refused(f"a pattern of {len(pattern)} characters (allowed: 1 to {MAX_PATTERN}, ASCII)")
    states = _compiled(pattern).programsize
    if states > MAX_PATTERN_STATES:
        raise _refused(f"a pattern of {states} states (allowed: {MAX_PATTERN_STATES})")
    return TopicCount(streams, {}, pattern, excludes=marker == "!")


def _compiled(pattern: str) -> Any:
    """Return the pattern as RE2 has it. In Latin-1 a program is a tenth of that for UTF-8; names are ASCII."""
    re2, options = _engine()
    try:
        return re2.compile(pattern.encode(), options)
    except re2.error:
        raise _refused("a pattern that RE2 does not take") from None


@cache
def _engine() -> tuple[Any, Any]:
    """Return the module and the options. It is an extra: only a sidecar with ``coordinator.enabled`` has to have it."""
    import re2

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    options.log_errors = False
    options.max_mem = _PATTERN_MEMORY
    return re2, options


def _refused(detail: str, code: RegistrationCode = RegistrationCode.INVALID_REQUEST) -> RegistrationRefused:
    return RegistrationRefused(code, f"topic_count: {detail}")
