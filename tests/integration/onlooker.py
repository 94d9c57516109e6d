"""KIP-388 observers that write down their calls, for tests that run a whole sidecar."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import msgspec

from observers.api import TOPIC_NAME, Context, ObservableStruct

FILE = "TEST_ONLOOKER_FILE"
"""Environment variable of the sidecar: where to write."""

PRODUCE, FETCH, METADATA = 0, 1, 3


class ObservedCall(msgspec.Struct, omit_defaults=True):
    """One call. ``topics``: as the struct names them; ``look_ups``: of all names so far."""

    method: str
    correlation_id: str
    api_key: int = -1
    api_version: int = -1
    context: Context | None = None
    topics: list[str] = []
    ids: list[str] = []
    look_ups: int = 0


def read(path: Path) -> list[ObservedCall]:
    """What was written so far."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [msgspec.json.decode(line, type=ObservedCall) for line in lines if line.endswith(b"\n")]


class Onlooker:
    """Observes everything, and names the topics of Produce and Fetch."""

    _file: TextIO

    def configure(self, configs: Mapping[str, Any]) -> None:
        self._file = open(os.environ[FILE], "a", buffering=1)  # noqa: SIM115 - closed in close
        self._names = configs["topic.names"]

    def record_request(self, struct, client_address, principal, api_key, api_version, correlation_id, *, context):
        call = ObservedCall("request", correlation_id, api_key, api_version, context)
        array = {PRODUCE: "topic_data", FETCH: "topics"}.get(api_key, "")
        if array and struct.has_field(array):
            for topic in struct.get_observable_struct_array(array):
                call.topics.append(topic.get(TOPIC_NAME))
                if topic.has_field("topic_id"):
                    call.ids.append(topic.get_uuid("topic_id"))
        call.look_ups = self._names.look_ups
        self._write(call)

    def record_response(self, struct: ObservableStruct, api_version: int, correlation_id: str) -> None:
        self._write(ObservedCall("response", correlation_id, api_version=api_version))

    def close(self, timeout: float, unit: str) -> None:
        self._file.close()

    def _write(self, call: ObservedCall) -> None:
        self._file.write(msgspec.json.encode(call).decode() + "\n")


class MetadataOnlooker(Onlooker):
    """Wants Metadata alone."""

    def wants(self, api_key: int, api_version: int) -> bool:
        return api_key == METADATA
