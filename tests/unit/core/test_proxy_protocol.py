import pytest

from proxy.core.proxy_protocol import MAX_SIZE, MAX_V1, SIGNATURE, Header, parse
from proxy.errors import PeerError
from tests.cases import each


def binary(command: int, family: int, rest: bytes) -> bytes:
    return SIGNATURE + bytes([command, family]) + len(rest).to_bytes(2, "big") + rest


PORTS = (51_234).to_bytes(2, "big") + (9092).to_bytes(2, "big")
INET = bytes([192, 0, 2, 7, 198, 51, 100, 1]) + PORTS
INET6 = bytes.fromhex("20010db8000000000000000000000007" + "20010db8000000000000000000000001") + PORTS
MAPPED = bytes.fromhex("00000000000000000000ffffc0000207" * 2) + PORTS
UNIX = b"/client".ljust(108, b"\0") + b"/server".ljust(108, b"\0")
CRC32C = bytes.fromhex("030004deadbeef")  # a checksum that is wrong, which nobody looks at
TLVS = bytes.fromhex("020003") + b"sni" + CRC32C + bytes.fromhex("040000")

LONGEST = b"PROXY TCP6 " + b" ".join([b"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"] * 2 + [b"65535"] * 2) + b"\r\n"

COMPLETE = {
    "v1 TCP4": (b"PROXY TCP4 192.0.2.7 198.51.100.1 51234 9092\r\n", ("192.0.2.7", 51_234)),
    "v1 TCP6": (b"PROXY TCP6 2001:DB8:0:0:0:0:0:7 2001:db8::1 51234 9092\r\n", ("2001:db8::7", 51_234)),
    "v1 TCP6, the longest": (LONGEST, ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 65_535)),
    "v1 TCP6, IPv4 inside": (b"PROXY TCP6 ::ffff:192.0.2.7 ::ffff:198.51.100.1 0 9092\r\n", ("192.0.2.7", 0)),
    "v1 UNKNOWN": (b"PROXY UNKNOWN\r\n", None),
    "v1 UNKNOWN, with more": (b"PROXY UNKNOWN " + b"x" * 91 + b"\r\n", None),
    "v2 INET": (binary(0x21, 0x11, INET), ("192.0.2.7", 51_234)),
    "v2 INET, TLVs": (binary(0x21, 0x11, INET + TLVS), ("192.0.2.7", 51_234)),
    "v2 INET6": (binary(0x21, 0x21, INET6), ("2001:db8::7", 51_234)),
    "v2 INET6, TLVs": (binary(0x21, 0x21, INET6 + TLVS), ("2001:db8::7", 51_234)),
    "v2 INET6, IPv4 inside": (binary(0x21, 0x21, MAPPED), ("192.0.2.7", 51_234)),
    "v2 INET, the longest": (binary(0x21, 0x11, INET.ljust(MAX_SIZE - 16, b"\0")), ("192.0.2.7", 51_234)),
    "v2 UNIX": (binary(0x21, 0x31, UNIX), None),
    "v2 INET, datagrams": (binary(0x21, 0x12, INET), None),
    "v2 unspecified": (binary(0x21, 0x00, b""), None),
    "v2 LOCAL": (binary(0x20, 0x00, b""), None),
    "v2 LOCAL, TLVs": (binary(0x20, 0x00, TLVS), None),
    "v2 LOCAL, any family and addresses": (binary(0x20, 0xFF, INET), None),
}

INVALID = {
    "a Kafka request": b"\x00\x00\x00\x20\x00\x12\x00\x03",
    "HTTP": b"GET / HTTP/1.1\r\n",
    "v1 in lower case": b"proxy TCP4 192.0.2.7 198.51.100.1 1 2\r\n",
    "v1 other protocol": b"PROXY TCP5",
    "v1 no protocol": b"PROXY \r\n",
    "v1 two spaces": b"PROXY  TCP4",
    "v1 two spaces later": b"PROXY TCP4 192.0.2.7  198.51.100.1 1 2\r\n",
    "v1 one port": b"PROXY TCP4 192.0.2.7 198.51.100.1 1\r\n",
    "v1 three ports": b"PROXY TCP4 192.0.2.7 198.51.100.1 1 2 3\r\n",
    "v1 port too large": b"PROXY TCP4 192.0.2.7 198.51.100.1 65536 2\r\n",
    "v1 port with a zero before": b"PROXY TCP4 192.0.2.7 198.51.100.1 1 02\r\n",
    "v1 port with a sign": b"PROXY TCP4 192.0.2.7 198.51.100.1 +1 2\r\n",
    "v1 no address": b"PROXY TCP4 localhost 198.51.100.1 1 2\r\n",
    "v1 address not ASCII": b"PROXY TCP4 \xff 198.51.100.1 1 2\r\n",
    "v1 IPv6 as TCP4": b"PROXY TCP4 ::1 ::1 1 2\r\n",
    "v1 IPv4 as TCP6": b"PROXY TCP6 192.0.2.7 198.51.100.1 1 2\r\n",
    "v1 IPv6 with a zone": b"PROXY TCP6 fe80::1%eth0 fe80::2 1 2\r\n",
    "v1 IPv4 with zeros before": b"PROXY TCP4 192.000.002.007 198.51.100.1 1 2\r\n",
    "v1 ends with a line feed alone": b"PROXY TCP4 192.0.2.7 198.51.100.1 1 2\n".ljust(MAX_V1, b"x"),
    "v1 too long": b"PROXY UNKNOWN " + b"x" * 92 + b"\r\n",
    "v2 version 1": binary(0x11, 0x11, INET),
    "v2 unassigned command": binary(0x22, 0x11, INET),
    "v2 unassigned family": binary(0x21, 0x41, INET),
    "v2 unassigned transport": binary(0x21, 0x13, INET),
    "v2 too short for INET": binary(0x21, 0x11, INET[:-1]),
    "v2 too short for INET6": binary(0x21, 0x21, INET6[:-1]),
    "v2 too long": binary(0x21, 0x11, INET.ljust(MAX_SIZE - 15, b"\0")),
    "v2 LOCAL too long": SIGNATURE + bytes([0x20, 0x00, 0xFF, 0xFF]),
}


FIRST_WRONG = {b"PROXZ": 4, b"PROXY TCP7 ": 9, b"PROXY UNKNOWS": 12, b"PROXY TCP4\r\n": 10}
FIRST_WRONG |= {binary(0x31, 0x11, INET): 12, binary(0x21, 0x51, INET): 13}


@pytest.mark.promise("limits.md", "PROXY headers of versions 1 and 2 tell the client's own address.")
@each(("data", "address"), COMPLETE.values())
def test_a_header_reports_its_size_and_the_client_s_address(data, address):
    assert parse(data) == Header(len(data), address)
    assert parse(data + b"\x00\x00\x00\x20 what follows\r\n") == Header(len(data), address)
    assert [parse(data[:size]) for size in range(len(data))] == [None] * len(data)


@pytest.mark.promise("security.md", "What is not a PROXY header is refused at the first byte that cannot be one.")
@each("data", [*INVALID.values(), *FIRST_WRONG])
def test_what_is_no_header_is_refused_for_good(data):
    with pytest.raises(PeerError) as caught:
        parse(data)
    assert (caught.value.side, caught.value.reason) == ("client", "invalid_proxy_header")
    assert caught.value.detail
    with pytest.raises(PeerError):
        parse(data + b"\r\n" * MAX_SIZE)
    at = FIRST_WRONG.get(data)
    if at is not None:
        assert parse(data[:at]) is None
        with pytest.raises(PeerError):
            parse(data[: at + 1])
