"""Is a broker ready? Asked with one Metadata request, as a client would."""

from __future__ import annotations

import socket
import struct

METADATA_V1 = struct.pack(">hhih", 3, 1, 0, -1) + struct.pack(">i", 0)
"""Metadata v1, correlation id 0, no client id, no topics."""

TIMEOUT = 2.0
LARGEST = 1 << 20


def brokers(address: str) -> set[int]:
    """Return the ids of the brokers that the one at ``address`` (host:port) knows; empty while it does not answer."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), TIMEOUT) as sock:
            sock.sendall(struct.pack(">i", len(METADATA_V1)) + METADATA_V1)
            with sock.makefile("rb") as reader:
                (size,) = struct.unpack(">i", reader.read(4))
                body = reader.read(min(size, LARGEST))
        return parse_brokers(body)
    except (OSError, struct.error):
        return set()


def parse_brokers(body: bytes) -> set[int]:
    """Read the broker ids of a MetadataResponse v1. Raises struct.error where it is cut."""
    (count,) = struct.unpack_from(">i", body, 4)
    at, found = 8, set()
    for _ in range(count):
        node, host = struct.unpack_from(">ih", body, at)
        at += 6 + host
        _, rack = struct.unpack_from(">ih", body, at)
        at += 6 + max(0, rack)
        found.add(node)
    return found
