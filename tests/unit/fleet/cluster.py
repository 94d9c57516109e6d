"""A cluster made of bytes: it answers what the watch asks, as a broker would that has what a test put there."""

import asyncio
import struct
from collections.abc import Callable
from typing import Any

from proxy.core.encode import encode
from proxy.core.schema import layout
from proxy.core.struct import view
from proxy.fleet.connection import BrokerUnreachable
from proxy.rpc import messages
from proxy.rpc.messages import RpcRequest


class Cluster:
    """``stored``: rates by the name they were stored under, None for the default one."""

    def __init__(self) -> None:
        self.away_reason: str | None = None
        self.stored: dict[str | None, float] = {}
        self.configs: dict[str, str] = {}
        self.refused: dict[int, int] = {}  # error codes by api key
        self.brokers: dict[int, str] = {1: "127.0.0.1:11", 2: "127.0.0.1:12", 3: "127.0.0.1:13"}
        self.supported: dict[int, tuple[int, int]] = {0: (0, 9)}
        self.topic_ids: dict[str, bytes] = {}
        self.down = False
        self.asked: list[int] = []
        self.topics_asked: list[list[str]] = []

    async def call(self, request: RpcRequest) -> bytes:
        self.asked.append(request.key)
        if self.down:
            raise BrokerUnreachable("127.0.0.1:1: Connection refused")
        code = self.refused.get(request.key, 0)
        if request.key == messages.DESCRIBE_CLIENT_QUOTAS:
            return self._quotas(code)
        if request.key == messages.ALTER_CLIENT_QUOTAS:
            return self._altered(request.body, code)
        if request.key == messages.METADATA and request.version == messages.TOPIC_IDS_SINCE:
            return self._topics(request.body)
        if request.key == messages.METADATA:
            parts = [self._broker(node, address) for node, address in self.brokers.items()]
            return struct.pack(">i", len(parts)) + b"".join(parts) + text("cluster-1") + struct.pack(">ii", 1, 0)
        if request.key == messages.API_VERSIONS:
            entries = [struct.pack(">hhh", key, *span) for key, span in self.supported.items()]
            return struct.pack(">hi", 0, len(entries)) + b"".join(entries)
        assert request.key == messages.DESCRIBE_CONFIGS
        configs = b"".join(text(key) + text(value) + b"\0\5\0\0\0\0\0" for key, value in self.configs.items())
        return struct.pack(">iihh", 0, 1, code, -1) + b"\4" + text("1") + struct.pack(">i", len(self.configs)) + configs

    def close(self) -> None:
        return

    def _topics(self, body: bytes) -> bytes:
        asked = view(messages.METADATA, messages.TOPIC_IDS_SINCE, body[1:], response=False)
        assert not asked.get("AllowAutoTopicCreation")
        self.topics_asked.append([one.get("Name") for one in asked.get("Topics")])
        topics = [
            {"Name": name, "TopicId": self.topic_ids.get(name), "ErrorCode": 0 if name in self.topic_ids else 3}
            for name in self.topics_asked[-1]
        ]
        made = layout(messages.METADATA, messages.TOPIC_IDS_SINCE, response=True)
        return b"\0" + encode(made, {"Topics": topics})

    @staticmethod
    def _broker(node: int, address: str) -> bytes:
        host, _, port = address.rpartition(":")
        return struct.pack(">i", node) + text(host) + struct.pack(">i", int(port)) + text(f"rack-{node}")

    def _quotas(self, code: int) -> bytes:
        if code:
            return struct.pack(">ihhi", 0, code, -1, -1)
        entries = [
            entity(name) + struct.pack(">i", 1) + text(messages.IP_RATE) + struct.pack(">d", rate)
            for name, rate in self.stored.items()
        ]
        return struct.pack(">ihhi", 0, 0, -1, len(entries)) + b"".join(entries)

    def _altered(self, body: bytes, code: int) -> bytes:
        """Store what the one kind of request asks for that the sidecar makes."""
        (count,), pos, answers = struct.unpack_from(">i", body), 4, []
        for _ in range(count):
            (length,) = struct.unpack_from(">h", body, pos + 8)
            name = body[pos + 10 : pos + 10 + length].decode()
            pos += 10 + length + 4 + len(text(messages.IP_RATE))
            (rate,) = struct.unpack_from(">d", body, pos)
            pos += 9
            answers.append(struct.pack(">hh", code, -1) + entity(name))
            if not code:
                self.stored[name] = rate
        return struct.pack(">ii", 0, count) + b"".join(answers)


def text(value: str | None) -> bytes:
    if value is None:
        return b"\xff\xff"
    return struct.pack(">h", len(value.encode())) + value.encode()


def entity(name: str | None) -> bytes:
    return struct.pack(">i", 1) + text("ip") + text(name)


async def eventually(fits: Callable[[], Any]) -> None:
    """Wait for what nothing reports."""
    async with asyncio.timeout(60):
        while not fits():  # noqa: ASYNC110 - nothing reports it
            await asyncio.sleep(0.005)
