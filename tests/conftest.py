"""What every test shares."""

import faulthandler
import gc
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator, Mapping

import pytest
import uvloop
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests import processes
from tests.progress import Progress

pytest_plugins = ["tests.brokers"]

TOGETHER = ("tests/spark/", "tests/interop/")
"""How paths of tests begin that share what takes long to make, a Spark session or the client programs."""

FIRST = (*TOGETHER, "tests/faults/", "tests/integration/")
"""The order of tests that several processes run. What is long, or waits for other processes, runs beside Spark. The
rest, which computes in many short files, comes last: so no process ends long before the others."""

UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
"""Two depths of search: ``fast`` (default, the same examples each run) and ``deep`` (HYPOTHESIS_PROFILE=deep)."""

settings.register_profile("fast", UNTIMED, max_examples=20, derandomize=True, database=None)
settings.register_profile("deep", UNTIMED, max_examples=1_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--deploy", action="store_true", help="Run the tests with the marker deploy, too.")
    parser.addoption("--interop-tls", action="store_true", help="Run the clients of tests/interop over TLS, too.")
    parser.addoption("--shuffle", type=int, metavar="SEED", help="Run files, and tests of a file, in a random order.")
    parser.addoption("--pauses", type=int, metavar="SEED", help="Stop random processes of the run for up to 5 s.")
    parser.addoption("--record-durations", action="store_true", help="Write tests/durations.csv.")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[processes.STDERR] = os.dup(2)
    config.option.loadscopereorder = False
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun in the background, and so would be all processes
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput") or config.option.dist == "no":
        processes.take_port_range()
    if not hasattr(config, "workerinput"):
        processes.begin(config)
        config.pluginmanager.register(Progress(config))
        if config.option.pauses is not None:
            processes.Pauses(config.option.pauses).start()


def pytest_report_header(config: pytest.Config) -> list[str]:
    return [f"{name}: {config.getoption(name)}" for name in ("shuffle", "pauses") if config.getoption(name) is not None]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests before pytest joins those that share a fixture with parameters."""
    if config.option.shuffle is not None:
        files = {item.nodeid.partition("::")[0] for item in items}
        order = {key: random.Random(f"{config.option.shuffle} {key}").random() for key in files}
        items.sort(key=lambda item: random.Random(f"{config.option.shuffle} {item.nodeid}").random())
        items.sort(key=lambda item: order[item.nodeid.partition("::")[0]])
    if hasattr(config, "workerinput"):
        items.sort(
            key=lambda item: next((n for n, path in enumerate(FIRST) if item.nodeid.startswith(path)), len(FIRST))
        )
    if not config.getoption("--deploy"):
        for item in items:
            if item.get_closest_marker("deploy"):
                item.add_marker(pytest.mark.skip(reason="takes minutes: make deploy-test"))


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, Callable[[], uvloop.Loop]]:
    """Asynchronous tests run on the loop that the sidecar runs on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    marker = item.get_closest_marker("timeout")
    timeout = float(marker.args[0] if marker else item.config.getini("timeout"))
    processes.exit_when_overdue(item.config, timeout)
    failed_before = item.session.testsfailed
    try:
        return (yield)
    finally:
        processes.exit_when_overdue(item.config)
        if item.session.testsfailed > failed_before or item.get_closest_marker("kafka"):
            release_clients()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # what was imported stays; so a collection after a test takes milliseconds


@pytest.fixture
def late_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request to the admin address may come late, as from a test that was paused after it had connected."""
    monkeypatch.setattr("proxy.net.http.HTTP_REQUEST_TIMEOUT", 60.0)


def release_clients() -> None:
    """Those of a test, which a traceback keeps, connect again to ports whose connections others count: that of a failed
    test, and of an exception that it expected, as ``raised`` in its frame."""
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)
    gc.collect()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    processes.exit_when_overdue(session.config)


def pytest_unconfigure() -> None:
    faulthandler.cancel_dump_traceback_later()
    gc.unfreeze()  # or compiled modules report, at the end of the process, what they have not freed


class Scheduling(LoadScopeScheduling):
    """Gives a process a file at a time, and what belongs ``TOGETHER`` at once."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((path for path in TOGETHER if file.startswith(path)), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling:
    return Scheduling(config, log)
