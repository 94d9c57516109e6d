"""``brokerside run`` with a feature controller in memory: ``python -m tests.integration.controller_in_memory FILE``.

For tests of the data path: nothing is written to Kafka, and there is no other sidecar. It prints each update that it is
asked for as a line of JSON that begins with ``UPDATE``.
"""

from __future__ import annotations

import asyncio
import os
import sys

import msgspec

from proxy import run
from proxy.cli import main
from proxy.config import Config
from proxy.features.catalog import SUPPORTED, LevelRange
from proxy.features.updates import INVALID_UPDATE_VERSION, NONE, UpdateRequest, UpdateResult
from proxy.features.view import FeaturesView
from proxy.net.connection_handler import ConnectionHandler
from proxy.net.ticker import Ticker

FIRST_EPOCH = 4
MARK = "UPDATE "


class ControllerInMemory:
    """Sets what it is asked for, and shows it to the clients of ``handler`` before it answers."""

    def __init__(self, handler: ConnectionHandler) -> None:
        self._handler, self._epoch = handler, FIRST_EPOCH
        self._levels = dict.fromkeys(SUPPORTED, 1)
        handler.on_feature_update(self.update)
        self._show()

    async def update(self, request: UpdateRequest) -> UpdateResult:
        """Update all features of ``request``, or none."""
        os.write(1, MARK.encode() + msgspec.json.encode(request) + b"\n")  # not by the log's thread, which may be late
        await asyncio.sleep(0.01)
        for one in request.updates:
            if one.level > SUPPORTED[one.feature].max:
                return UpdateResult(INVALID_UPDATE_VERSION, f"{one.feature}: {one.level}")
        if not request.validate_only:
            self._levels |= {one.feature: one.level for one in request.updates}
            self._epoch += 1
            self._show()
        return UpdateResult(NONE)

    def _show(self) -> None:
        finalized = {name: LevelRange(1, level) for name, level in self._levels.items() if level}
        self._handler.update_features_view(FeaturesView(SUPPORTED, finalized, self._epoch))


def _main(file: str) -> None:
    start = run._start_connection_handler

    async def start_with_controller(config: Config, ticker: Ticker) -> ConnectionHandler:
        handler = await start(config, ticker)
        ControllerInMemory(handler)
        return handler

    run._start_connection_handler = start_with_controller
    sys.argv = ["brokerside", "run", "-c", file]
    main()


if __name__ == "__main__":
    _main(sys.argv[1])
