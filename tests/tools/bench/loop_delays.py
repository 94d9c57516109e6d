"""How late the event loop of a sidecar is while requests come: ``python -m tests.tools.bench.loop_delays run -c FILE``
is a sidecar that measures it, and the scenario that starts one.

A timer of the kernel is due each millisecond, and the loop notes how long after that it has learned so: it has waited
for its own turn to end, for the GIL, and for the CPU. Of a timer that was due several times, each time counts.
"""

from __future__ import annotations

import ctypes
import os
import time
from array import array
from dataclasses import replace
from pathlib import Path
from struct import Struct, unpack
from typing import Any

from tests.tools.bench.contestants import Command, Contestant, Wiring
from tests.tools.bench.scenarios import CONNECTIONS, RATE, Measured, Scenario
from tests.tools.bench.stage import Stage

INTERVAL = 0.001
FILE = "loop-delays"
"""In the folder of the sidecar: pairs of seconds, when the timer was due (``time.monotonic``) and by how much later."""

LATE_US = 100
"""A delay that counts as one: no thread may keep the loop waiting for longer."""


class LoopDelays(Scenario):
    """Delays of the loop while small requests come at an even rate."""

    name, whom = "loop-delays", ("brokerside", "brokerside-audit")

    def measure(self, stage: Stage, contestant: Contestant) -> Measured:
        running = stage.start(replace(contestant, command=lambda wiring: _measuring(contestant, wiring)))
        sizes, load = stage.sizes, {"conns": CONNECTIONS, "rate": RATE}
        try:
            stage.load(running, "requests", "small", **load, warm=0.0, secs=sizes.warm)
            began = time.monotonic() + sizes.warm
            outcome = stage.load(running, "requests", "small", **load)
        finally:
            stage.stop(running)
        noted = array("d")
        noted.frombytes((running.wiring.folder / FILE).read_bytes())
        pairs = zip(noted[::2], noted[1::2], strict=True)
        return Measured(figures([late for due, late in pairs if began <= due < began + sizes.seconds]), outcome.foreign)


def figures(delays: list[float]) -> dict[str, float]:
    """Quantiles of ``delays``, which are seconds, and their share above ``LATE_US``."""
    late = sorted(delay * 1e6 for delay in delays)
    quantiles = {"p50_us": 0.5, "p99_us": 0.99, "p999_us": 0.999, "longest_us": 1.0}
    at = {name: late[int(quantile * (len(late) - 1))] for name, quantile in quantiles.items()}
    return at | {"late_percent": 100 * sum(delay > LATE_US for delay in late) / len(late)}


def _measuring(contestant: Contestant, wiring: Wiring) -> Command:
    assert contestant.command is not None
    command = contestant.command(wiring)
    arguments = [__spec__.name if argument == "proxy" else argument for argument in command.arguments]
    paths = {"PYTHONPATH": str(Path(__file__).parents[3])}  # it is started in a folder of its own
    return Command(arguments, command.environment | paths, command.version)


class DelayTimer:
    """The timer in an event loop. ``noted``: as ``FILE`` has them."""

    def __init__(self, loop: Any) -> None:
        self.noted = array("d")
        libc, step = ctypes.CDLL(None, use_errno=True), Struct("qq").pack(0, int(INTERVAL * 1e9))
        self._descriptor = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        self._next = time.monotonic() + INTERVAL
        if self._descriptor < 0 or libc.timerfd_settime(self._descriptor, 0, step + step, None):
            raise OSError(ctypes.get_errno(), "timerfd")
        loop.add_reader(self._descriptor, self._note)

    def _note(self) -> None:
        now = time.monotonic()
        (times,) = unpack("Q", os.read(self._descriptor, 8))
        for _ in range(times):
            self.noted.extend((self._next, now - self._next))
            self._next += INTERVAL


def main() -> None:
    import uvloop

    from proxy.cli import main as sidecar

    timers: list[DelayTimer] = []
    new_event_loop = uvloop.new_event_loop

    def make_loop() -> uvloop.Loop:
        loop = new_event_loop()
        timers.append(DelayTimer(loop))
        return loop

    uvloop.new_event_loop = make_loop
    try:
        sidecar()
    finally:
        Path(FILE).write_bytes(timers[0].noted.tobytes())


if __name__ == "__main__":
    main()
