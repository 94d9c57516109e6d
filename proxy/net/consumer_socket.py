"""The socket of one consumer: whole frames in, bytes out, and one named cause of its end.

No transport stands between it and the kernel: what ``send`` has not buffered was taken by the kernel at that moment,
which is what the lease of a consumer is reckoned from.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from time import monotonic
from typing import Protocol

from proxy.core.causes import Cause

MAX_CONSUMER_FRAME = 4_194_304
"""Bytes of the longest frame of a consumer, without its size: an answer with the offsets of 32,767 partitions whose
topics have names of 115 characters. A longer one ends the connection."""

MIN_CONSUMER_FRAME = 4
"""Bytes of the shortest frame: a response has a correlation id."""

MAX_PARTIAL_FRAMES = 67_108_864
"""Bytes of all frames that have come in part. Beyond it, the connection with the longest of them ends."""

MAX_UNSENT = 4_194_304
"""Bytes for one consumer that the kernel does not take. Beyond it, the consumer does not read, and its connection
ends."""

READ_SIZE = 16_384
"""Bytes read at a time. An answer to a ping has 30 to 300."""

READS = 16
"""Reads of one connection, before others are served."""

FRAMES = 32
"""Frames of one connection that are reported, before others are served."""

TIMEOUT_ERRORS = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN}
"""Errors of a peer that confirms nothing any more."""


class ConsumerSocketOwner(Protocol):
    """What a socket reports. ``on_buffered`` and ``on_end`` may be called from within ``send``."""

    def may_send(self) -> bool:
        """Return whether what the kernel has not taken yet may still be sent."""

    def on_frame(self, frame: bytes) -> None:
        """Take a whole frame, without its size."""

    def on_end(self, cause: Cause, *, by_peer: bool) -> None:
        """The connection has ended; nothing is reported any more. ``by_peer``: by the peer's own kernel (FIN)."""

    def on_buffered(self) -> None:
        """The kernel has not taken all that was sent."""

    def on_drained(self) -> None:
        """The kernel has now taken all that was sent."""


class PartialFrames:
    """What all consumers have sent of frames that are not complete, or wait to be read."""

    def __init__(self, limit: int = MAX_PARTIAL_FRAMES) -> None:
        self._limit = limit
        self._sizes: dict[ConsumerSocket, int] = {}
        self.total = 0

    def set(self, sock: ConsumerSocket, size: int) -> None:
        """Set how many bytes ``sock`` holds. The sockets that hold most end while all hold too much."""
        self.total += size - self._sizes.get(sock, 0)
        if size:
            self._sizes[sock] = size
        else:
            self._sizes.pop(sock, None)
        while self.total > self._limit:
            max(self._sizes, key=self._sizes.__getitem__).end("consumer_malformed")


