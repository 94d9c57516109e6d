import struct

import pytest

from proxy.local.ports import free_ports
from proxy.local.probe import brokers, parse_brokers


def broker(node: int, host: bytes, rack: bytes | None) -> bytes:
    packed = struct.pack(">ih", node, len(host)) + host + struct.pack(">i", 9092)
    return packed + (struct.pack(">h", -1) if rack is None else struct.pack(">h", len(rack)) + rack)


BODY = struct.pack(">ii", 0, 3) + broker(1, b"a", None) + broker(2, b"", b"rack") + broker(300, b"host", b"")


def test_broker_ids_are_read() -> None:
    assert parse_brokers(BODY + b"controller, topics") == {1, 2, 300}
    assert parse_brokers(struct.pack(">ii", 0, 0)) == set()


def test_every_cut_is_noticed() -> None:
    for size in range(len(BODY)):
        with pytest.raises(struct.error):
            parse_brokers(BODY[:size])


def test_nobody_there() -> None:
    (port,) = free_ports(1)
    assert brokers(f"127.0.0.1:{port}") == set()
