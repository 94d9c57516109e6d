"""The responses that wait until the fetcher has done what was asked of it. Pure."""

from __future__ import annotations

from proxy.client.consumer.events import FetcherDone
from proxy.coordinator.wire import ConsumerResponse

UNKNOWN_SERVER_ERROR = -1
"""What is answered where the fetcher could not do it."""


class DelayedResponses:
    """By the number of the last command (``AssignPartitions``) that was given before."""

    def __init__(self) -> None:
        self._given = 0
        self._done = 0
        self._waiting: list[tuple[int, ConsumerResponse]] = []
        self._last: list[ConsumerResponse] = []

    def next_command(self) -> int:
        """Return the number of a new command."""
        self._given += 1
        return self._given

    def add(self, response: ConsumerResponse) -> list[ConsumerResponse]:
        """Return what can be sent now: the response, or nothing while a command is not done."""
        if self._done == self._given:
            return [response]
        self._waiting.append((self._given, response))
        return []

    def done(self, event: FetcherDone) -> list[ConsumerResponse]:
        """Return what can be sent now that a command is done."""
        self._done = event.command
        ready = [response for command, response in self._waiting if command <= event.command]
        self._waiting = self._waiting[len(ready) :]
        if event.error is None:
            return ready
        return [response._replace(error_code=UNKNOWN_SERVER_ERROR) for response in ready]

    def sent(self, response: ConsumerResponse) -> None:
        """The response is sent now."""
        self._last = [response]

    def repeated(self) -> list[ConsumerResponse]:
        """Return what to send again so that the coordinator pings at once: the last response on this connection."""
        return self._last

    @property
    def is_waiting(self) -> bool:
        """Whether the coordinator waits for one of them."""
        return bool(self._waiting)

    def forget(self) -> None:
        """The connection is gone."""
        self._waiting.clear()
        self._last = []
