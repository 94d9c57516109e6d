"""What every test shares."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping

import pytest
import uvloop
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from proxy.local import ports

TOGETHER = ("tests/spark/test_ledger", "tests/spark/", "tests/interop/")
"""How paths of tests begin that share what takes long to make, a warm Spark session or the client programs; the first
that fits counts."""

FIRST = (*TOGETHER, "tests/faults/", "tests/integration/")
"""The order of tests that several processes run. What is long, or waits for other processes, runs beside Spark. The
rest, which computes in many short files, comes last: so no process ends long before the others."""

SLOW_SECONDS = 20
"""A test, or what it needs, that takes longer is named at once, so that a run that is ended early says where it was."""

OVERDUE_SECONDS = 120
"""A process whose test has not ended so long after its timeout exits, with the stacks of its threads on stderr. That
timeout is an exception, which has to wait for a call that does not return, into librdkafka for example. So does a
process that neither gets another test nor ends."""

SILENT_SECONDS = 1200
"""The process that waits for the others exits, with its stacks, if none has reported a test for so long."""

STDERR = pytest.StashKey[int]()
"""The process's own, which pytest does not capture."""

UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
"""Two depths of search: ``fast`` (default, the same examples each run) and ``deep`` (HYPOTHESIS_PROFILE=deep)."""

settings.register_profile("fast", UNTIMED, max_examples=20, derandomize=True, database=None)
settings.register_profile("deep", UNTIMED, max_examples=1_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--deploy", action="store_true", help="Run the tests with the marker deploy, too.")
    parser.addoption("--interop-tls", action="store_true", help="Run the clients of tests/interop over TLS, too.")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STDERR] = os.dup(2)
    config.option.loadscopereorder = False
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun in the background, and so would be all processes
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):
        choose_own_ports(int(config.workerinput["workerid"].removeprefix("gw")), config.workerinput["workercount"])
    else:
        config.pluginmanager.register(Progress(config))


def choose_own_ports(worker: int, workers: int) -> None:
    """Each process that runs tests has its share of them: a server whose port was chosen a while ago, or that a test
    has stopped and will start again, finds it free."""
    share = (ports.LAST - ports.FIRST + 1) // workers
    ports.FIRST += worker * share
    ports.LAST = ports.FIRST + share - 1


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
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
    exit_when_overdue(item.config, timeout)
    failed_before = item.session.testsfailed
    try:
        return (yield)
    finally:
        exit_when_overdue(item.config)
        if item.session.testsfailed > failed_before:
            release_clients()


@pytest.fixture
def late_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request to the admin address may come late, as from a test that was paused after it had connected."""
    monkeypatch.setattr("proxy.net.http.HTTP_REQUEST_TIMEOUT", 60.0)


def release_clients() -> None:
    """Those of a failed test, which its traceback keeps, connect again to ports whose connections others count."""
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)
    gc.collect()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    exit_when_overdue(session.config)


def pytest_unconfigure() -> None:
    faulthandler.cancel_dump_traceback_later()


def exit_when_overdue(config: pytest.Config, timeout: float = 0) -> None:
    faulthandler.dump_traceback_later(timeout + OVERDUE_SECONDS, exit=True, file=config.stash[STDERR])


class Progress:
    """Names a test that failed or was slow on a line of its own as soon as it ends, not only at the end of the run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._began = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._config.option.dist != "no":
            exit_when_overdue(self._config, SILENT_SECONDS)
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is None or not (report.failed or report.duration >= SLOW_SECONDS):
            return
        terminal.ensure_newline()
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        what = f"{report.outcome} {report.nodeid} ({report.when}, {report.duration:.0f} s)"
        terminal.write_line(f"[{minutes}:{seconds:02}] {what}")
        if report.failed:
            last_line = report.longreprtext.strip().splitlines()[-1:] or [""]
            terminal.write_line(f"  {last_line[0][:200]}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object, error: object) -> None:
        """End the run where a process has: xdist would begin its test again, and wait for that again."""
        session = self._config.pluginmanager.get_plugin("dsession")
        if error and session is not None:
            session.shouldstop = "a process that ran tests has ended"


class Scheduling(LoadScopeScheduling):
    """Gives a process a file at a time, and what belongs ``TOGETHER`` at once."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((path for path in TOGETHER if file.startswith(path)), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling:
    return Scheduling(config, log)
