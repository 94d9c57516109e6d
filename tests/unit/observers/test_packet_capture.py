"""Packets of every kind of link, connections put together from them, and what ``observers try`` counts."""

import io
import re
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from observers.packet_capture import Bytes, CaptureError, TcpSegment, conversations, read_segments
from proxy.commands.observers import _configured, _Replay
from proxy.core.observation_interest import WANT_EXCHANGE
from tests.frames import METADATA, request
from tests.tools.observation_sinks import watching

CLIENT, BROKER = ("10.0.0.7", 40_000), ("10.0.0.1", 9092)
SYN, FIN, RST, ACK = 2, 1, 4, 16

TCP = struct.pack(">HHIIBBHHH", 40_000, 9092, 7, 0, 8 << 4, ACK, 65535, 0, 0) + bytes(12) + b"data"
IPV4 = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(TCP), 0, 0x4000, 64, 6, 0, b"\x0a\0\0\7", b"\x0a\0\0\1") + TCP
UNREPORTED = IPV4[:2] + b"\0\0" + IPV4[4:]
IPV6 = struct.pack(">IHBB16s16s", 6 << 28, len(TCP), 6, 64, bytes(15) + b"\7", bytes(15) + b"\1") + TCP
MAC = bytes(12)


def capture(link: int, *packets: bytes, order: str = "<", magic: int = 0xA1B2C3D4) -> io.BytesIO:
    head = struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 65535, link)
    return io.BytesIO(head + b"".join(struct.pack(order + "IIII", 3, 500, len(one), len(one)) + one for one in packets))


@pytest.mark.promise("observers.md", "observers try reads captures of Ethernet, loopback, raw IP and any.")
def test_packets_of_every_link_are_read_and_what_is_no_capture_is_refused() -> None:
    for link, packet in (
        (1, MAC + b"\x08\0" + IPV4),
        (1, MAC + b"\x08\0" + IPV4 + bytes(6)),  # padding
        (1, MAC + b"\x08\0" + UNREPORTED),
        (1, MAC + b"\x81\0\0\5\x08\0" + IPV4),
        (1, MAC + b"\x88\xa8\0\5\x81\0\0\6\x08\0" + IPV4),
        (1, MAC + b"\x86\xdd" + IPV6),
        (0, b"\2\0\0\0" + IPV4),
        (101, IPV4),
        (101, IPV6),
        (113, bytes(14) + b"\x08\0" + IPV4),
        (276, b"\x08\0" + bytes(18) + IPV4),
    ):
        (one,) = read_segments(capture(link, packet), "x")
        found = (one.offset, one.time, one.source[1], one.target[1], one.sequence, one.flags, one.data, one.cut)
        assert found == (24, pytest.approx(3.0005), 40_000, 9092, 7, ACK, b"data", 0), (link, packet)
        assert (one.source[0], one.target[0]) in {("10.0.0.7", "10.0.0.1"), ("::7", "::1")}
    (big,) = read_segments(capture(101, IPV4, order=">"), "x")
    (nano,) = read_segments(capture(101, IPV4, magic=0xA1B23C4D), "x")
    assert (big.time, nano.time) == (pytest.approx(3.0005), pytest.approx(3.0000005))
    head = b"\xd4\xc3\xb2\xa1" + bytes(16)
    for content, says in (
        (b"", "offset 0: no capture (allowed: pcap, as tcpdump -w writes it)"),
        (b"\x0a\x0d\x0d\x0a" + bytes(40), "offset 0: pcapng (allowed: pcap, as tcpdump -w writes it)"),
        (head + b"\x93\0\0\0", "offset 20: link type 147 (allowed: "),
        (head + b"\1\0\0\0" + bytes(9), "offset 24: the file ends within the head of a"),
        (head + b"\1\0\0\0" + bytes(8) + b"\7\0\0\0\7\0\0\0ab", "offset 24: the file ends with"),
        (head + b"\1\0\0\0" + bytes(8) + b"\7\0\0\x7f\7\0\0\0ab", "offset 24: a packet of "),
    ):
        with pytest.raises(CaptureError, match=re.escape(says)):
            list(read_segments(io.BytesIO(content), "x"))


def segment(side: str, sequence: int, data: bytes = b"", flags: int = ACK, cut: int = 0) -> TcpSegment:
    ends = (CLIENT, BROKER) if side == "client" else (BROKER, CLIENT)
    return TcpSegment(24, 1.0, *ends, sequence % (1 << 32), flags, data, cut)


def opened(start: int) -> list[TcpSegment]:
    return [segment("client", start - 1, flags=SYN), segment("broker", 99, flags=SYN | ACK)]


def collected(*segments: TcpSegment) -> list[tuple[str, bytes, str]]:
    """Side, bytes and note; what one side sent without a break is one."""
    found: list[tuple[str, bytes, str]] = []

    def given() -> Iterator[TcpSegment]:
        yield from segments

    for one in conversations(given(), 9092):
        if found and one.data and found[-1][0] == one.side and found[-1][1]:
            found[-1] = (one.side, found[-1][1] + one.data, "")
        else:
            found.append((one.side, one.data, one.note))
    return found


END = ("client", b"", "")


def test_any_order_with_any_repetition_is_the_same() -> None:
    for start in (1, 1000, (1 << 32) - 700, 1 << 32):
        random = Random(start)
        data = random.randbytes(2000)
        for _ in range(20):
            cuts = sorted({0, 2000, *random.sample(range(2000), 12)})
            parts = [segment("client", start + a, data[a:b]) for a, b in pairwise(cuts)]
            overlaps = [segment("client", start + a, data[a : a + 300]) for a in random.sample(range(1700), 5)]
            sent = [*parts, *overlaps, parts[0], segment("client", start - 1, flags=SYN)]
            random.shuffle(sent)
            assert collected(*opened(start), *sent) == [("client", data, ""), END], start


A, B, C = (("10.0.0.7", port) for port in (1, 2, 3))


def replayed(*parts: Bytes) -> _Replay:
    config, listener = _configured(None, "x:Y", None)
    replay = _Replay(Path("x.pcap"), config, listener, watching([].append, [].append, wanted=WANT_EXCHANGE))
    for part in parts:
        replay.take(part)
    return replay


def sent(client: tuple[str, int], data: bytes, note: str = "") -> Bytes:
    return Bytes(client, "client", 1.0, data, note)


@pytest.mark.promise(
    "observers.md", "`observers try` says how many connections of a capture could not be read to their end."
)
def test_connections_that_were_not_read_count_among_all() -> None:
    replay = replayed(
        sent(A, request(METADATA, 1, 1)),
        sent(B, b"", "it began before the capture"),
        sent(C, request(METADATA, 1, 1)),
        sent(C, b"", "bytes of the client are missing"),
        sent(A, b""),
    )
    assert (replay.connections, replay.unread) == (3, 2)
