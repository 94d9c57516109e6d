"""Requests whose responses carry addresses, in every version, sent as bytes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from proxy.core.accessors import Accessors
from proxy.core.apis import API_VERSIONS, response_header_is_flexible
from proxy.core.encode import encode
from proxy.core.schema import layout
from proxy.core.struct import view
from tests.frames import batch
from tests.integration.quotas import Peer


class Asker:
    def __init__(self, address: str) -> None:
        self._peer = Peer(address)

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_: object) -> None:
        self._peer.sock.close()

    def ask(self, key: int, version: int, values: Mapping[str, Any]) -> bytes:
        """Body of the response."""
        answer = self._peer.ask(key, version, encode(layout(key, version, response=False), values))
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
