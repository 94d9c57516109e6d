"""A connection that sends one request at a time, and requests for it: about quotas, and those whose responses carry
addresses, in every version."""

from __future__ import annotations

import socket
import struct
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from proxy.core.accessors import Accessors
from proxy.core.apis import API_VERSIONS, request_is_flexible, response_header_is_flexible
from proxy.core.encode import encode
from proxy.core.schema import layout
from proxy.core.struct import view
from tests.frames import batch

RATE = "connection_creation_rate"
CREATION = "max.connection.creation.rate"
DESCRIBE, ALTER, ALTER_CONFIGS = 48, 49, 44
EXACT, DEFAULT, ANY = 0, 1, 2
TIMEOUT = 60.0

Entity = Sequence[tuple[str, str | None]]
Op = tuple[str, float, bool]
Component = tuple[str, int, str | None]


class Peer:
    """A connection that sends one request at a time; ``address``: host:port, ``user`` logs in with SASL PLAIN."""

    def __init__(
        self, address: str, *, source: str = "127.0.0.1", user: tuple[str, str] | None = None, timeout: float = TIMEOUT
    ) -> None:
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host, int(port)), timeout, source_address=(source, 0))
        self._asked = 0
        if user is not None:
            assert self.ask(17, 1, text("PLAIN"))[:2] == b"\0\0"
            token = f"\0{user[0]}\0{user[1]}".encode()
            assert self.ask(36, 0, struct.pack(">i", len(token)) + token)[:2] == b"\0\0"

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def ask(self, key: int, version: int, body: bytes) -> bytes:
        """Return what follows the correlation id."""
        return self.ask_all([(key, version, body)])[0]

    def ask_all(self, requests: Sequence[tuple[int, int, bytes]]) -> list[bytes]:
        """Send all requests (api key, version, body) at once, and return what follows each correlation id."""
        first, sent = self._asked + 1, b""
        for key, version, body in requests:
            self._asked += 1
            head = struct.pack(">hhi", key, version, self._asked) + text("peer")
            if request_is_flexible(key, version):
                head += b"\0"
            sent += struct.pack(">i", len(head) + len(body)) + head + body
        self.sock.sendall(sent)
        return [self._answer(number) for number in range(first, self._asked + 1)]

    def _answer(self, expected: int) -> bytes:
        size, answered = struct.unpack(">ii", self._read(8))
        assert answered == expected
        return self._read(size - 4)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self.sock.recv(size - len(data))
            if not chunk:
                raise ConnectionError("closed")
            data += chunk
        return data


class Asker:
    def __init__(self, address: str) -> None:
        self._peer = Peer(address)

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_: object) -> None:
        self._peer.sock.close()

    def ask(self, key: int, version: int, values: Mapping[str, Any]) -> bytes:
        """Body of the response."""
        answer = self._peer.ask(key, version, body_of(key, version, **values))
        return answer[1:] if response_header_is_flexible(key, version) else answer

    def until(self, key: int, version: int, values: Mapping[str, Any], wanted: Callable[[bytes], bool]) -> bytes:
        """The same as soon as it is as wanted, or after 60 s: coordinators and topics are not there at once."""
        deadline = time.monotonic() + 60
        while not wanted(body := self.ask(key, version, values)) and time.monotonic() < deadline:
            time.sleep(0.1)
        return body

    def answer(self, key: int, version: int, values: Mapping[str, Any]) -> Accessors:
        """The same, read."""
        return view(key, version, self.ask(key, version, values), response=True)

    def versions(self) -> dict[int, range]:
        """What can be asked here, as far as it is known here."""
        answer = self.answer(API_VERSIONS, 3, {"ClientSoftwareName": "a", "ClientSoftwareVersion": "1"})
        return {
            one.get("ApiKey"): range(one.get("MinVersion"), one.get("MaxVersion") + 1) for one in answer.get("ApiKeys")
        }


def text(value: str | None) -> bytes:
    return struct.pack(">h", -1) if value is None else struct.pack(">h", len(value.encode())) + value.encode()


