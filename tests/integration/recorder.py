"""An observer that writes down what it gets, for tests that run a whole sidecar."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TextIO

import msgspec

from observers.api import ConnectionChange, ObservedConnection, ObservedExchange

RECORDER = "tests.integration.recorder:Recorder"
FILE = "TEST_RECORDER_FILE"
"""Environment variable of the sidecar: where to write."""


class Recorded(msgspec.Struct, omit_defaults=True):
    """One exchange, or one change of a connection."""

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


def read(path: Path) -> list[Recorded]:
    """What was written so far."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [msgspec.json.decode(line, type=Recorded) for line in lines if line.endswith(b"\n")]


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
