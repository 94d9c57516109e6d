# cython: language_level=3, annotation_typing=False
"""A response that passes through an interceptor's stream."""

from __future__ import annotations

from typing import Protocol

from proxy.core.counters import ListenerCounters
from proxy.core.interceptor import Stream


class Recording(Protocol):
    """Where failures and edited responses are counted."""

    counters: ListenerCounters

    def record_failure(self, error: Exception) -> None:
        """Record ``error``, which an interceptor raised."""


class StreamedResponse:
    """The body passes through an interceptor's stream. If the stream fails, the rest is forwarded as it came."""

    __slots__ = ("_api_key", "_header", "_held", "_recording", "_stream")

    holds_bytes = False

    def __init__(self, recording: Recording, api_key: int, header: int, stream: Stream) -> None:
        self._recording = recording
        self._api_key = api_key
        self._header = header  # bytes of it still to come
        self._stream: Stream | None = stream
        self._held = b""  # the last bytes of what the stream was given, as many as it still has

    def feed(self, piece: bytes, last: bool) -> bytes:  # noqa: D102
        header, body = piece[: self._header], piece[self._header :]
        self._header -= len(header)
        if self._stream is None or not body:
            return piece
        self._held += body
        try:
            out = self._stream.feed(body)
            if len(out) > len(self._held) or (last and len(out) < len(self._held)):
                raise ValueError(f"{len(out)} bytes in place of {len(self._held)}")
        except Exception as error:
            self._recording.record_failure(error)
            self._stream = None
            return header + self._held
        self._held = self._held[len(out) :]
        if last:
            self._recording.counters.edited[self._api_key] += 1
        return header + out
