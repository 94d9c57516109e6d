"""Requests whose responses carry addresses, in every version, sent as bytes."""

from __future__ import annotations

import socket
import struct
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from proxy.core.accessors import Accessors
from proxy.core.apis import API_VERSIONS, request_is_flexible, response_header_is_flexible
from proxy.core.fields import FORMATS
from proxy.core.schema import Field, Layout, layout
from proxy.core.struct import view
from tests.frames import batch, request
from tests.tools.random_messages import length


class Asker:
    """One connection to a broker, or to its sidecar."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._sock = socket.create_connection((host, int(port)), 60)
        self._file = self._sock.makefile("rb")

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._sock.close()

    def ask(self, key: int, version: int, values: Mapping[str, Any]) -> bytes:
        """Body of the response."""
        tags = b"\0" if request_is_flexible(key, version) else b""
        self._sock.sendall(request(key, version, 7, tags + encoded(layout(key, version, response=False), values)))
        (size,) = struct.unpack(">i", self._file.read(4))
        frame = self._file.read(size)
        header = 5 if response_header_is_flexible(key, version) else 4
        assert frame[:header] == bytes(3) + b"\7" + bytes(header - 4)
        return frame[header:]

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


def encoded(made: Layout, values: Mapping[str, Any]) -> bytes:
    """A struct of these values; of fields that are not among them, zeros and empty ones."""
    parts = [_field(field, made.flexible, values.get(field.name)) for field in made.ordered]
    return b"".join(parts) + (b"\0" if made.flexible else b"")


def _field(field: Field, flexible: bool, value: Any) -> bytes:
    if field.array:
        if value is None and field.nullable:
            return length(None, flexible, 4)
        one = Field(field.name, field.type, layout=field.layout)
        return length(len(value or ()), flexible, 4) + b"".join(_field(one, flexible, each) for each in value or ())
    match field.type:
        case "struct":
            assert field.layout is not None
            return encoded(field.layout, value or {})
        case "string" | "bytes" | "records":
            size = 2 if field.type == "string" else 4
            if value is None and field.nullable:
                return length(None, flexible, size)
            data = value.encode() if isinstance(value, str) else value or b""
            return length(len(data), flexible, size) + data
        case "uuid":
            return value or bytes(16)
        case kind:
            return struct.pack(f">{FORMATS[kind]}", value or 0)


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