class ConsumerSocket:
    """One socket, which it owns. ``received`` and ``sent``: bytes. Belongs to the event loop's thread."""

    __slots__ = ("_failure", "_is_report_due", "_loop", "_owner", "_partial", "_partial_frames", "_paused",
                 "_received_by_side", "_sock", "_unsent", "is_closing", "last_byte_at", "received",
                 "sent")  # fmt: skip

    def __init__(
        self,
        sock: socket.socket,
        owner: ConsumerSocketOwner,
        partial_frames: PartialFrames,
        received_by_side: dict[str, int],
    ) -> None:
        """``received_by_side``: what ``received`` is added to. No frame is reported before ``resume``."""
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._owner = owner
        self._partial_frames = partial_frames
        self._received_by_side = received_by_side
        self._partial: bytearray | None = None
        self._unsent: bytearray | None = None
        self._paused = True
        self._is_report_due = False
        self._failure: Cause | None = None  # of a send; what the peer sent before is still read
        self.is_closing = False
        """Whether nothing is read or reported any more."""
        self.received = self.sent = 0
        self.last_byte_at = monotonic()
        """When the last byte arrived, in seconds of the monotonic clock; at first when it was made."""
        self._loop.add_reader(sock.fileno(), self._on_readable)

    @property
    def is_closed(self) -> bool:
        """Whether the descriptor is closed."""
        return self._sock.fileno() < 0

    @property
    def has_unsent(self) -> bool:
        """Whether there is something that the kernel has not taken."""
        return self._unsent is not None

    def take_read(self, data: bytes) -> None:
        """Take what the peer has sent first, and was read before. The connection may end by that."""
        if data:
            self._partial = bytearray(data)
            self._check_partial()

    def pause(self) -> None:
        """Report no frame until ``resume``. What comes meanwhile waits."""
        self._paused = True

    def resume(self) -> None:
        """Report the frames that wait, in a later iteration of the loop, and those to come."""
        self._paused = False
        if self._partial:
            self._report_later()

    def send(self, data: bytes) -> None:
        """Send ``data``. What the kernel does not take is kept; the connection ends where that is too much."""
        if self.is_closing:
            return
        self.sent += len(data)
        if self._unsent is not None:
            self._unsent += data
        else:
            try:
                taken = self._sock.send(data)
            except (BlockingIOError, InterruptedError):
                taken = 0
            except OSError as error:
                self._failure = _cause_of(error)
                self._loop.call_soon(self._on_readable)
                return
            if taken == len(data):
                return
            self._unsent = bytearray(data[taken:])
            self._loop.add_writer(self._sock.fileno(), self._on_writable)
            self._owner.on_buffered()
        if len(self._unsent) > MAX_UNSENT:
            self.end("consumer_failed")

    def set_user_timeout(self, milliseconds: int) -> None:
        """End the connection if the peer has not acknowledged a byte for so long: none is delivered later."""
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)

    def close(self) -> None:
        """Report nothing any more, and close the socket once all bytes are sent (or by ``abort``)."""
        if not self.is_closing:
            self._stop_reading()
            if self._unsent is None:
                self._sock.close()

    def abort(self) -> None:
        """Close the socket at once."""
        self._stop_reading()
        self._discard_unsent()
        self._sock.close()

    def end(self, cause: Cause, *, by_peer: bool = False) -> None:
        """Close the socket at once for ``cause``, and report it."""
        if not self.is_closing:
            self.abort()
            self._owner.on_end(cause, by_peer=by_peer)

    # ---- reading ------------------------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        """Read until there is no more: after an error uvloop calls this once more, and never again."""
        for _ in range(READS):
            if self.is_closing:
                return
            try:
                data = self._sock.recv(READ_SIZE)
            except (BlockingIOError, InterruptedError):
                if self._failure is not None:
                    self.end(self._failure)
                return
            except OSError as error:
                self.end(_cause_of(error))
                return
            if not data:  # also after a reset that a send has reported
                self.end(self._failure or "client_closed", by_peer=self._failure is None)
                return
            self._take(data)
        self._loop.call_soon(self._on_readable)

    def _take(self, data: bytes) -> None:
        self.received += len(data)
        self._received_by_side["client"] += len(data)
        self.last_byte_at = monotonic()
        if self._partial is None and not self._paused and int.from_bytes(data[:4], "big") == len(data) - 4 >= 4:
            self._owner.on_frame(data[4:])  # as nearly always
            return
        if self._partial is None:
            self._partial = bytearray()
        self._partial += data
        if self._paused or self._is_report_due:
            self._check_partial()
        else:
            self._report_frames()

    def _report_later(self) -> None:
        if not self._is_report_due:
            self._is_report_due = True
            self._loop.call_soon(self._report_frames)

    def _report_frames(self) -> None:
        """Report the whole frames in ``_partial``: as many as may be, or to the first one after which ``resume`` was
        called."""
        self._is_report_due = False
        partial, at, reported = self._partial, 0, 0
        if partial is None:
            return
        while not self._paused and not self.is_closing and not self._is_report_due and len(partial) - at >= 4:
            if reported == FRAMES:
                self._report_later()
                break
            size = int.from_bytes(partial[at : at + 4], "big", signed=True)
            if not MIN_CONSUMER_FRAME <= size <= MAX_CONSUMER_FRAME:
                self.end("consumer_malformed")
                return
            if len(partial) - at < size + 4:
                break
            frame = bytes(partial[at + 4 : at + 4 + size])
            at += size + 4
            reported += 1
            self._owner.on_frame(frame)
        if self.is_closing:
            return
        del partial[:at]
        self._check_partial()

    def _check_partial(self) -> None:
        partial = self._partial
        assert partial is not None
        if len(partial) > MAX_CONSUMER_FRAME + 4:
            self.end("consumer_malformed")
            return
        size = len(partial)
        if not size:
            self._partial = None
        self._partial_frames.set(self, size)

    def _stop_reading(self) -> None:
        if self.is_closing:
            return
        self.is_closing = True
        self._loop.remove_reader(self._sock.fileno())
        self._partial = None
        self._partial_frames.set(self, 0)

    # ---- writing ------------------------------------------------------------------------------------------------

    def _on_writable(self) -> None:
        unsent = self._unsent
        if unsent is None:
            return
        if not self.is_closing and not self._owner.may_send():
            self.end("consumer_failed")
            return
        try:
            taken = self._sock.send(unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._discard_unsent()
            self._failure = _cause_of(error)
            if self.is_closing:
                self._sock.close()
            else:
                self._on_readable()
            return
        del unsent[:taken]
        if unsent:
            return
        self._discard_unsent()
        if self.is_closing:
            self._sock.close()
        else:
            self._owner.on_drained()

    def _discard_unsent(self) -> None:
        if self._unsent is not None:
            self._unsent = None
            self._loop.remove_writer(self._sock.fileno())


def _cause_of(error: OSError) -> Cause:
    return "client_timeout" if error.errno in TIMEOUT_ERRORS else "client_reset"
