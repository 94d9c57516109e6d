"""An observer that raises in each call while a file exists; a sidecar of these tests runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from observers.api import ObservedExchange


class Faulty:
    """``settings``: ``while``, the path of that file."""

    def configure(self, configs: Mapping[str, Any]) -> None:
        self._file = Path(configs["settings"]["while"])

    def record_exchanges(self, exchanges: Sequence[ObservedExchange], dropped: int) -> None:
        if self._file.exists():
            raise RuntimeError("as the test wants it")

    def close(self, timeout: float) -> None:
        return