def body_of(key: int, version: int, **values: object) -> bytes:
    return encode(layout(key, version, response=False), values)


def alter(entity: Entity, *ops: Op, version: int = 0) -> bytes:
    """An AlterClientQuotas body for one entity."""
    parts = [{"EntityType": kind, "EntityName": name} for kind, name in entity]
    changes = [{"Key": key, "Value": value, "Remove": remove} for key, value, remove in ops]
    return body_of(ALTER, version, Entries=[{"Entity": parts, "Ops": changes}])


def describe(*components: Component, version: int = 0) -> bytes:
    """A DescribeClientQuotas body."""
    parts = [{"EntityType": kind, "MatchType": match, "Match": name} for kind, match, name in components]
    return body_of(DESCRIBE, version, Components=parts)


def set_config(broker: int, name: str, value: str | None) -> bytes:
    """An IncrementalAlterConfigs v0 body that sets (None: removes) one key of a broker."""
    change = {"Name": name, "ConfigOperation": 0 if value is not None else 1, "Value": value}
    of_broker = {"ResourceType": 4, "ResourceName": str(broker), "Configs": [change]}
    return body_of(ALTER_CONFIGS, 0, Resources=[of_broker])


def error_of(key: int, version: int, answer: bytes) -> tuple[int, str]:
    """Code and message of an answer: the first entry's where each has its own."""
    read = view(key, version, answer[response_header_is_flexible(key, version) :], response=True)
    if key != DESCRIBE:
        read = read.get("Entries" if key == ALTER else "Responses")[0]
    return read.get("ErrorCode"), read.get("ErrorMessage") or ""


def served(address: str, source: str, count: int, within: float = 0.5) -> int:
    """Open ``count`` connections at once from ``source``; return how many get an answer ``within`` seconds."""
    ask = struct.pack(">ihhih", 10, 18, 0, 1, -1)
    peers, got = [], 0
    host, _, port = address.rpartition(":")
    try:
        for _ in range(count):
            sock = socket.create_connection((host, int(port)), TIMEOUT, source_address=(source, 0))
            peers.append(sock)
            sock.sendall(ask)
        deadline = time.monotonic() + within
        for sock in peers:
            sock.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                got += bool(sock.recv(1))
            except (TimeoutError, ConnectionError):
                continue
    finally:
        for sock in peers:
            sock.close()
    return got


def questions(topic: str, topic_id: bytes, partition: int, group: str) -> dict[int, dict[str, Any]]:
    """By api key, a request to which a broker without this partition answers with the one that has it."""
    part = {"PartitionIndex": partition, "Index": partition, "Partition": partition, "PartitionMaxBytes": 1 << 20}
    part |= {"Records": batch(1, b"x"), "CurrentLeaderEpoch": -1, "LastFetchedEpoch": -1, "LogStartOffset": -1}
    part["AcknowledgementBatches"] = [{"AcknowledgeTypes": [1]}]
    named = {"Name": topic, "TopicId": topic_id, "PartitionData": [part], "Partitions": [part]}
    fetch = {"MaxWaitMs": 10, "MinBytes": 1, "MaxBytes": 1 << 20, "SessionEpoch": -1, "Topics": [named]}
    share = {"GroupId": group, "MemberId": str(uuid.uuid4()), "MaxRecords": 10, "BatchSize": 10}
    first = {**part, "AcknowledgementBatches": ()}
    opened = {**named, "Partitions": [first]}
    return {
        0: {"Acks": 1, "TimeoutMs": 1000, "TopicData": [named]},
        1: fetch,
        3: {"Topics": None},
        10: {"Key": group, "CoordinatorKeys": [f"{group}-{n}" for n in range(8)]},
        60: {"EndpointType": 1},
        78: {**fetch, **share, "ShareSessionEpoch": 0, "Topics": [opened]},
        79: {**share, "ShareSessionEpoch": 1, "Topics": [named]},
    }
