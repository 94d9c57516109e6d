"""What every test shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, Callable[[], uvloop.Loop]]:
    """Asynchronous tests run on the loop that the sidecar runs on."""
    return {"uvloop": uvloop.new_event_loop}
