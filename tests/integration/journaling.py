"""``python -m tests.integration.journaling FILE ARGUMENTS``: a consumer that writes down what it is handed out.

``ARGUMENTS``: JSON; ``topic_count`` and what else ``CoordinatedConsumer`` takes, and ``pause``: seconds between two
looks at a stream that was empty; messages wait in it meanwhile. Ends with SIGTERM. A line is in the file before the
next message is asked for, so that nothing is lost with a process that is killed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from proxy.client.consumer import ConsumerFailed, CoordinatedConsumer
from proxy.client.consumer.link import SIZE_BYTES, CoordinatorLink
from proxy.client.consumer.streams import MessageStream
from proxy.config.values import Endpoint
from proxy.coordinator.wire import START_FETCHER, ConsumerResponse, decode_response
from proxy.errors import PeerError
from proxy.fleet.boottime import boottime_ms

POLL_SECONDS = 0.01
"""Between two times of which it is known that a message was handed out between them, at most, while nothing stops."""


class ReportingLink(CoordinatorLink):
    """Calls ``responded`` with a response when the kernel has it."""

    responded: Callable[[ConsumerResponse], None]

    def send(self, frame: bytes) -> None:
        super().send(frame)
        with contextlib.suppress(PeerError):  # a request of its own
            self.responded(decode_response(frame[SIZE_BYTES:]))


class ReportingConsumer(CoordinatedConsumer):
    """``responded``: see ``ReportingLink``."""

    responded: Callable[[ConsumerResponse], None]

    def _open_link(self, address: Endpoint) -> CoordinatorLink:
        link = ReportingLink(address, self._security, self._settings.client_id, boottime_ms)
        link.responded = self.responded
        return link


class JournalingConsumer:
    """Runs from its making to ``shut_down``."""

    def __init__(self, path: str, arguments: dict[str, Any]) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._is_ended = threading.Event()
        self._pause = arguments.pop("pause")
        topic_count = arguments.pop("topic_count")
        self._consumer = ReportingConsumer(
            **arguments,
            on_assigned=lambda found: self._note_all("assigned", found),
            on_revoked=lambda found: self._note_all("revoked", found),
        )
        self._consumer.responded = self._note_response
        streams = self._consumer.create_message_streams(topic_count)
        self._threads = [threading.Thread(target=self._read, args=[one]) for each in streams.values() for one in each]
        for thread in self._threads:
            thread.start()

    def shut_down(self) -> None:
        """Leave the group."""
        self._consumer.shutdown()
        self._is_ended.set()
        for thread in self._threads:
            thread.join()

    def _note(self, *fields: object) -> None:
        os.write(self._file, (" ".join(map(str, fields)) + "\n").encode())

    def _note_all(self, what: str, partitions: list[tuple[str, int]]) -> None:
        now = boottime_ns()
        for topic, partition in partitions:
            self._note(what, now, topic, partition)

    def _note_response(self, response: ConsumerResponse) -> None:
        now = boottime_ns()
        if response.api_key == START_FETCHER:
            self._note("started", now)
        for one in response.offsets or ():
            self._note("reported", now, one.topic, one.partition, one.offset)

    def _read(self, stream: MessageStream) -> None:
        try:
            while not self._is_ended.is_set():
                before = boottime_ns()
                message = stream.poll(POLL_SECONDS)
                if message is None:
                    self._is_ended.wait(self._pause)
                else:
                    recreated = (message.value() or b"").decode()
                    where = message.topic(), recreated, message.partition(), message.offset()
                    self._note("handed_out", *where, before, boottime_ns())
        except ConsumerFailed as error:
            self._note("failed", error)


def boottime_ns() -> int:
    """Return the time since the machine was booted."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def main() -> None:
    """Consume until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    consumer = JournalingConsumer(sys.argv[1], json.loads(sys.argv[2]))
    signal.sigwait([signal.SIGTERM])
    consumer.shut_down()


if __name__ == "__main__":
    main()
