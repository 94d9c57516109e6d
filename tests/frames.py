"""Small frames by hand, for tests that are about framing and order rather than about bodies."""

import struct

METADATA, API_VERSIONS, SASL_HANDSHAKE = 3, 18, 17


def request(key: int, version: int, correlation_id: int, body: bytes = b"", client_id: str | None = "c") -> bytes:
    """A request with header v1; ``body`` starts with the header's tagged fields where the version is flexible."""
    name = client_id.encode() if client_id is not None else b""
    length = len(name) if client_id is not None else -1
    return sized(struct.pack(">hhih", key, version, correlation_id, length) + name + body)


def response(correlation_id: int, body: bytes = b"") -> bytes:
    return sized(struct.pack(">i", correlation_id) + body)


def sized(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def batch(records: int, payload: bytes = b"", producer_id: int = -1, epoch: int = -1, sequence: int = -1) -> bytes:
    """A magic 2 batch whose header says ``records``; ``payload`` stands for the records."""
    tail = struct.pack(">hiqqqhii", 0, records - 1, 0, 0, producer_id, epoch, sequence, records) + payload
    return struct.pack(">qiibI", 0, 4 + 1 + 4 + len(tail), 0, 2, 0) + tail


def produce(correlation_id: int, acks: int, records: bytes, version: int = 7, topic: str = "t") -> bytes:
    """A ProduceRequest of one partition in the layout of versions 3 to 8."""
    name = topic.encode()
    body = struct.pack(">hhi", -1, acks, 1000) + struct.pack(">ih", 1, len(name)) + name
    body += struct.pack(">iii", 1, 0, len(records)) + records
    return request(0, version, correlation_id, body)


def produced(correlation_id: int, error_code: int = 0, offset: int = 0, topic: str = "t") -> bytes:
    """A ProduceResponse of one partition in the layout of versions 5 to 7."""
    name = topic.encode()
    body = struct.pack(">ih", 1, len(name)) + name + struct.pack(">iihqqq", 1, 0, error_code, offset, -1, 0)
    return response(correlation_id, body + struct.pack(">i", 0))
