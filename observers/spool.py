"""Blocks of events on disk: a log of segment files. Blocks are appended at its end, and read and deleted in order.

A frame of a segment is a head and the events of a block; all blocks of a segment have one schema level. A checksum
finds frames that a kill or a power failure cut off; reading then continues with the next segment. A segment is deleted
once it was read and all its blocks are settled: on the topic, or lost and counted. Only ``sync`` waits for the disk.
"""

from __future__ import annotations

import errno
import os
import threading
import zlib
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from struct import Struct as Layout
from typing import NamedTuple

from msgspec import Struct

SEGMENT_BYTES = 8 * 1024 * 1024
"""Bytes after which a new segment is begun. A living spool may hold as many bytes of settled blocks."""

SEGMENT_SUFFIX = ".events"

_FRAME_HEAD = Layout("<4sIIHHqq")
"""Magic, checksum of the rest and of the payload, the payload's bytes, schema level, flags, first and last number."""

_CHECKSUMMED_FROM = 8
_FRAME_MAGIC = b"BSE1"
_FLAG_COMPRESSED = 1


class Segment:
    """One file. ``size``: bytes of its whole frames, or of the file if another process wrote it."""

    __slots__ = ("descriptor", "first", "last", "level", "number", "out", "path", "sealed", "size", "unread")

    def __init__(self, folder: Path, number: int, size: int = 0) -> None:
        self.number = number
        self.path = folder / f"{number:08}{SEGMENT_SUFFIX}"
        self.size = size
        self.descriptor = -1
        """Descriptor to write by. It stays open until the file is synced."""
        self.sealed = True
        self.out = 0
        """Blocks that were handed out and are not settled."""
        self.level = 0
        """The schema level of its blocks, once it is known."""
        self.unread = 0
        """Events that this process appended or counted, and did not hand out yet."""
        self.first = self.last = 0
        """The first and the last number that this process appended."""

    def close(self) -> None:
        """Close the file."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class StoredBlock(Struct, gc=False):
    """A block that was handed out: the events ``first`` to ``last``, and their place on disk."""

    first: int
    last: int
    level: int
    stored_at: float
    segment: Segment
    offset: int
    unsettled: int = 0
    """Events that are not settled yet."""

    def __len__(self) -> int:
        return self.last - self.first + 1


class TornRange(NamedTuple):
    """A part of a segment that cannot be read. ``first`` to ``last``: the numbers that are missing there; ``events``:
    how many events this process had written to it, and ``level``: their schema level."""

    first: int
    last: int
    events: int
    level: int


class SpoolFrame(NamedTuple):
    """A block as it is in a segment: the events ``first`` to ``last``. ``size``: bytes on disk, with the head."""

    first: int
    last: int
    level: int
    size: int
    json: bytes


class Spool:
    """The log of one folder. Thread-safe. Methods that write raise OSError, and the spool stays usable."""

    def __init__(self, folder: Path, *, after: int = 0, segment: int = SEGMENT_BYTES) -> None:
        """Read the blocks in ``folder`` with numbers above ``after``, and append new blocks behind them."""
        self.bytes = 0
        """Bytes on disk."""
        self.read_to = after
        """The last number handed out."""
        self.torn: list[TornRange] = []
        """Ranges that could not be read. The caller counts and clears them."""
        self.is_abandoned = False
        """Whether ``abandon`` was called."""
        self.unsettled: Mapping[int, int] = {}
        """Events that are not settled, by schema level. Replaced as a whole, so that reading it waits for nothing. What
        was in the folder before is not among them until ``count_found``."""
        self._folder = folder
        self._after = after
        self._max_segment_bytes = segment
        self._lock = threading.Lock()
        self._segments: deque[Segment] = deque()
        for path in sorted(path for path in folder.glob(f"*{SEGMENT_SUFFIX}") if path.stem.isdecimal()):
            found = Segment(folder, int(path.stem), path.stat().st_size)
            self._segments.append(found)
            self.bytes += found.size
        self._next_segment = self._segments[-1].number + 1 if self._segments else 1
        self._read_segment = 0
        self._read_offset = 0
        """Reading continues at this offset of the segment ``_read_segment``, or with the next segment."""
        self._read_descriptor = -1
        self._torn_after: int | None = None
        self._handed_out_blocks = 0
        self._unsynced = False
        self._folder_changed = False

    def count_found(self) -> Mapping[int, int]:
        """Count the events that were in the folder before, and return ``unsettled``. Call it before any other method.

        Reads the heads of all frames. What cannot be read is not counted.
        """
        with self._lock:
            for segment in self._segments:
                segment.level, segment.unread = _count_events(segment.path, self._after)
                self._count_unsettled(segment.level, segment.unread)
        return self.unsettled

    @property
    def caught_up(self) -> bool:
        """Whether all blocks were handed out. Once true, it stays true until the next ``append``."""
        with self._lock:
            return self._seek_unread() is None

    @property
    def done(self) -> bool:
        """Whether all blocks were handed out and are settled."""
        with self._lock:
            return self._handed_out_blocks == 0 and self._seek_unread() is None

    @property
    def unsynced(self) -> bool:
        """Whether blocks were appended since the last ``sync``."""
        return self._unsynced

    def append(self, first: int, last: int, level: int, json: bytes, now: float, *, direct: bool) -> StoredBlock | None:
        """Write a block behind the others. ``direct``, which needs ``caught_up``: hand it out at once, and return it.

        A block that is not handed out at once is compressed, since it will stay on disk.
        """
        payload = json if direct else zlib.compress(json, 1)
        head = _encode_head(first, last, level, payload, 0 if direct else _FLAG_COMPRESSED)
        size = len(head) + len(payload)
        with self._lock:
            segment = self._open_segment(level)
            try:
                if os.writev(segment.descriptor, (head, payload)) < size:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(segment.path))
            except OSError:
                segment.sealed = True
                with suppress(OSError):
                    os.ftruncate(segment.descriptor, segment.size)
                raise
            stored = StoredBlock(first, last, level, now, segment, segment.size)
            segment.size += size
            segment.first, segment.last = segment.first or first, last
            self.bytes += size
            self._unsynced = True
            self._count_unsettled(level, len(stored))
            if not direct:
                segment.unread += len(stored)
                return None
            self._seek(segment.number, segment.size)
            return self._hand_out(stored)

    def read_next(self) -> tuple[StoredBlock, bytes] | None:
        """Hand out the next block and its events. Return None if all were handed out."""
        with self._lock:
            while (segment := self._seek_unread()) is not None:
                at = self._read_offset
                found = self._read_frame(segment, at)
                if found is None:
                    self._skip_torn(segment)
                    continue
                self._read_offset += found.size
                if found.last <= self._after:
                    continue
                if self._torn_after is not None:
                    self.torn.append(TornRange(self._torn_after + 1, found.first - 1, 0, found.level))
                    self._torn_after = None
                stored = StoredBlock(found.first, found.last, found.level, 0.0, segment, at)
                segment.unread -= len(stored)
                return self._hand_out(stored), found.json
            return None

    def read_again(self, stored: StoredBlock) -> bytes | None:
        """Return the events of a block that was handed out before, or None if they cannot be read."""
        if self.is_abandoned:
            return None
        try:
            descriptor = os.open(stored.segment.path, os.O_RDONLY)
        except OSError:
            return None
        try:
            found = _parse_frame(descriptor, stored.offset)
        finally:
            os.close(descriptor)
        return None if found is None else found.json

    def settle_block(self, stored: StoredBlock, events: int) -> bool:
        """Settle ``events`` events of a block. Return whether the whole block is settled now."""
        with self._lock:
            stored.unsettled -= events
            self._count_unsettled(stored.level, -events)
            if stored.unsettled:
                return False
            stored.segment.out -= 1
            self._handed_out_blocks -= 1
            return True

    def peek_first(self) -> int | None:
        """Return the first number that was not handed out, or None if there is none or it cannot be read."""
        with self._lock:
            segment = self._seek_unread()
            if segment is None or (descriptor := self._reading_descriptor(segment)) < 0:
                return None
            return _first_number(descriptor, self._read_offset)

    def delete_settled_segments(self) -> None:
        """Delete read and settled segments, in order, so that the last number stays on disk."""
        with self._lock:
            while self._segments:
                segment = self._segments[0]
                read = segment.number < self._read_segment or (
                    segment.number == self._read_segment and self._read_offset >= segment.size
                )
                if segment.out or not segment.sealed or not read:
                    return
                self._segments.popleft()
                self.bytes -= segment.size
                segment.close()
                segment.path.unlink(missing_ok=True)

    def sync(self) -> None:
        """Wait until all blocks that were appended before are on the disk."""
        with self._lock:
            self._unsynced = False
            names, self._folder_changed = self._folder_changed, False
            waiting = [(one, os.dup(one.descriptor)) for one in self._segments if one.descriptor >= 0]
        try:
            for segment, descriptor in waiting:
                os.fdatasync(descriptor)
                if segment.sealed:
                    with self._lock:
                        segment.close()
        finally:
            for _, descriptor in waiting:
                os.close(descriptor)
        if names:
            _sync_folder(self._folder)

    def abandon(self) -> None:
        """Stop reading, since the folder is gone. Blocks that were not handed out are torn."""
        with self._lock:
            self.is_abandoned = True
            while (segment := self._seek_unread()) is not None:
                self._skip_torn(segment)

    def close(self) -> None:
        """Close the files, which stay on disk."""
        with self._lock:
            self._stop_reading()
            for segment in self._segments:
                segment.close()

    def _open_segment(self, level: int) -> Segment:
        """Return the segment that the next block of this level is appended to."""
        last = self._segments[-1] if self._segments else None
        if last is not None and not last.sealed and last.size < self._max_segment_bytes and last.level == level:
            return last
        made = Segment(self._folder, self._next_segment)
        made.level = level
        made.descriptor = os.open(made.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        made.sealed = False
        if last is not None:
            last.sealed = True
        self._next_segment += 1
        self._folder_changed = True
        self._segments.append(made)
        return made

    def _hand_out(self, stored: StoredBlock) -> StoredBlock:
        stored.segment.out += 1
        stored.unsettled = len(stored)
        self._handed_out_blocks += 1
        self.read_to = stored.last
        return stored

    def _seek_unread(self) -> Segment | None:
        """Seek to the next frame that was not handed out, and return its segment, or None."""
        for segment in list(self._segments):
            if segment.number > self._read_segment:
                self._seek(segment.number, 0)
            if segment.number == self._read_segment and self._read_offset < segment.size:
                return segment
        return None

    def _seek(self, number: int, at: int) -> None:
        if number != self._read_segment:
            self._stop_reading()
        self._read_segment, self._read_offset = number, at

    def _read_frame(self, segment: Segment, at: int) -> SpoolFrame | None:
        descriptor = self._reading_descriptor(segment)
        return None if descriptor < 0 else _parse_frame(descriptor, at)

    def _reading_descriptor(self, segment: Segment) -> int:
        """Return a descriptor to read ``segment`` by, or −1 if the file was deleted."""
        if self._read_descriptor < 0:
            try:
                self._read_descriptor = os.open(segment.path, os.O_RDONLY)
            except FileNotFoundError:
                return -1
        return self._read_descriptor

    def _skip_torn(self, segment: Segment) -> None:
        """Skip the rest of ``segment``, and record it as torn."""
        self._read_offset = segment.size
        unread, segment.unread = segment.unread, 0
        self._count_unsettled(segment.level, -unread)
        if segment.last:
            self.torn.append(TornRange(max(self.read_to + 1, segment.first), segment.last, unread, segment.level))
            self.read_to = segment.last
        elif self._torn_after is None:
            self._torn_after = self.read_to

    def _count_unsettled(self, level: int, more: int) -> None:
        if more:
            self.unsettled = {**self.unsettled, level: self.unsettled.get(level, 0) + more}

    def _stop_reading(self) -> None:
        descriptor, self._read_descriptor = self._read_descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _encode_head(first: int, last: int, level: int, payload: bytes, flags: int) -> bytes:
    checked = _FRAME_HEAD.pack(_FRAME_MAGIC, 0, len(payload), level, flags, first, last)[_CHECKSUMMED_FROM:]
    return _FRAME_MAGIC + zlib.crc32(payload, zlib.crc32(checked)).to_bytes(4, "little") + checked


def _parse_frame(descriptor: int, at: int) -> SpoolFrame | None:
    """Read the frame at offset ``at``. Return None if there is no whole frame."""
    try:
        head = os.pread(descriptor, _FRAME_HEAD.size, at)
        if len(head) < _FRAME_HEAD.size or not head.startswith(_FRAME_MAGIC):
            return None
        _, check, length, level, flags, first, last = _FRAME_HEAD.unpack(head)
        if length > os.fstat(descriptor).st_size - at - _FRAME_HEAD.size:
            return None
        payload = os.pread(descriptor, length, at + _FRAME_HEAD.size)
        if zlib.crc32(payload, zlib.crc32(head[_CHECKSUMMED_FROM:])) != check:
            return None
        json = zlib.decompress(payload) if flags & _FLAG_COMPRESSED else payload
        return SpoolFrame(first, last, level, _FRAME_HEAD.size + length, json)
    except (OSError, zlib.error):
        return None


def _count_events(path: Path, after: int) -> tuple[int, int]:
    """Return the schema level of a segment, and how many of its events have numbers above ``after``."""
    segment_level = events = at = 0
    with suppress(OSError), path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        while len(head := os.pread(file.fileno(), _FRAME_HEAD.size, at)) == _FRAME_HEAD.size:
            magic, _, length, level, _, first, last = _FRAME_HEAD.unpack(head)
            at += _FRAME_HEAD.size + length
            if magic != _FRAME_MAGIC or at > size:
                break
            segment_level = level
            if last > after:
                events += last - first + 1
    return segment_level, events


def _first_number(descriptor: int, at: int) -> int | None:
    """Return the first number of the frame at ``at``."""
    head = os.pread(descriptor, _FRAME_HEAD.size, at)
    return _FRAME_HEAD.unpack(head)[-2] if len(head) == _FRAME_HEAD.size else None


def _sync_folder(folder: Path) -> None:
    """Wait until the file names in ``folder`` are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
