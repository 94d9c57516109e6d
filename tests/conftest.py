"""What every test shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
import uvloop
from xdist.scheduler import LoadScopeScheduling

TOGETHER = ("tests/spark/test_ledger", "tests/spark/", "tests/interop/")
"""How paths of tests begin that share what takes long to make, a warm Spark session or the client programs; the first
that fits counts."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--deploy", action="store_true", help="Run the tests with the marker deploy, too.")


def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    if not config.getoption("--deploy"):
        for item in items:
            if item.get_closest_marker("deploy"):
                item.add_marker(pytest.mark.skip(reason="takes minutes: make deploy-test"))


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, Callable[[], uvloop.Loop]]:
    """Asynchronous tests run on the loop that the sidecar runs on."""
    return {"uvloop": uvloop.new_event_loop}


class Scheduling(LoadScopeScheduling):
    """Gives a process a file at a time, and what belongs ``TOGETHER`` at once; what has most tests comes first."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((path for path in TOGETHER if file.startswith(path)), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling:
    return Scheduling(config, log)
