"""The jobs: what an event costs from the topic to the tables, by part; how old events are when they have rows; what a
short run costs; and what the tables cost that are computed from others.

The topics are written here, and each job is a process of its own, ``tests/tools/bench/jobs_process.py``.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

from proxy.errors import LocalError
from tests.tools.bench import derived_tables
from tests.tools.bench.contestants import Contestant
from tests.tools.bench.jobs_cost import Cost, JobProcess, parts
from tests.tools.bench.jobs_freshness import freshness
from tests.tools.bench.jobs_topics import fill
from tests.tools.bench.scenarios import Figures, Measured, Scenario
from tests.tools.bench.stage import Sizes, Stage

COLD_KEYS = 500


class Jobs(Scenario):
    """The job over topics of so many events and keys a minute, and all that belongs to it."""

    name, whom = "jobs", ("brokerside-audit",)

    def rounds(self, sizes: Sizes) -> int:
        return 1  # it has rounds of its own, in one warm process

    def measure(self, stage: Stage, contestant: Contestant) -> Measured:
        sizes, folder = stage.sizes, stage.folder / self.name
        bootstrap = stage.start_cluster().internal_bootstrap
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
        topics = {f"{count}-{keys}": (count, keys) for count, keys in product(sizes.job_events, sizes.job_keys)}
        for topic, (count, keys) in topics.items():
            fill(self._bootstrap, topic, count, keys)
        with JobProcess(self._bootstrap, "continuous", self._folder / "clocks") as job:
            figures = _in_process("new", job.start)
            for number, (topic, (count, _)) in enumerate(topics.items()):  # Java compiles
                first = self._job(job, topic, count)
                figures |= {} if number else _in_process("first", first)
            for topic, (count, _) in topics.items():
                figures |= self._warm(job, topic, count)
            figures |= freshness(job, self._bootstrap, self._folder / "fresh", sizes.job_batches)
        return figures | self._cold()

    def _warm(self, job: JobProcess, topic: str, count: int) -> Figures:
        """Figures of a topic, of the round that has the median of the CPU."""
        rounds = []
        for _ in range(self._sizes.job_rounds):
            reading, decoding = job.do("read", topic), job.do("decode", topic)
            rounds.append((self._job(job, topic, count), decoding, reading))
        costs = sorted(rounds, key=lambda each: each[0].cpu_s)[(len(rounds) - 1) // 2]
        whole = costs[0]
        own = {f"{name}_us": seconds / count * 1e6 for name, seconds in parts(*costs).items()}
        own |= {"cpu_us": whole.cpu_s / count * 1e6, "per_s": count / whole.wall}
        own |= {f"{kind}_mib": mib for kind, mib in whole.peak.items()}
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
