"""The interface between the outbox and what delivers its records: the Kafka producer, the OTLP exporter."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Protocol

FIRST_RETRY_DELAY, LAST_RETRY_DELAY = 0.25, 5.0
"""Seconds between attempts to reach the destination: doubled from the first to the last, for ever."""


class DeliveryCallback(Protocol):
    """What the outbox does once a record is delivered or has failed."""

    def __call__(
        self, load: Any, reason: str | None, retriable: bool, too_large: bytes | None, lost: int | None = None, /
    ) -> None:
        """Account for the record that was sent with ``load``.

        ``reason``: why its delivery failed; None if it did not. ``retriable``: whether it may be sent again.
        ``too_large``: the value of the record if it would be accepted in smaller parts. ``lost``: how many of its
        events were refused, where the destination took the others; None where all were.
        """


class RecordSender(Protocol):
    """Sends encoded records (``Envelope``), and reports what became of each of them.

    ``send`` may be called by any thread, ``poll`` by one at a time, ``close`` once. None of them blocks on the network
    for longer than its ``timeout``. The callback runs on the thread that calls ``send``, ``poll`` or ``close``.
    """

    @property
    def ready(self) -> threading.Event:
        """Set once records may be sent."""

    @property
    def cluster_id(self) -> str:
        """Id of the Kafka cluster; empty as long as it is not known."""

    @property
    def problems(self) -> Mapping[str, str]:
        """What is wrong with the destination: texts by a short name."""

    @property
    def queued(self) -> int:
        """Records that wait for their delivery."""

    @property
    def queued_bytes(self) -> int:
        """Their bytes."""

    @property
    def max_bytes(self) -> int:
        """Bytes that may wait for their delivery."""

    @property
    def max_record_bytes(self) -> int:
        """Bytes of the largest record."""

    @property
    def records_delivered(self) -> int:
        """Records that the destination acknowledged."""

    @property
    def bytes_delivered(self) -> int:
        """Their bytes, before compression."""

    def start(self) -> None:
        """Start the threads."""

    def send(self, value: bytes, load: object) -> bool:
        """Queue one record. Never waits, never raises. Return False if there is no room; then nothing is reported."""

    def poll(self, timeout: float) -> None:
        """Report what became of records, and wait up to ``timeout`` seconds for the first."""

    def close(self, timeout: float) -> None:
        """Deliver queued records within ``timeout`` seconds. Those left then are reported as ``closed``."""
