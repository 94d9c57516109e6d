"""The thread that fetches: around one ``confluent_kafka.Consumer``, which it alone uses.

It never subscribes: for librdkafka, and for the broker, the consumer is in no group. A message is tagged with the epoch
of its partition's assignment when it is polled, between two assignments, so the tag is never wrong. Commits are made
here, too: one that waits for its answer in another thread never gets it while this one polls (librdkafka 2.16).
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from proxy.client.consumer.assignment import TopicPartition
from proxy.client.consumer.backpressure import Backpressure, offset_of, offsets_of
from proxy.client.consumer.effects import AssignPartitions, FetchedFrom
from proxy.client.consumer.events import FetcherDone, LeaveRequested, MembershipEvent, OffsetOutOfRange
from proxy.client.consumer.streams import FetchedMessage, MessageStream

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

log = logging.getLogger(__name__)

POLL_SECONDS = 0.025
"""How long a poll waits for a message: so late at most is an assignment seen."""

IDLE_SECONDS = 1.0
"""Between two polls while nothing is assigned, for librdkafka's callbacks."""

COMMIT_SECONDS = 60.0
"""For the broker's answer to a commit."""

MAX_BATCH = 500
"""Messages that are taken from librdkafka at once."""

StreamOf = Callable[[str, int], MessageStream]
"""Gives the stream of a topic and the number of a thread. Raises LookupError if there is none."""

Callback = Callable[[list[TopicPartition]], None]


class OffsetCommit(NamedTuple):
    """A command of the application. ``done``: None, or an error of Kafka's."""

    offsets: Mapping[TopicPartition, int]
    done: Future[KafkaError | None]


class RoomMade(NamedTuple):
    """A stream that was full takes messages again."""


