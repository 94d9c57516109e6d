"""However a header is cut into chunks, it says the same and leaves what follows alone; anything else is a PeerError."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.proxy_protocol import LEADING, SIGNATURE, Header, parse
from proxy.errors import PeerError
from proxy.limits.model import canonical
from tests.property.strategies import cuts

Host = IPv4Address | IPv6Address

ports = st.integers(0, 65_535)
hosts = st.ip_addresses(v=4) | st.ip_addresses(v=6)


def text(source: Host, target: Host, source_port: int, target_port: int) -> bytes:
    return f"PROXY TCP{source.version} {source} {target} {source_port} {target_port}\r\n".encode()


def binary(source: Host, target: Host, source_port: int, target_port: int, more: bytes = b"") -> bytes:
    addresses = source.packed + target.packed + source_port.to_bytes(2, "big") + target_port.to_bytes(2, "big") + more
    return SIGNATURE + bytes([0x21, 0x11 if source.version == 4 else 0x21]) + len(addresses).to_bytes(2) + addresses


@st.composite
def headers(draw: st.DrawFn) -> tuple[bytes, tuple[str, int]]:
    """A header, and the client it names."""
    source = draw(hosts)
    target = draw(st.ip_addresses(v=source.version))
    source_port, target_port = draw(ports), draw(ports)
    more = draw(st.none() | st.binary(max_size=300))
    rest = (source, target, source_port, target_port)
    return text(*rest) if more is None else binary(*rest, more), (canonical(str(source)), source_port)


@given(headers(), st.binary(max_size=200), st.data())
def test_cut_anywhere_it_says_the_same_and_what_follows_stays(
    header: tuple[bytes, tuple[str, int]], payload: bytes, data: st.DataObject
) -> None:
    sent, address = header
    kept = b""
    found = None
    for chunk in data.draw(cuts(sent + payload)):
        if found is None:
            found = parse(kept + chunk)
        kept += chunk
    assert found == Header(len(sent), address)
    assert kept[found.size :] == payload


@given(
    st.binary(max_size=300)
    | st.binary(max_size=300).map(SIGNATURE.__add__)
    | st.binary(max_size=300).map((SIGNATURE + b"\x21").__add__)
    | st.text("TCP46UNKOW 0123456789abcdef:.%\r\n", max_size=120).map(lambda line: LEADING + line.encode())
)
def test_any_bytes_are_a_header_or_may_become_one_or_are_refused_for_good(data: bytes) -> None:
    refused = set()
    for size in range(len(data) + 1):
        try:
            found = parse(data[:size])
        except PeerError as error:
            refused.add((error.side, error.reason))
            continue
        assert not refused
        assert found is None or found.size <= size
    assert refused <= {("client", "invalid_proxy_header")}
