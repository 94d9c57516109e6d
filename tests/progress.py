"""What a run says while it works and at its end, and where its time went."""

import csv
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

DURATIONS = Path(__file__).with_name("durations.csv")
"""Seconds of each file that takes one or more, by phase, of a whole run on a quiet machine of two cores
(``--record-durations``)."""

PHASES = ("setup", "call", "teardown")

SECONDS_BETWEEN_LINES = 15

SLOW_SECONDS = 20
"""A test, or what it needs, that takes longer is named at once, so that a run that is ended early says where it was."""


class Progress:
    """A line every 15 s, one for each failure as it happens, and one at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._began = time.monotonic()
        self._next_line = self._began + SECONDS_BETWEEN_LINES
        self._tests = 0
        self._outcomes: dict[str, str] = {}
        self._seconds: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._expected = _expected_seconds()
        self._left = 0.0
        self._done = 0.0
        self._interrupted = False

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._plan(ids)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._plan([item.nodeid for item in session.items])

    def _plan(self, ids: list[str]) -> None:
        if not self._tests:
            self._tests = len(ids)
            self._left = sum(map(self._expect, ids))

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Lines instead of dots, where several processes report."""
        if self._config.option.dist == "no" or self._config.option.verbose or report.failed:
            return None
        if report.passed:
            return ("passed" if report.when == "call" else "", "", "")
        return ("skipped", "", "") if report.skipped and not hasattr(report, "wasxfail") else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self._seconds[file][report.when] += report.duration
        if report.when == "teardown":
            self._seconds[file]["tests"] += 1
            self._left -= self._expect(report.nodeid)
            self._done += self._expect(report.nodeid)
        if report.failed or report.skipped or report.when == "call":
            self._outcomes[report.nodeid] = report.outcome  # of a teardown that fails it is that
        if report.failed or report.duration >= SLOW_SECONDS:
            self._write(f"{report.outcome} {report.nodeid} ({report.when}, {report.duration:.0f} s)")
            if report.failed:
                self._write(f"  {_reason(report)[:200]}")
        elif self._config.option.dist != "no" and time.monotonic() >= self._next_line:
            self._write(self._so_far())
            self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES

    def _so_far(self) -> str:
        count = Counter(self._outcomes.values())
        line = f"{len(self._outcomes):,} of {self._tests:,} tests: {count['passed']:,} passed, {count['failed']} failed"
        if self._done < 30:
            return line
        rest = self._left * (time.monotonic() - self._began) / self._done
        return f"{line}; about {_minutes(rest)} left"

    def pytest_keyboard_interrupt(self) -> None:
        self._interrupted = True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> object:
        result = yield
        if self._tests and self._config.option.dist != "no":
            self._say_end()
        if self._config.getoption("--record-durations"):
            self._record()
        return result

    def _say_end(self) -> None:
        count, took = Counter(self._outcomes.values()), _minutes(time.monotonic() - self._began)
        not_run = self._tests - len(self._outcomes)
        if self._interrupted or not_run:
            line = f"Ended early after {took}: {count['passed']:,} tests passed, {count['failed']} failed"
            line += f", {not_run:,} did not run."
        elif count["failed"]:
            line = f"{count['failed']} of {self._tests:,} tests FAILED in {took}; each is named above, with its reason."
        else:
            line = f"All {count['passed']:,} tests passed in {took}."
        if count["skipped"]:
            line += f" {count['skipped']:,} were skipped, for the reasons above."
        self._write(line, stamp=False)

    def _record(self) -> None:
        with DURATIONS.open("w", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(["file", "tests", *PHASES])
            for name, spent in sorted(self._seconds.items()):
                if sum(spent[phase] for phase in PHASES) >= 1:
                    rows.writerow([name, spent["tests"], *(f"{spent[phase]:.2f}" for phase in PHASES)])

    def _expect(self, nodeid: str) -> float:
        return self._expected.get(nodeid.partition("::")[0], 0.05)

    def _write(self, line: str, *, stamp: bool = True) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
            terminal.ensure_newline()
            terminal.write_line(f"[{minutes}:{seconds:02}] {line}" if stamp else line)


def _expected_seconds() -> dict[str, float]:
    """Seconds of one test, by its file."""
    if not DURATIONS.exists():
        return {}
    with DURATIONS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {row["file"]: sum(float(row[phase]) for phase in PHASES) / max(int(row["tests"]), 1) for row in rows}


def _reason(report: pytest.TestReport) -> str:
    """The first line of the error, or the last one of what stands for it."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longreprtext.strip().splitlines()[-1]).partition("\n")[0]


def _minutes(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
