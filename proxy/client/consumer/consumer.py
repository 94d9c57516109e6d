"""The consumer that applications use."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Self

from proxy.client.consumer import arguments
from proxy.client.consumer.conductor import ConductorThread
from proxy.client.consumer.errors import CommitRefused, ConsumerFailed
from proxy.client.consumer.events import ConsumerStarted, LeaveRequested, MembershipEvent, SubscriptionChanged
from proxy.client.consumer.fetching import Callback, FetchingThread
from proxy.client.consumer.link import CoordinatorLink
from proxy.client.consumer.membership import ConsumerMembership
from proxy.client.consumer.registration_errors import other_members
from proxy.client.consumer.settings import MembershipSettings
from proxy.client.consumer.streams import HandoutGate, MessageStream
from proxy.config.values import INT32_MAX, Endpoint
from proxy.coordinator.registration import MAX_SESSION_TIMEOUT_MS
from proxy.errors import LocalError
from proxy.fleet.boottime import boottime_ms
from proxy.protocol.private import BASE

OTHER_MEMBERS = (22, 25)
"""What a broker answers to a commit of no member where the group has members of Kafka's own protocols:
ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID."""

EVERY_TOPIC = ""
"""Stands for all topics that a filter matches: they share their streams."""


class CoordinatedConsumer:
    """A consumer of a group that the sidecars coordinate: it gets its partitions pushed.

    At least once: a message is handed out again elsewhere if this consumer ends or is cut off before its offset is
    reported. Any thread may call it. It starts with its first streams and ends with ``shutdown``, or as a context
    manager.
    """

    def __init__(
        self,
        bootstrap_brokers: str | Iterable[str],
        group_id: str,
        consumer_id: str,
        *,
        topic_count: Mapping[str, int] | None = None,
        session_timeout_ms: int = 6000,
        auto_commit: bool = True,
        auto_offset_reset: str = "smallest",
        detached_fetching: bool = True,
        max_poll_interval_ms: int = 300_000,
        kafka: Mapping[str, Any] = MappingProxyType({}),
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        api_key: int = BASE,
    ) -> None:
        """Raises LocalError for a wrong argument.

        ``bootstrap_brokers``: addresses of sidecars, ``host:port``. ``consumer_id``: unique in the group.
        ``topic_count``: numbers of streams by topic, as for ``create_message_streams``, which is called; the streams
        are in ``streams``. ``session_timeout_ms``: how long it may be cut off from its coordinator before it stops, and
        the least time in which another consumer gets its partitions then. ``auto_commit``: its coordinator commits the
        offsets of what was handed out; otherwise ``commit_offsets`` does. ``auto_offset_reset``: ``smallest`` or
        ``largest``, where no offset is known. ``detached_fetching``: False where a balancer in front of the sidecars
        refuses connections for those that live. ``max_poll_interval_ms``: it leaves its group if messages wait so long
        in a stream. ``kafka``: settings of librdkafka, for fetching and for the login; its ``bootstrap.servers`` are
        the sidecars without another setting. ``on_assigned``, ``on_revoked``:
        called with partitions, in the thread that fetches: before the first of their messages, and after the last.
        ``api_key``: the sidecars' ``private.api.key.base``.
        """
        self._security = arguments.check_kafka(kafka)
        self._kafka = dict(kafka)
        self._settings = MembershipSettings(
            arguments.check_brokers(bootstrap_brokers),
            arguments.check_group_id(group_id),
            arguments.check_consumer_id(consumer_id),
            topic_count="",
            client_id=str(kafka.get("client.id", consumer_id)),
            session_timeout_ms=arguments.check_number("session_timeout_ms", session_timeout_ms, MAX_SESSION_TIMEOUT_MS),
            auto_commit=arguments.check_flag("auto_commit", auto_commit),
            auto_offset_reset=arguments.check_reset(auto_offset_reset),
            detached_fetching=arguments.check_flag("detached_fetching", detached_fetching),
            api_key=api_key,
        )
        self._max_poll_interval_ms = arguments.check_number("max_poll_interval_ms", max_poll_interval_ms, INT32_MAX)
        self._callbacks = on_assigned, on_revoked
        self._calls = threading.Lock()
        self._streams: dict[str, list[MessageStream]] = {}
        self._gate: HandoutGate | None = None
        self._conductor: ConductorThread | None = None
        self._fetching: FetchingThread | None = None
        self._is_shut_down = False
        if topic_count is not None:
            self.create_message_streams(topic_count)

    @property
    def streams(self) -> dict[str, list[MessageStream]]:
        """The streams so far, by topic; those of a filter by an empty text."""
        return {topic: list(streams) for topic, streams in self._streams.items()}

    def create_message_streams(self, topic_count: Mapping[str, int]) -> dict[str, list[MessageStream]]:
        """Return streams for these topics, as many of each as it says, and begin to consume.

        May be called again with further topics: the consumer then leaves its group for a moment. Raises LocalError for
        what are no topics, or have streams already.
        """
        arguments.topic_count_of(topic_count)
        with self._calls:
            if EVERY_TOPIC in self._streams:
                raise LocalError("the consumer has streams by a filter, and can have no other ones")
            for topic in topic_count:
                if topic in self._streams:
                    raise LocalError(f"topic {topic} has streams already")
            all_topics = {topic: len(streams) for topic, streams in self._streams.items()} | dict(topic_count)
            return self._subscribe(dict(topic_count), arguments.topic_count_of(all_topics))

    def create_message_streams_by_filter(self, topic_filter: str) -> list[MessageStream]:
        """Return streams for all topics that match, also those that are created later, and begin to consume.

        ``topic_filter``: ``*2*logs.*`` is two streams for the topics whose whole name matches the pattern (RE2's), and
        ``!2!logs.*`` for those whose name does not. Raises LocalError.
        """
        count = arguments.streams_of_filter(topic_filter)
        with self._calls:
            if self._streams:
                raise LocalError("the consumer has streams already, and can have none by a filter")
            return self._subscribe({EVERY_TOPIC: count}, topic_filter)[EVERY_TOPIC]

    def commit_offsets(self) -> None:
        """Commit the offsets of what was handed out, of all partitions that are assigned now.

        Only with ``auto_commit=False``. Raises CommitRefused where the partitions may not be this consumer's any more,
        or the broker refuses it; LocalError with ``auto_commit``.
        """
        if self._settings.auto_commit:
            raise LocalError("commit_offsets is for auto_commit=False: the coordinator commits the offsets")
        if self._gate is None or self._fetching is None:
            raise CommitRefused("nothing is assigned")
        with self._gate.lock:
            offsets = self._gate.membership.committable(self._gate.clock())
        if offsets is None:
            raise CommitRefused("nothing is assigned, or the lease on what is assigned may be over")
        if offsets:
            self._commit(self._fetching, offsets)

    def shutdown(self) -> None:
        """Hand out nothing more, report the offsets to the coordinator, leave the group, and end both threads.

        Returns within the session timeout. The streams end. May be called again.
        """
        with self._calls:
            self._is_shut_down = True
            conductor, fetching = self._conductor, self._fetching
        if conductor is None or fetching is None:
            return
        conductor.report(LeaveRequested())
        until = time.monotonic() + self._settings.session_timeout_ms / 1000
        for thread in (conductor, fetching):
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _subscribe(self, counts: Mapping[str, int], topic_count: str) -> dict[str, list[MessageStream]]:
        if self._is_shut_down:
            raise ConsumerFailed("the consumer is shut down")
        if self._conductor is None:
            self._settings = self._settings._replace(topic_count=topic_count)
            gate = HandoutGate(ConsumerMembership(self._settings, random.random), boottime_ms)
            fetching = self._make_fetching()
            gate.room_made = fetching.room_made
            conductor = ConductorThread(gate, fetching, self._open_link, self._all_streams, self._max_poll_interval_ms)
            self._gate, self._fetching, self._conductor = gate, fetching, conductor
            event: MembershipEvent = ConsumerStarted()
        else:
            assert self._gate is not None
            gate, conductor, event = self._gate, self._conductor, SubscriptionChanged(topic_count)
        new = {topic: [MessageStream(gate) for _ in range(count)] for topic, count in counts.items()}
        self._streams = {**self._streams, **new}
        conductor.report(event)
        conductor.begin()
        return {topic: list(streams) for topic, streams in new.items()}

    def _make_fetching(self) -> FetchingThread:
        own = {
            "group.id": self._settings.group_id,
            "client.id": self._settings.client_id,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
        }
        brokers = ",".join(map(str, self._settings.bootstrap_brokers))
        settings = {"bootstrap.servers": brokers, **self._kafka, **own}
        try:
            return FetchingThread(settings, self._stream_of, self._report, *self._callbacks)
        except Exception as error:
            raise LocalError(f"kafka: {error}") from None

    def _report(self, event: MembershipEvent) -> None:
        assert self._conductor is not None
        self._conductor.report(event)

    def _open_link(self, address: Endpoint) -> CoordinatorLink:
        return CoordinatorLink(address, self._security, self._settings.client_id, boottime_ms)

    def _all_streams(self) -> list[MessageStream]:
        return [stream for streams in self._streams.values() for stream in streams]

    def _stream_of(self, topic: str, thread: int) -> MessageStream:
        streams = self._streams
        return (streams[EVERY_TOPIC] if EVERY_TOPIC in streams else streams[topic])[thread]

    def _commit(self, fetching: FetchingThread, offsets: Mapping[tuple[str, int], int]) -> None:
        from confluent_kafka import KafkaException

        try:
            failed = fetching.commit(offsets)
        except KafkaException as error:
            failed = error.args[0]
        except TimeoutError:
            raise CommitRefused("the broker has not answered, and may have committed the offsets") from None
        if failed is not None:
            text = other_members(self._settings.group_id) if failed.code() in OTHER_MEMBERS else failed.str()
            raise CommitRefused(text)
