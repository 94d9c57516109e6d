"""What a job costs: a process of its own that is asked for pieces of work, and its CPU and memory meanwhile."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from proxy.errors import LocalError
from tests.tools.bench import jobs_clocks
from tests.tools.bench.measure import cpu_seconds, family, peak_mib, reset_peaks, thread_seconds

TIMEOUT = 3_600.0
"""Seconds for one piece of work."""

SAMPLE_S = 10.0
"""Seconds between two readings meanwhile: a Python worker ends when it has been idle for a minute."""

EXIT_TIMEOUT = 60.0

PROGRAM = Path(__file__).with_name("jobs_process.py")

THREADS = {
    "java": {"C1 ": "compile", "C2 ": "compile", "GC ": "collect", "G1 ": "collect", "VM Thread": "collect",
             "Executor task": "tasks"},
    "driver": {"tokio": "commit"},
    "workers": {},
}  # fmt: skip
"""Of each kind of process, what its threads do, by the beginning of their names. Others do what their process does."""


class Reading(NamedTuple):
    """The clocks of the processes of a job, by pid: what kind each is, its CPU seconds, and those of its threads."""

    kinds: dict[int, str]
    processes: dict[int, float]
    threads: dict[int, dict[int, tuple[str, float]]]

    def then(self, later: Reading) -> Reading:
        """Return ``later``, with the processes that have ended since."""
        return Reading(self.kinds | later.kinds, self.processes | later.processes, self.threads | later.threads)


NOTHING = Reading({}, {}, {})
"""Before there was a process."""


class Cost(NamedTuple):
    """What a piece of work costs. ``cpu``: seconds by what threads do; ``clocks``: of it, seconds by the clocks in
    Python; ``peak``: MiB by kind of process, of Python workers the sum; ``result``: of the work."""

    wall: float
    cpu: Mapping[str, float]
    clocks: Mapping[str, float]
    peak: Mapping[str, float]
    result: Mapping[str, Any]

    @property
    def cpu_s(self) -> float:
        return sum(self.cpu.values())


class JobProcess:
    """A process that does what it is asked. Use as a context manager."""

    def __init__(self, bootstrap: str, kind: str, clocks: Path | None = None) -> None:
        """``kind``: "short" or "continuous". ``clocks``: a folder for clocks in Python. Raises LocalError."""
        self._clocks = None if clocks is None else str(clocks)
        arguments = [] if clocks is None else [str(clocks)]
        if clocks is not None:
            clocks.mkdir(parents=True)
        self._seen = NOTHING
        begun = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(PROGRAM), bootstrap, kind, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.start = self._cost(begun, NOTHING)
        """Until there is a session."""

    def __enter__(self) -> JobProcess:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        with self._process:  # closes its output
            try:
                self._process.wait(EXIT_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def do(self, work: str, *arguments: object) -> Cost:
        begun, before = time.monotonic(), self.begin(work, *arguments)
        return self._cost(begun, before)

    def begin(self, work: str, *arguments: object) -> Reading:
        """Begin a piece of work, and return the clocks before it."""
        assert self._process.stdin is not None
        before = self._seen = self.read()
        reset_peaks(list(before.processes))
        self._process.stdin.write(json.dumps([work, *arguments]) + "\n")
        self._process.stdin.flush()
        return before

    def stop(self) -> None:
        """End a piece of work that lasts until SIGTERM. Raises LocalError."""
        self._process.send_signal(signal.SIGTERM)
        self._result()

    def read(self) -> Reading:
        running = {pid: used for pid in family(self._process.pid) if (used := cpu_seconds([pid]))}
        kinds = {pid: self._kind(pid) for pid in running}
        return Reading(kinds, running, {pid: thread_seconds(pid) for pid in kinds})

    def _cost(self, begun: float, before: Reading) -> Cost:
        result = self._result()
        wall, after = time.monotonic() - begun, self._seen.then(self.read())
        peak: defaultdict[str, float] = defaultdict(float)
        for pid, kind in after.kinds.items():
            peak[kind] += peak_mib(pid)
        clocks = {} if self._clocks is None else jobs_clocks.take(self._clocks)
        return Cost(wall, cpu_by_work(before, after), clocks, peak, result)

    def _result(self) -> dict[str, Any]:
        output = self._process.stdout
        assert output is not None
        deadline = time.monotonic() + TIMEOUT
        while not select.select([output], [], [], SAMPLE_S)[0]:
            self._seen = self._seen.then(self.read())
            if time.monotonic() > deadline:
                raise LocalError(f"{PROGRAM.name} has not done its work after {TIMEOUT:.0f} s")
        line = output.readline()
        if not line:
            raise LocalError(f"{PROGRAM.name} ended with {self._process.wait()}")
        result: dict[str, Any] = json.loads(line)
        return result

    def _kind(self, pid: int) -> str:
        if pid == self._process.pid:
            return "driver"
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            return "workers"
        return "java" if name == "java" else "workers"


def cpu_by_work(before: Reading, after: Reading) -> Mapping[str, float]:
    """Return CPU seconds between two readings, by what threads do. Threads that ended count as their process."""
    spent: defaultdict[str, float] = defaultdict(float)
    for pid, kind in after.kinds.items():
        spent[kind] += after.processes[pid] - before.processes.get(pid, 0.0)
        threads_before = before.threads.get(pid, {})
        for thread, (name, seconds) in after.threads[pid].items():
            work = next((work for start, work in THREADS[kind].items() if name.startswith(start)), None)
            if work:
                used = seconds - threads_before.get(thread, ("", 0.0))[1]
                spent[work] += used
                spent[kind] -= used
    return spent


def parts(job: Cost, decoding: Cost, reading: Cost) -> dict[str, float]:
    """Return CPU seconds of ``job`` by part; they add up to all of it.

    ``reading``: reads the same topic and no more. ``decoding``: also makes partial rows. What tasks in Java do for
    Kafka, for Python, and for the shuffle, is what these two and ``job`` differ by; all else is of ``job`` itself.
    """
    cpu, clocks = job.cpu, job.clocks
    in_workers = ("decode", "digests", "size", "sums", "rows", "merge")
    found = {
        "kafka": reading.cpu["tasks"],
        "python": decoding.cpu["tasks"] - reading.cpu["tasks"] + cpu["workers"] - _sum(clocks, *in_workers),
        "decode": clocks["decode"],
        "digests": clocks["digests"],
        "sums": _sum(clocks, "sums", "size"),
        "rows": clocks["rows"],
        "shuffle": cpu["tasks"] - decoding.cpu["tasks"] + clocks["merge"],
        "tables": clocks["tables"],
        "commit": cpu["commit"] + clocks["commit"],
        "collect": cpu["collect"],
        "compile": cpu["compile"],
    }
    return found | {"rest": job.cpu_s - sum(found.values())}


def _sum(clocks: Mapping[str, float], *names: str) -> float:
    return sum(clocks[name] for name in names)
