"""The jobs: what an event costs from the topic to the tables, by part, and beside another version of the job; how old
events are when they have rows; what a short run costs; and what the tables cost that are computed from others.

The topics are written here, and each job is a process of its own, ``tests/tools/bench/jobs_process.py``.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from proxy.errors import LocalError
from tests.tools.bench import derived_tables
from tests.tools.bench.contestants import Contestant
from tests.tools.bench.jobs_cost import Cost, JobProcess, parts
from tests.tools.bench.jobs_freshness import freshness
from tests.tools.bench.jobs_topics import fill
from tests.tools.bench.scenarios import Figures, Measured
from tests.tools.bench.stage import Sizes, Stage

COLD_KEYS = 500


@dataclass(frozen=True)
class Jobs:
    """The job over topics of so many events and keys a minute, and all that belongs to it."""

    name: str = "jobs"

    def rounds(self, sizes: Sizes) -> int:
        return 1  # it has rounds of its own, in one warm process

    def impossible(self) -> str:
        return ""

    def takes(self, contestant: Contestant) -> bool:
        return contestant.name == "brokerside-audit"

    def measure(self, stage: Stage, contestant: Contestant) -> Measured:
        sizes, folder = stage.sizes, stage.folder / self.name
        bootstrap = stage.start_cluster().internal_bootstrap
        if sizes.job_beside:
            stage.versions["the job of before"] = _commit(sizes.job_beside)
        with stage.everywhere():
            figures = _Run(bootstrap, folder, sizes).figures()
            figures |= derived_tables.figures(str(folder / "day"), sizes.table_rows)
        # All of it is CPU of its own processes, which others disturb little.
        return Measured(figures, 0.0)


class _Run:
    """All measurements of jobs. Their tables are below ``folder``."""

    def __init__(self, bootstrap: str, folder: Path, sizes: Sizes) -> None:
        self._bootstrap, self._folder, self._sizes = bootstrap, folder, sizes
        self._count = 0

    def figures(self) -> Figures:
        sizes = self._sizes
        topics = {f"{count}-{keys}": count for count, keys in product(sizes.job_events, sizes.job_keys)}
        for (topic, count), keys in zip(topics.items(), sizes.job_keys * len(sizes.job_events), strict=True):
            fill(self._bootstrap, topic, count, keys)
        with ExitStack() as stack:
            job = stack.enter_context(JobProcess(self._bootstrap, "continuous", self._folder / "clocks"))
            figures = _in_process("new", job.start)
            beside = None
            if sizes.job_beside:
                beside = stack.enter_context(JobProcess(self._bootstrap, "continuous", checkout=sizes.job_beside))
            for number, (topic, count) in enumerate(topics.items()):  # Java compiles
                first = self._job(job, topic, count)
                figures |= {} if number else _in_process("first", first)
                if beside:
                    self._job(beside, topic, count)
            for topic, count in topics.items():
                figures |= self._warm(job, beside, topic, count)
            figures |= freshness(job, self._bootstrap, self._folder / "fresh", sizes.job_batches)
        return figures | self._cold()

    def _warm(self, job: JobProcess, beside: JobProcess | None, topic: str, count: int) -> Figures:
        """Figures of a topic, of the round that has the median of the CPU."""
        rounds, others = [], []
        for _ in range(self._sizes.job_rounds):
            reading, decoding = job.do("read", topic), job.do("decode", topic)
            rounds.append((self._job(job, topic, count), decoding, reading))
            if beside:
                others.append(self._job(beside, topic, count))
        costs = sorted(rounds, key=lambda each: each[0].cpu_s)[(len(rounds) - 1) // 2]
        own = {f"{name}_us": seconds / count * 1e6 for name, seconds in parts(*costs).items()}
        own |= _whole(costs[0], count)
        if beside:
            other = sorted(others, key=lambda each: each.cpu_s)[(len(others) - 1) // 2]
            own |= {f"before_{name}": value for name, value in _whole(other, count).items()}
            kinds = ("tasks", "collect", "compile")
            own |= {f"before_{kind}_us": other.cpu[kind] / count * 1e6 for kind in kinds}
            own["times"] = own["before_cpu_us"] / own["cpu_us"]
        return {f"{name}_{topic}": value for name, value in own.items()}

    def _cold(self) -> Figures:
        """Figures of a short run: a process that starts, makes tables of few events, and ends."""
        count, topic = self._sizes.job_cold_events, "jobs-cold"
        fill(self._bootstrap, topic, count, COLD_KEYS)
        with JobProcess(self._bootstrap, "short") as job:
            done = self._job(job, topic, count)
        return {
            "cold_start_cpu_s": job.start.cpu_s,
            "cold_job_cpu_s": done.cpu_s,
            "cold_cpu_s": job.start.cpu_s + done.cpu_s,
            "cold_s": job.start.wall + done.wall,
        }

    def _job(self, job: JobProcess, topic: str, count: int) -> Cost:
        self._count += 1
        cost = job.do("job", topic, str(self._folder / str(self._count)))
        if cost.result["events"] != count:
            raise LocalError(f"{topic}: the job has read {cost.result['events']} of {count} events")
        print(f"job {topic}: {cost.cpu_s:.1f} CPU s, {cost.wall:.1f} s", file=sys.stderr, flush=True)
        return cost


def _in_process(what: str, cost: Cost) -> Figures:
    return {f"{what}_cpu_s": cost.cpu_s, f"{what}_s": cost.wall}


def _whole(cost: Cost, count: int) -> Figures:
    peaks = {f"{kind}_mib": mib for kind, mib in cost.peak.items()}
    return {"cpu_us": cost.cpu_s / count * 1e6, "per_s": count / cost.wall, **peaks}


def _commit(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "describe", "--always"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
