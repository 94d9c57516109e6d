"""Observers that write down what they get, for tests that run a whole sidecar; the last ones are KIP-388's."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TextIO

import msgspec

from observers.api import (
    TOPIC_NAME,
    ConnectionChange,
    Context,
    ObservableStruct,
    ObservedConnection,
    ObservedExchange,
)

PRODUCE, FETCH, METADATA = 0, 1, 3
RECORDER = "tests.integration.recorder:Recorder"
FILE = "TEST_RECORDER_FILE"
"""Environment variable of the sidecar: where to write."""


class Recorded(msgspec.Struct, omit_defaults=True):
    what: Literal["exchange", "opened", "authenticated", "authentication_failed", "closed"]
    connection: str
    principal: str
    source: str
    mechanism: str | None = None
    software: tuple[str | None, str | None] = (None, None)
    client_id: str | None = None
    api_key: int = -1
    correlation_id: int = -1
    answered: bool = False
    error_code: int = 0
    lifetime_ms: int = 0
    kept: tuple[bytes | None, bytes | None] = (None, None)


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


def read(path: Path, kind: type[Any] = Recorded) -> list[Any]:
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [msgspec.json.decode(line, type=kind) for line in lines if line.endswith(b"\n")]


class Recorder:
    """Keeps every body there is to be had."""

    _file: TextIO

    def configure(self, configs: Mapping[str, Any]) -> None:
        self._file = open(os.environ[FILE], "a", buffering=1)  # noqa: SIM115 - closed in close

    def keeps(self, key: int, version: int) -> bool:
        return True

    def record_exchanges(self, exchanges: Sequence[ObservedExchange], dropped: int) -> None:
        assert not dropped
        for one in exchanges:
            self._write(
                one.connection,
                "exchange",
                client_id=one.client_id,
                api_key=one.api_key,
                correlation_id=one.correlation_id,
                answered=one.outcome == "answered",
                kept=(one.request_raw, one.response_raw),
            )

    def record_changes(self, changes: Sequence[ConnectionChange], dropped: int) -> None:
        assert not dropped
        for one in changes:
            self._write(one.connection, one.change, error_code=one.error_code, lifetime_ms=one.session_lifetime_ms)

    def close(self, timeout: float) -> None:
        self._file.close()

    def _write(self, connection: ObservedConnection, what: Any, **more: Any) -> None:
        software = (connection.client_software_name, connection.client_software_version)
        recorded = Recorded(
            what, connection.id, connection.principal, connection.principal_source, connection.sasl_mechanism, software,
            **more,
        )  # fmt: skip
        self._file.write(msgspec.json.encode(recorded).decode() + "\n")


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
    def wants(self, api_key: int, api_version: int) -> bool:
        return api_key == METADATA
