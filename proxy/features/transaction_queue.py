"""The records that the feature controller writes: one transaction at a time, repeated until it is read back."""

from __future__ import annotations

from proxy.features.controller_states import WriteTransaction

READ_BACK_MS = 30_000
"""Milliseconds that a committed record may take until it is read back."""

RETRY_AFTER_MS = (1_000, 2_000, 4_000, 8_000, 10_000)
"""Milliseconds until a failed write is repeated, by the number of failures; the last one for all further."""


class TransactionQueue:
    """All records that are put while a transaction is under way go into the next one; of a key the last value counts.

    Times are in milliseconds, monotonic.
    """

    def __init__(self) -> None:
        self._queue: dict[bytes, bytes | None] = {}
        self._writing: WriteTransaction | None = None
        self._unread: dict[bytes, bytes | None] = {}
        self._committed_at: int | None = None
        self._failures = 0
        self._retry_at: int | None = None

    def put(self, key: bytes, value: bytes | None) -> None:
        """Queue a record."""
        self._queue[key] = self._unread[key] = value

    def is_unread(self, key: bytes) -> bool:
        """Return whether a record of this key was queued that is not read back yet."""
        return key in self._unread

    def has_unread(self) -> bool:
        """Return whether any record was queued that is not read back yet."""
        return bool(self._unread)

    def read(self, key: bytes, value: bytes | None) -> bool:
        """Report a record that was read from the topic; return whether it is one that was waited for."""
        if key not in self._unread or self._unread[key] != value:
            return False
        del self._unread[key]
        return True

    def start(self, number: int, now: int) -> WriteTransaction | None:
        """Return the next transaction, as ``number``; None while there is none, or while it has to wait."""
        if self._writing is not None or not self._queue or (self._retry_at is not None and now < self._retry_at):
            return None
        self._writing, self._queue = WriteTransaction(number, self._queue), {}
        return self._writing

    def written(self, number: int, now: int) -> None:
        """Report a transaction as committed."""
        if self._writing is not None and self._writing.number == number:
            self._writing = self._retry_at = None
            self._failures = 0
            self._committed_at = now

    def failed(self, number: int, now: int) -> None:
        """Report a failed transaction; it is repeated, except what was read back: that is committed after all."""
        if self._writing is not None and self._writing.number == number:
            self._queue = {key: self._unread[key] for key in self._writing.records if key in self._unread} | self._queue
            self._writing = None
            self._retry_at = now + RETRY_AFTER_MS[min(self._failures, len(RETRY_AFTER_MS) - 1)]
            self._failures += 1

    def is_stuck(self, now: int) -> bool:
        """Return whether the last transaction is committed, but was not read back in time."""
        is_idle = self._writing is None and not self._queue and self._committed_at is not None
        return bool(self._unread) and is_idle and now - (self._committed_at or 0) >= READ_BACK_MS
