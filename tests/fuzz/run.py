"""Blocks of inputs, run in this process; what went wrong is returned, and saved."""

import hashlib
import time
import traceback
import tracemalloc
from base64 import b64encode
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.fuzz import seeds
from tests.fuzz.mutate import Mutator
from tests.fuzz.targets import Target

BLOCK = 500
"""Inputs of a block."""

TIMED = 20
"""One of so many inputs is timed alone."""

TRACED = 500
"""One of so many inputs is read while its memory is traced."""

MAX_CPU_MS = 10
"""An input that takes more is reported."""


class Failure(NamedTuple):
    """``text``: the end of the traceback. ``kind``: the same for all failures that have one reason, as far as shows."""

    target: str
    data: bytes
    kind: str
    text: str

    def save(self, folder: Path) -> Path:
        """Write the input as a line for a corpus; return the file."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.target}-{hashlib.sha256(self.data).hexdigest()[:12]}.txt"
        path.write_text(f"# {self.kind}\n{b64encode(self.data).decode()}\n")
        return path


class Figures(NamedTuple):
    """Sums over inputs; ``slowest_ms`` and ``memory`` (bytes beyond the input's share) are the worst of a sample."""

    inputs: int
    size: int
    slowest_ms: float
    memory: int
    failures: list[Failure]


@cache
def seeds_of(target: Target) -> tuple[bytes, ...]:
    return tuple(dict.fromkeys([*target.seeds(), *seeds.corpus(target.name)]))


def run_block(target: Target, seed: object, number: int, count: int = BLOCK) -> Figures:
    """Run one block of ``count`` inputs."""
    rng = Random(f"{seed}:{target.name}:{number}")
    mutator = Mutator(rng, seeds_of(target))
    size, slowest, memory = 0, 0.0, 0
    failures: list[Failure] = []
    for at in range(count):
        data = mutator.input()
        size += len(data)
        try:
            target.check(data, rng)
            if at % TIMED == 0:
                slowest = max(slowest, cpu_ms(target, data))
            if at % TRACED == TRACED - 1:
                memory = max(memory, check_memory(target, data))
        except Exception as error:
            failures.append(failure(target, data, error))
    return Figures(count, size, slowest, memory, failures)


def cpu_ms(target: Target, data: bytes) -> float:
    """CPU time of reading ``data`` once; the best of three where it is long, for others use this CPU, too."""
    best = float("inf")
    for _ in range(3):
        before = time.thread_time()
        target.once(data)
        best = min(best, (time.thread_time() - before) * 1000)
        if best < MAX_CPU_MS:
            break
    return best


def check_memory(target: Target, data: bytes) -> int:
    """Return how many bytes reading ``data`` took at most beyond its share; fails where they are too many."""
    target.once(data)  # what is made once and kept
    tracemalloc.start()
    try:
        target.once(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    more = peak - target.share * len(data)
    assert more <= target.besides, f"{peak} bytes for an input of {len(data)}"
    return max(more, 0)


def failure(target: Target, data: bytes, error: Exception) -> Failure:
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1]
    kind = f"{type(error).__name__} in {last.name} ({Path(last.filename).name}:{last.lineno})"
    text = "".join(traceback.format_exception(error, limit=-6))
    return Failure(target.name, data, kind, text)


def replay(target: Target, inputs: list[bytes], attempts: int = 8) -> list[Failure]:
    """Check inputs as they are, cut in so many ways."""
    failures = []
    for data in inputs:
        try:
            for attempt in range(attempts):
                target.check(data, Random(attempt))
            check_memory(target, data)
        except Exception as error:
            failures.append(failure(target, data, error))
    return failures
