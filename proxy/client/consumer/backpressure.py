"""Keeps librdkafka from handing over what streams have no room for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from proxy.client.consumer.assignment import TopicPartition
from proxy.client.consumer.streams import MessageStream

if TYPE_CHECKING:
    from confluent_kafka import Consumer


class Backpressure:
    """While a stream is full, nothing is polled: that costs nothing, and librdkafka's own queue is bounded.

    Where something has to be polled all the same, the partitions of streams that are full are paused. That is dear:
    librdkafka drops what it has of them, and fetches it again.
    """

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._streams: dict[MessageStream, list[TopicPartition]] = {}
        self._paused: set[MessageStream] = set()

    def set_streams(self, assigned: Mapping[TopicPartition, MessageStream]) -> None:
        """These partitions are assigned from now on, and none of them is paused."""
        self._streams = {}
        for which, stream in assigned.items():
            self._streams.setdefault(stream, []).append(which)

    def resume_all(self) -> None:
        """Pause nothing."""
        self._resume(list(self._paused))

    def may_poll(self, *, must: bool) -> bool:
        """Whether messages may be polled now. ``must``: something else is to be got by polling."""
        self._resume([stream for stream in self._paused if not stream.is_full])
        full = [stream for stream in self._streams if stream.is_full and stream not in self._paused]
        if full and (must or any(stream.is_starving for stream in self._streams)):
            self._consumer.pause(offsets_of(which for stream in full for which in self._streams[stream]))
            self._paused.update(full)
            return True
        return not full

    def _resume(self, streams: list[MessageStream]) -> None:
        if streams:
            self._consumer.resume(offsets_of(which for stream in streams for which in self._streams[stream]))
            self._paused.difference_update(streams)


def offset_of(topic: str, partition: int, offset: int | None = None) -> Any:
    """Return librdkafka's object for a partition, with an offset where one is given."""
    from confluent_kafka import TopicPartition as PartitionOffset

    return PartitionOffset(topic, partition) if offset is None else PartitionOffset(topic, partition, offset)


def offsets_of(partitions: Iterable[TopicPartition]) -> list[Any]:
    """Return librdkafka's objects for partitions."""
    return [offset_of(*which) for which in partitions]
