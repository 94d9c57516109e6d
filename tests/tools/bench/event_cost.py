"""What an event costs, and for how long it holds up the event loop: ``python -m tests.tools.bench.event_cost``.

No network and no broker: sessions read the small request of the benchmark and its answer, a dispatcher hands exchanges
to the audit, and a sender acknowledges each record at once. So everything is measured but compressing and producing. A
turn of the loop lets other threads have the GIL, as waiting for sockets does, and reads a few requests; how long turns
take shows what the audit's threads keep the loop from.
"""

from __future__ import annotations

import argparse
import os
import select
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from observers.dispatch import Dispatcher
from observers.event_observer import Destination, EventObserver
from observers.kafka_admin import KafkaAdmin
from observers.record_sender import DeliveryCallback
from proxy.core.apis import APIS
from proxy.core.budget import Budget
from proxy.core.counters import ListenerCounters
from proxy.core.exchange import Connection
from proxy.core.observation_interest import ObservationSink
from proxy.core.session import Session
from proxy.net.ticker import TICK_INTERVAL
from tests.tools.bench.frames import OFFERED, PRODUCE, write_frames

CONNECTIONS = 32
REQUESTS_A_TURN = 8
MODES = ("no observer", "audit on")
DELAYS = (25, 50, 100, 250, 500, 1000, 5000)
"""Upper bounds in µs of how long a turn took."""


class At(NamedTuple):
    """One run: CPU µs a request of all threads and of the loop's; lengths of turns in seconds."""

    cpu: float
    loop: float
    turns: list[float]


class Acknowledging:
    """A ``RecordSender`` whose destination takes everything at once."""

    max_bytes = 1 << 25
    max_record_bytes = 1 << 20
    cluster_id = "ThK9ZFduS0ONy_eg3SRv7w"

    def __init__(self, on_settled: DeliveryCallback) -> None:
        self.ready = threading.Event()
        self.ready.set()
        self.problems: Mapping[str, str] = {}
        self.queued = self.queued_bytes = self.records_delivered = self.bytes_delivered = 0
        self._on_settled = on_settled

    def start(self) -> None:
        """Nothing is started."""

    def send(self, value: bytes, load: object) -> bool:
        """Acknowledge it."""
        self.records_delivered += 1
        self.bytes_delivered += len(value)
        self._on_settled(load, None, False, None)
        return True

    def poll(self, timeout: float) -> None:
        """Wait, as nothing is reported later."""
        time.sleep(timeout)

    def close(self, timeout: float) -> None:
        """Nothing waits."""


class Audit(EventObserver):
    """The audit without a topic."""

    spool_setting = "audit.spool.path"

    def _find_destination(self, configs: Mapping[str, Any], admin: KafkaAdmin) -> Destination:
        return Destination(Acknowledging, configs["audit"])


def run(mode: str, rate: int, seconds: float, request: bytes, answer: bytes) -> At:
    """Put ``rate`` requests a second on sessions for so long."""
    dispatcher = None if mode == "no observer" else _dispatcher()
    budget, sink = Budget(), None
    if dispatcher is not None:
        sink = ObservationSink(
            dispatcher.record_exchange, dispatcher.record_change, dispatcher.interest, dispatcher.observed, 1 << 20
        )
    sessions = [
        Session(
            Connection(f"c{n}", "CLIENT", "127.0.0.1", n, 0.0, "User:ANONYMOUS"),
            ListenerCounters(), sink, budget=budget,
        )
        for n in range(CONNECTIONS)
    ]  # fmt: skip
    now, wait = time.monotonic, select.epoll().poll
    turns: list[float] = []
    requests = 0
    cpu, loop, begun = time.process_time(), time.thread_time(), now()
    next_tick = begun
    while next_tick < begun + seconds:
        for _ in range(round(rate * TICK_INTERVAL) // REQUESTS_A_TURN):
            began = now()
            wait(0)
            for _ in range(REQUESTS_A_TURN):
                session = sessions[requests % CONNECTIONS]
                requests += 1
                if session.read_client_data(request, now()):
                    session.observe(now())
                if session.read_broker_data(answer, now()):
                    session.observe(now())
            turns.append(now() - began)
        if dispatcher is not None:
            dispatcher.flush()
        budget.clear_recorded()
        next_tick += TICK_INTERVAL
        time.sleep(max(0.0, next_tick - now()))
    loop = time.thread_time() - loop
    if dispatcher is not None:
        dispatcher.close(20)
        (stats,) = dispatcher.stats()
        assert stats.delivered == requests, stats
    return At((time.process_time() - cpu) / requests * 1e6, loop / requests * 1e6, turns)


def _dispatcher() -> Dispatcher:
    configs = {
        "broker.id": 1,
        "boot.id": os.urandom(16).hex(),
        "worker": 2,  # emits no inventory
        "sidecar.version": "0",
        "internal": {"bootstrap.servers": "127.0.0.1:1"},
        "audit": {},
        "api.names": {key: api.name for key, api in APIS.items()},
    }
    dispatcher = Dispatcher([f"{__spec__.name if __spec__ else __name__}:Audit"], configs, fetch_names=dict)
    dispatcher.start()
    return dispatcher


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench.event_cost", description=__doc__)
    parser.add_argument("--rate", type=int, default=20_000, help="requests a second, default 20000")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each run, default 3")
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="event-cost-") as folder:
        requests = write_frames(Path(folder), fetched=1000, produced=1000, record=100, stub_port=1)
        request = requests["small"].read_bytes()
        answer = (Path(folder) / f"{PRODUCE}-{OFFERED[PRODUCE][1]}.resp").read_bytes()
    runs: dict[str, list[At]] = {mode: [] for mode in MODES}
    for _ in range(options.rounds):
        for mode in MODES:
            runs[mode].append(run(mode, options.rate, options.seconds, request, answer))
    bounds = " | ".join(f"{bound} µs" for bound in DELAYS)
    print(f"% of the loop's turns that took more than …, at {options.rate:,} requests/s:\n")
    print(f"| | CPU µs/request | of it the loop | {bounds} | longest, µs |\n|{'---|' * (len(DELAYS) + 4)}")
    for mode, all_runs in runs.items():
        turns = [turn * 1e6 for one in all_runs for turn in one.turns]
        above = [100 * sum(turn > bound for turn in turns) / len(turns) for bound in DELAYS]
        cpu, loop = (statistics.median(each) for each in zip(*[(one.cpu, one.loop) for one in all_runs], strict=True))
        print(
            f"| {mode} | {cpu:.2f} | {loop:.2f} | {' | '.join(f'{share:.2f}' for share in above)} | {max(turns):.0f} |"
        )


if __name__ == "__main__":
    sys.exit(main())
