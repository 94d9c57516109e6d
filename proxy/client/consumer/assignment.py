"""What a consumer may fetch, and how far the application has got. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from proxy.client.consumer.effects import FetchedFrom
from proxy.coordinator.wire import LARGEST, MAX_COUNT, SMALLEST, ConsumedOffset, StartFetcherRequest
from proxy.core.wire import DecodeError

TopicPartition = tuple[str, int]


class ConsumerAssignment:
    """The partitions of one consumer, and the offset to consume next of each: that of the last message handed out + 1.

    Offsets of partitions that are stopped are kept until the next assignment: a coordinator that has just taken over
    has not heard them. It does not take them where the next assignment may have been lost: another consumer may have
    had the partition since, or the topic was recreated (``proxy.coordinator.offsets``).
    """

    def __init__(self, auto_offset_reset: str) -> None:
        self._reset = SMALLEST if auto_offset_reset == "smallest" else LARGEST
        self._epoch = 0
        self._fetched: dict[TopicPartition, FetchedFrom] = {}
        self._started: dict[TopicPartition, FetchedFrom] = {}
        """The last assignment as a whole, with what was stopped since."""
        self._next_offsets: dict[TopicPartition, int] = {}
        self._stopping: set[TopicPartition] = set()
        self._out_of_range: dict[TopicPartition, int] = {}

    def __bool__(self) -> bool:
        """Whether anything is assigned."""
        return bool(self._fetched)

    @property
    def partitions(self) -> tuple[FetchedFrom, ...]:
        """What is assigned."""
        return tuple(self._fetched.values())

    @property
    def next_offsets(self) -> dict[TopicPartition, int]:
        """The offsets to consume next of what is assigned, or was until now (``settle``), as far as they are known."""
        mine = self._fetched.keys() | self._stopping
        return {which: offset for which, offset in self._next_offsets.items() if which in mine}

    @property
    def is_unreported(self) -> bool:
        """Whether there is an offset that a coordinator should hear."""
        return bool(self._next_offsets)

    def has(self, topic: str, partition: int, epoch: int) -> bool:
        """Whether the partition is assigned, and fetching from it began with this epoch."""
        found = self._fetched.get((topic, partition))
        return found is not None and found.epoch == epoch

    def handed_out(self, topic: str, partition: int, next_offset: int) -> None:
        """Note that the application has got the message before ``next_offset``."""
        self._next_offsets[topic, partition] = next_offset

    def start(self, request: StartFetcherRequest) -> None:
        """Take over the whole assignment of StartFetcher: what is fetched already goes on where it is.

        Raises DecodeError for the id of a thread that is none of this consumer's, and more partitions than any
        response can report.
        """
        self._epoch += 1
        fetched: dict[TopicPartition, FetchedFrom] = {}
        for thread in request.threads:
            number = _thread_number(thread.thread_id, request.consumer_id)
            for one in thread.partitions:
                fetched[one.topic, one.partition] = self._fetched_from(one, number)
        if len(fetched) > MAX_COUNT:
            raise DecodeError(f"{len(fetched)} partitions")
        self._fetched = fetched
        self._started = fetched.copy()
        self._stopping.clear()
        self._next_offsets = self.next_offsets

    def stop(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Give up these partitions; None: all."""
        for which in list(self._fetched) if partitions is None else partitions:
            if self._fetched.pop(which, None) is not None:
                self._stopping.add(which)

    def settle(self) -> None:
        """What was given up may be another consumer's from now on."""
        self._stopping.clear()

    def forget_offsets(self) -> None:
        """The coordinator has heard them, and others may have consumed more since: it says where fetching begins."""
        self._next_offsets.clear()

    def mark_out_of_range(self, topic: str, partition: int, epoch: int, offset: int) -> bool:
        """Remember that the broker does not have this offset: another start there is by ``auto_offset_reset``.

        Return False if it was found with another assignment of the partition than the last one.
        """
        which = topic, partition
        started = self._started.get(which)
        if started is None or started.epoch != epoch:
            return False
        self._out_of_range[which] = offset
        return True

    def consumed(self, partitions: Iterable[TopicPartition] | None = None) -> tuple[ConsumedOffset, ...]:
        """Return what the coordinator gets: the offsets to consume next, of these partitions; None: of all."""
        wanted = None if partitions is None else set(partitions)
        return tuple(
            ConsumedOffset(which[0], self._leader(which), which[1], offset)
            for which, offset in self._next_offsets.items()
            if wanted is None or which in wanted
        )

    def _leader(self, which: TopicPartition) -> int:
        return self._started[which].leader if which in self._started else -1

    def _fetched_from(self, one: ConsumedOffset, thread: int) -> FetchedFrom:
        which = one.topic, one.partition
        before = self._fetched.get(which)
        if before is not None and before.thread == thread:
            return before
        offset = one.offset
        if before is not None:  # to another stream: it begins with what has not been handed out
            offset = self._next_offsets.get(which, before.offset)
        else:
            self._next_offsets.pop(which, None)
            if self._out_of_range.get(which) == offset:
                offset = self._reset
            else:
                self._out_of_range.pop(which, None)
        return FetchedFrom(one.topic, one.partition, one.leader, thread, offset, self._epoch)


def _thread_number(thread_id: str, consumer_id: str) -> int:
    name, _, number = thread_id.rpartition("-")
    if name != consumer_id or not (number.isascii() and number.isdigit()):
        raise DecodeError("a thread that is none of this consumer's")
    return int(number)