class FetchingThread(threading.Thread):
    """Ends after ``end``."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        stream_of: StreamOf,
        report: Callable[[MembershipEvent], None],
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
    ) -> None:
        """``settings``: librdkafka's. ``report``: takes events for the membership, in any thread.

        Raises KafkaException, TypeError and ValueError for settings that are not right.
        """
        from confluent_kafka import Consumer  # librdkafka is not loaded before there is something to fetch

        super().__init__(name="brokerside-fetching", daemon=True)
        own = {"on_commit": self._committed}
        self._consumer = Consumer({**settings, **own}, logger=logging.getLogger(f"{__package__}.librdkafka"))
        self._stream_of = stream_of
        self._report = report
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._commands: SimpleQueue[AssignPartitions | OffsetCommit | RoomMade | None] = SimpleQueue()
        self._assigned: dict[TopicPartition, tuple[FetchedFrom, MessageStream]] = {}
        self._backpressure = Backpressure(self._consumer)
        self._commits: list[OffsetCommit] = []
        """Those that the broker has not answered."""

    def assign(self, command: AssignPartitions) -> None:
        """Do this soon, and report ``FetcherDone``."""
        self._commands.put(command)

    def room_made(self) -> None:
        """A stream that was full takes messages again."""
        self._commands.put(RoomMade())

    def end(self) -> None:
        """End soon."""
        self._commands.put(None)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> KafkaError | None:
        """Commit offsets, and wait for the broker, which may answer with an error.

        Raises KafkaException; TimeoutError if there is no answer.
        """
        if threading.current_thread() is self:  # in a callback
            done = self._consumer.commit(offsets=_with_offsets(offsets), asynchronous=False)
            return _first_error(done)
        command = OffsetCommit(offsets, Future())
        self._commands.put(command)
        return command.done.result(COMMIT_SECONDS)

    def run(self) -> None:
        """Not to be called."""
        try:
            wait: float | None = IDLE_SECONDS
            while self._do_commands(wait):
                wait = self._fetch()
        except Exception as error:
            log.exception("fetching has failed")
            self._report(LeaveRequested(f"fetching has failed: {error}"))
            while (command := self._commands.get()) is not None:
                if isinstance(command, AssignPartitions):
                    self._report(FetcherDone(command.command, "fetching has failed"))
        self._consumer.close()
        for commit in self._commits:
            commit.done.set_exception(TimeoutError())

    def _do_commands(self, wait: float | None) -> bool:
        """Wait for a command so many seconds, do all that there are, and return False when it is time to end."""
        try:
            command = self._commands.get(block=wait is not None, timeout=wait)
            while command is not None:
                self._do(command)
                command = self._commands.get_nowait()
        except Empty:
            return True
        return False

    def _fetch(self) -> float | None:
        """Poll, if there is something to get; return how long to wait for a command then (None: not at all)."""
        if not self._assigned and not self._commits:
            self._consumer.poll(0)
            return IDLE_SECONDS
        if not self._backpressure.may_poll(must=bool(self._commits)):
            return POLL_SECONDS
        self._poll()
        return None

    def _do(self, command: AssignPartitions | OffsetCommit | RoomMade) -> None:
        match command:
            case OffsetCommit():
                self._commit(command)
            case AssignPartitions():
                self._assign(command)

    def _assign(self, command: AssignPartitions) -> None:
        try:
            self._change(command.partitions)
        except Exception as error:
            log.exception("partitions cannot be assigned")
            self._consumer.unassign()
            self._assigned.clear()
            self._report(FetcherDone(command.command, f"partitions cannot be assigned: {error}"))
        else:
            self._report(FetcherDone(command.command))
        self._backpressure.set_streams({which: stream for which, (_, stream) in self._assigned.items()})

    def _commit(self, command: OffsetCommit) -> None:
        try:
            self._consumer.commit(offsets=_with_offsets(command.offsets), asynchronous=True)
        except Exception as error:
            command.done.set_exception(error)
        else:
            self._commits.append(command)

    def _committed(self, error: KafkaError | None, partitions: list[Any]) -> None:
        """Called by librdkafka within a poll."""
        offsets = {(one.topic, one.partition): one.offset for one in partitions}
        command = next((one for one in self._commits if one.offsets == offsets), None)
        if command is not None:
            self._commits.remove(command)
            command.done.set_result(error or _first_error(partitions))

    def _change(self, partitions: Sequence[FetchedFrom]) -> None:
        """Leave what is fetched already as it is."""
        wanted = {(one.topic, one.partition): one for one in partitions}
        gone = [which for which, (one, _) in self._assigned.items() if wanted.get(which) != one]
        self._backpressure.resume_all()
        if gone:
            self._consumer.incremental_unassign(offsets_of(gone))
            for which in gone:
                del self._assigned[which]
            self._call(self._on_revoked, gone)
        new = [one for which, one in wanted.items() if which not in self._assigned]
        if new:
            self._consumer.incremental_assign([offset_of(one.topic, one.partition, one.offset) for one in new])
            for one in new:
                self._assigned[one.topic, one.partition] = one, self._stream_of(one.topic, one.thread)
            self._call(self._on_assigned, [(one.topic, one.partition) for one in new])

    def _call(self, callback: Callback | None, partitions: list[TopicPartition]) -> None:
        if callback is not None:
            try:
                callback(partitions)
            except Exception:
                log.exception("a callback of the application has failed")

    def _poll(self) -> None:
        first = self._consumer.poll(POLL_SECONDS)
        if first is not None:
            by_stream: dict[MessageStream, list[FetchedMessage]] = defaultdict(list)
            for message in (first, *self._consumer.consume(MAX_BATCH - 1, 0)):
                self._sort(message, by_stream)
            for stream, messages in by_stream.items():
                stream.put(messages)

    def _sort(self, message: Any, by_stream: dict[MessageStream, list[FetchedMessage]]) -> None:
        found = self._assigned.get((message.topic(), message.partition()))
        if message.error() is not None:
            self._failed(message, found)
        elif found is not None:
            one, stream = found
            fetched = FetchedMessage(message, one.topic, one.partition, one.epoch, message.offset(), len(message))
            by_stream[stream].append(fetched)

    def _failed(self, message: Any, found: tuple[FetchedFrom, MessageStream] | None) -> None:
        from confluent_kafka import KafkaError

        error = message.error()
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            if found is not None:
                one, _ = found
                self._report(OffsetOutOfRange(one.topic, one.partition, one.epoch, message.offset()))
        elif error.fatal():
            self._report(LeaveRequested(f"fetching has failed: {error.str()}"))
        elif error.code() != KafkaError._PARTITION_EOF:
            log.warning("%s [%s]: %s", message.topic(), message.partition(), error.str())


def _with_offsets(offsets: Mapping[TopicPartition, int]) -> list[Any]:
    return [offset_of(*which, offset) for which, offset in offsets.items()]


def _first_error(partitions: Iterable[Any]) -> KafkaError | None:
    return next((one.error for one in partitions if one.error is not None), None)
