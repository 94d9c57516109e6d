"""Reloads that one process prepares, refuses and applies."""

import threading
from typing import Any

import pytest

from proxy.config import Config
from proxy.errors import LocalError
from proxy.net.data_plane import DataPlane
from proxy.net.ticker import Ticker
from proxy.net.tls_contexts import TlsContexts

LISTENER = {"name": "CLIENT", "bind": "127.0.0.1:1", "upstream": "127.0.0.1:2"}
CONFIG = Config.model_validate({"broker.id": 1, "listeners": [LISTENER]})


class SlowDispatcher:
    """Configures observers once ``go`` is set, and notes which are discarded."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.discarded = threading.Event()

    def configure_beside(self, settings: Any, more: Any) -> list[str]:
        assert self.go.wait(60)
        return ["an observer"]

    def discard(self, configured: list[str]) -> None:
        assert configured == ["an observer"]
        self.discarded.set()


@pytest.mark.promise("restart.md", "A reload whose TLS contexts cannot be built applies nothing.")
async def test_nothing_is_applied_where_contexts_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    plane = DataPlane(CONFIG, Ticker())
    plane._dispatcher = dispatcher = SlowDispatcher()  # type: ignore[assignment]  # it would wait for ``go``

    def fail(self: TlsContexts, *_: object) -> None:
        raise LocalError("TLS: Too many open files")

    monkeypatch.setattr(TlsContexts, "update_config", fail)
    wanted = CONFIG.model_copy(update={"observers": {"one:Two": {}}})
    with pytest.raises(LocalError, match="Too many open files"):
        plane.update_config(wanted)
    assert plane._config is CONFIG
    assert not dispatcher.discarded.is_set()
    plane._connections.listeners.stop_probes()
