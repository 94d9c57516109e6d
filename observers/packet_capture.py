"""TCP connections to one port, from a file that ``tcpdump -w`` wrote (pcap). Pure: the file is given open.

Each direction of a connection is put together in the order of its sequence numbers: what was sent again is taken once,
and what came out of order waits. Where bytes are missing the connection ends, with a note that says where and why.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator
from typing import BinaryIO, Literal

from msgspec import Struct

from observers.errors import ObserverError

MAX_PACKET = 1 << 20
"""Bytes of a packet in a file; tcpdump never writes longer ones, so a longer one is no packet."""

MAX_HELD = 1 << 22
"""Bytes of one direction that wait for others before them. Then these count as missing."""

MAGICS = {
    b"\xd4\xc3\xb2\xa1": ("<", 1e-6),
    b"\xa1\xb2\xc3\xd4": (">", 1e-6),
    b"\x4d\x3c\xb2\xa1": ("<", 1e-9),
    b"\xa1\xb2\x3c\x4d": (">", 1e-9),
}
"""Byte order and unit of the times, by how a file begins."""

PCAPNG = b"\x0a\x0d\x0d\x0a"

LINKS = {0: (4, None), 1: (14, 12), 12: (0, None), 14: (0, None), 101: (0, None), 108: (4, None), 113: (16, 14),
         228: (0, None), 229: (0, None), 276: (20, 0)}  # fmt: skip
"""Bytes before the IP packet, and the offset of its type, by tcpdump's number of the kind of link."""

VLANS, IP_TYPES = (0x8100, 0x88A8), (0x0800, 0x86DD)
TCP = 6
FIN, SYN, RST = 1, 2, 4

Side = Literal["client", "broker"]
_CLIENT: Side = "client"
_BROKER: Side = "broker"
Address = tuple[str, int]


class CaptureError(ObserverError):
    """A file is no capture, or is cut. The text names the file, the offset and the reason."""


class TcpSegment(Struct, frozen=True):
    """One TCP segment. ``offset``: of its packet in the file; ``time``: seconds since 1970; ``cut``: bytes of it that
    the capture has not."""

    offset: int
    time: float
    source: Address
    target: Address
    sequence: int
    flags: int
    data: bytes
    cut: int = 0

    @property
    def end(self) -> int:
        """The sequence number after its data."""
        return (self.sequence + bool(self.flags & SYN) + len(self.data) + self.cut) & 0xFFFFFFFF


class Bytes(Struct, frozen=True):
    """What one side of a connection sent, or with no ``data`` that the connection has ended.

    ``client``: its address, which is that of one connection until its end. ``note``: why it ended early.
    """

    client: Address
    side: Side
    time: float
    data: bytes
    note: str = ""


def read_segments(file: BinaryIO, name: str) -> Iterator[TcpSegment]:
    """Yield the TCP segments of a capture, in its order. Raises CaptureError."""
    head = file.read(24)
    if head[:4] == PCAPNG:
        raise CaptureError(f"{name}: offset 0: pcapng (allowed: pcap, as tcpdump -w writes it)")
    if len(head) < 24 or head[:4] not in MAGICS:
        raise CaptureError(f"{name}: offset 0: no capture (allowed: pcap, as tcpdump -w writes it)")
    order, unit = MAGICS[head[:4]]
    (link,) = struct.unpack_from(order + "I", head, 20)
    link &= 0xFFFF
    if link not in LINKS:
        raise CaptureError(f"{name}: offset 20: link type {link} (allowed: {', '.join(map(str, LINKS))})")
    offset = 24
    while packet_head := file.read(16):
        if len(packet_head) < 16:
            raise CaptureError(f"{name}: offset {offset}: the file ends within the head of a packet")
        seconds, parts, there, _ = struct.unpack(order + "IIII", packet_head)
        if there > MAX_PACKET:
            raise CaptureError(f"{name}: offset {offset}: a packet of {there} bytes (allowed: up to {MAX_PACKET})")
        packet = file.read(there)
        if len(packet) < there:
            raise CaptureError(f"{name}: offset {offset}: the file ends within a packet of {there} bytes")
        segment = _segment(packet, link, offset, seconds + parts * unit)
        if segment is not None:
            yield segment
        offset += 16 + there


def _segment(packet: bytes, link: int, offset: int, time: float) -> TcpSegment | None:
    """Return the TCP segment in a packet; None where there is none, or only a part of a fragmented one."""
    start, type_at = LINKS[link]
    try:
        if type_at is not None:
            (kind,) = struct.unpack_from(">H", packet, type_at)
            while kind in VLANS and link == 1:
                (kind,) = struct.unpack_from(">H", packet, start + 2)
                start += 4
            if kind not in IP_TYPES:
                return None
        version = packet[start] >> 4
        if version == 4:
            total, fragment, protocol = struct.unpack_from(">2xH2xHxB", packet, start)
            if fragment & 0x3FFF:
                return None
            addresses, at, size = packet[start + 12 : start + 20], start + (packet[start] & 15) * 4, 4
        elif version == 6:
            total, protocol = struct.unpack_from(">4xHB", packet, start)
            total += 40 if total else 0
            addresses, at, size = packet[start + 8 : start + 40], start + 40, 16
        else:
            return None
        if protocol != TCP:
            return None
        source_port, target_port, sequence, lengths, flags = struct.unpack_from(">HHI4xBB", packet, at)
        end = start + total if total else len(packet)  # 0: the network card was to cut it into segments
        data = packet[at + (lengths >> 4) * 4 : end]
        source, target = (str(ipaddress.ip_address(each)) for each in (addresses[:size], addresses[size:]))
    except (struct.error, IndexError, ValueError):
        return None  # cut before its ports: whatever is missing is seen as a gap
    cut = max(0, end - len(packet))
    return TcpSegment(offset, time, (source, source_port), (target, target_port), sequence, flags, data, cut)


