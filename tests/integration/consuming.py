"""Consumers of a coordinated group that note what they get."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from proxy.client.consumer import ConsumerFailed, CoordinatedConsumer
from proxy.client.consumer.streams import MessageStream

SECONDS = 60.0
"""How long a test waits for something; mostly it takes a second."""


class NotingConsumer:
    """A consumer of one topic with one stream, which it reads on a thread until ``shut_down``.

    ``got``: the offsets of each partition, in order. ``changes``: ``assigned`` and ``revoked`` with their partitions.
    ``failure``: why it has ended by itself.
    """

    def __init__(self, address: str | list[str], group: str, consumer_id: str, topic: str, **arguments: Any) -> None:
        self.got: dict[int, list[int]] = {}
        self.changes: list[tuple[str, list[int]]] = []
        self.failure: str | None = None
        self._owned: set[int] = set()
        self._consumer = CoordinatedConsumer(
            address,
            group,
            consumer_id,
            on_assigned=lambda found: self._note("assigned", found),
            on_revoked=lambda found: self._note("revoked", found),
            **arguments,
        )
        (stream,) = self._consumer.create_message_streams({topic: 1})[topic]
        self._thread = threading.Thread(target=self._read, args=[stream])
        self._thread.start()

    @property
    def owned(self) -> set[int]:
        """The partitions that it has now."""
        return set(self._owned)

    @property
    def count(self) -> int:
        """How many messages it got."""
        return sum(len(offsets) for offsets in list(self.got.values()))

    def shut_down(self) -> None:
        """Leave the group."""
        self._consumer.shutdown()
        self._thread.join()

    def _note(self, what: str, found: Any) -> None:
        partitions = sorted(partition for _, partition in found)
        self.changes.append((what, partitions))
        self._owned = self._owned | set(partitions) if what == "assigned" else self._owned - set(partitions)

    def _read(self, stream: MessageStream) -> None:
        try:
            for message in stream:
                self.got.setdefault(message.partition(), []).append(message.offset())
        except ConsumerFailed as error:
            self.failure = str(error)


def shut_down(*consumers: NotingConsumer | None) -> None:
    """Let consumers leave, at the same time: each waits for two pings."""
    with ThreadPoolExecutor(max(len(consumers), 1)) as pool:
        for left in [pool.submit(one.shut_down) for one in consumers if one is not None]:
            left.result()


def handed_out(*consumers: NotingConsumer) -> Counter[tuple[int, int]]:
    """How often each message was handed out, by partition and offset."""
    return Counter(
        (partition, offset) for one in consumers for partition, offsets in list(one.got.items()) for offset in offsets
    )


def fetch(url: str) -> dict[str, Any]:
    """The JSON of a page, which a busy machine may have to be asked for again. Raises HTTPError."""
    for _ in range(5):
        with contextlib.suppress(ConnectionError, TimeoutError), urllib.request.urlopen(url, timeout=10) as response:
            found: dict[str, Any] = json.load(response)
            return found
    raise TimeoutError(url)


def until(condition: Callable[[], object], what: str = "") -> None:
    """Wait until a condition of other processes and threads is true."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, what or "it never became true"
        time.sleep(0.02)
