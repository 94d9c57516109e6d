"""What the command reads and writes in the sidecars' topics. Every call may block."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from proxy.core.authentication import Authenticator
from proxy.errors import LocalError
from proxy.features.participants import READER, SIDECAR
from proxy.features.topic_state import TopicState
from proxy.fleet.compacted_topic import CompactedTopic
from proxy.fleet.membership import MEMBER_DEAD_AFTER_MS, Membership
from proxy.fleet.topic_client import TopicError, TopicMissing
from proxy.fleet.topic_spec import FEATURES_TOPIC, REGISTRY_TOPIC, TopicRecord, TopicSpec

CLIENT_ID = "brokerside-fleet-command"
"""Begins as those of the sidecars do, whose groups the sidecar's user may describe."""

READ_SECONDS = 0.5

READ_TIMEOUT = 15.0
"""Seconds until a topic has to be read to its end, and until the registry has to have a record."""

MAX_NAMED = 20
"""Participants that an error names."""


def read_features(settings: Mapping[str, Any], authenticator: Authenticator | None) -> TopicState:
    """Return what the topic of finalized levels says; it is empty without that topic.

    ``settings``: librdkafka's, for the INTERNAL listeners. Raises TopicError.
    """
    state = TopicState()
    try:
        topic = _open(FEATURES_TOPIC, settings, authenticator)
    except TopicMissing:
        return state
    try:
        for records in _read_to_end(topic):
            for key, value, at in records:
                state.apply(key, value, at or 0)
    finally:
        topic.close(0)
    return state


def forget(participant: str, settings: Mapping[str, Any], authenticator: Authenticator | None) -> None:
    """Delete the record of ``participant`` (``sidecar/ID`` or ``reader/NAME``) from the registry.

    It takes up to ``MEMBER_DEAD_AFTER_MS`` where only time shows that the participant does not run. Raises TopicError,
    and LocalError for a participant that is not there, or that runs.
    """
    topic = _open(REGISTRY_TOPIC, settings, authenticator)
    outcome: list[str | None] = []
    try:
        _require_stopped(topic, participant, signed=authenticator is not None)
        topic.write(participant.encode(), None, outcome.append)
    finally:
        topic.close(READ_TIMEOUT)
    if outcome != [None]:
        raise TopicError(
            f"{REGISTRY_TOPIC.name}: {participant} was not deleted: {outcome[0] if outcome else 'no answer'}"
        )


def _open(spec: TopicSpec, settings: Mapping[str, Any], authenticator: Authenticator | None) -> CompactedTopic:
    return CompactedTopic(spec, {**settings, "client.id": CLIENT_ID}, authenticator, create=False)


def _read_to_end(topic: CompactedTopic) -> Iterator[Sequence[TopicRecord]]:
    until, end = time.monotonic() + READ_TIMEOUT, False
    while not end:
        if time.monotonic() > until:
            raise TopicError(f"the topic was not read to its end within {READ_TIMEOUT:.0f} s")
        records, end = topic.read(READ_SECONDS)
        yield records


def _require_stopped(topic: CompactedTopic, participant: str, *, signed: bool) -> None:
    membership = Membership(signed=signed)
    for records in _read_to_end(topic):
        membership.apply(records)
    if topic.has_signatures and not signed:
        raise LocalError("the registry is signed: --registry-hmac-keys has to name the file of registry.hmac.keys.file")
    running = _running(membership)
    if participant not in running:
        there = ", ".join(sorted(running)[:MAX_NAMED]) or "nobody"
        unsigned = f"; records without a valid signature: {topic.dropped.total()}" if topic.dropped else ""
        raise LocalError(f"{participant} is not in the registry (there are: {there}{unsigned})")
    # Its last record may be the newest of all, so that only time shows whether it still writes.
    until = time.monotonic() + MEMBER_DEAD_AFTER_MS / 1000
    while running.get(participant) and time.monotonic() < until:
        records, _ = topic.read(READ_SECONDS)
        membership.apply(records)
        running = _running(membership)
        if running.get(participant) and any(one.key == participant.encode() for one in records):
            raise LocalError(f"{participant} runs: it has just written to the registry; stop it first")


def _running(membership: Membership) -> dict[str, bool]:
    """Return whether each participant runs, as far as the registry says."""
    content = membership.content()
    sidecars = {f"{SIDECAR}{node_id}": one.alive for node_id, one in content.sidecars.items()}
    return sidecars | {f"{READER}{name}": one.alive for name, one in content.readers.items()}