class TcpStream:
    """Puts what one side sent in order."""

    def __init__(self, sequence: int) -> None:
        """``sequence``: number of the first byte."""
        self.start = self._next = sequence
        self._held: dict[int, bytes] = {}
        self.holds = 0

    def take(self, sequence: int, data: bytes) -> bytes:
        """Return what is in order now that ``data`` came."""
        ahead = _distance(self._next, sequence)
        if ahead > 0:
            before = self._held.get(sequence, b"")
            if len(data) > len(before):
                self._held[sequence] = data
                self.holds += len(data) - len(before)
            return b""
        found = bytearray(data[-ahead:])
        self._next = (self._next + len(found)) & 0xFFFFFFFF
        while (first := min(self._held, key=self._ahead, default=None)) is not None and self._ahead(first) <= 0:
            held = self._held.pop(first)
            self.holds -= len(held)
            fresh = held[-self._ahead(first) :] if self._ahead(first) else held
            found += fresh
            self._next = (self._next + len(fresh)) & 0xFFFFFFFF
        return bytes(found)

    def has_gap(self, end: int) -> bool:
        """Whether bytes before the sequence number ``end`` are missing, or others before those that came."""
        return self.holds > 0 or self._ahead(end) > 0

    def _ahead(self, sequence: int) -> int:
        return _distance(self._next, sequence)


class _Conversation(Struct):
    directions: dict[Side, TcpStream]
    time: float = 0.0
    over: bool = False
    ends: dict[Side, int] = {}
    """Of sides that have sent all they will: the sequence number after the last byte."""

    def began_with(self, syn: TcpSegment) -> bool:
        """Whether a SYN of the client is the one of this connection, sent again."""
        return self.directions[_CLIENT].start == (syn.sequence + 1) & 0xFFFFFFFF

    @property
    def has_ended(self) -> bool:
        """Whether both sides have sent all they will, and all of it is there."""
        return len(self.ends) == 2 and not self.sides_with_gaps

    @property
    def sides_with_gaps(self) -> list[Side]:
        """Those of whose bytes some are missing."""
        return [
            side
            for side, direction in self.directions.items()
            if direction.has_gap(self.ends.get(side, direction.start))
        ]


def conversations(segments: Iterator[TcpSegment], port: int) -> Iterator[Bytes]:
    """Yield what clients of ``port`` and its broker sent, in the order of the capture, and the end of each connection.

    Of a connection that had begun before the capture only that is reported, once.
    """
    open_ones: dict[Address, _Conversation] = {}
    for segment in segments:
        if segment.target[1] == port:
            client, side = segment.source, _CLIENT
        elif segment.source[1] == port:
            client, side = segment.target, _BROKER
        else:
            continue
        one = open_ones.get(client)
        if segment.flags & SYN and side == _CLIENT and (one is None or one.over or not one.began_with(segment)):
            if one is not None:
                yield from _end(client, one, "")
            one = open_ones[client] = _Conversation({})
        if one is None:
            open_ones[client] = _Conversation({}, over=True)
            yield Bytes(client, "client", segment.time, b"", f"offset {segment.offset}: it began before the capture")
            continue
        if one.over:
            continue
        one.time = segment.time
        if segment.flags & SYN:
            one.directions.setdefault(side, TcpStream((segment.sequence + 1) & 0xFFFFFFFF))
        direction = one.directions.get(side)
        if direction is None:
            yield from _end(client, one, f"offset {segment.offset}: the capture has no start of what the {side} sent")
            continue
        if segment.data:
            data = direction.take((segment.sequence + bool(segment.flags & SYN)) & 0xFFFFFFFF, segment.data)
            if data:
                yield Bytes(client, side, segment.time, data)
        if segment.cut:
            yield from _end(client, one, f"offset {segment.offset}: {segment.cut} bytes of a packet were not captured")
        elif direction.holds > MAX_HELD:
            yield from _end(client, one, f"offset {segment.offset}: bytes of the {side} are missing")
        if segment.flags & FIN:
            one.ends[side] = segment.end
        if segment.flags & RST or one.has_ended:
            yield from _end(client, one, "")
    for client, one in open_ones.items():
        yield from _end(client, one, "")


def _end(client: Address, one: _Conversation, note: str) -> Iterator[Bytes]:
    if not one.over:
        missing = one.sides_with_gaps
        one.over = True
        yield Bytes(
            client, "client", one.time, b"", note or (f"bytes of the {missing[0]} are missing" if missing else "")
        )


def _distance(start: int, sequence: int) -> int:
    """Return how far ``sequence`` is after ``start``; sequence numbers wrap at 32 bits."""
    return (sequence - start + (1 << 31)) % (1 << 32) - (1 << 31)
