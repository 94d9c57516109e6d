"""How long one call of the coordinator's machine takes at most, by event: ``python -m tests.tools.bench.coordinator_calls``.

5,000 members, in one group and in 100 groups, at both levels of the protocol. They register, a topic grows, one joins,
one leaves, the partition is mute for a while, a successor opens it, to which all come back, or nobody; it is lost; all
connections are reset, a rebalance fails for good, an ordinary member appears. Kafka and the consumers around the
machine answer at once (``tests/unit/coordinator/driver.py``). The machine is deterministic: of each single call the
shortest CPU time of all rounds counts, since what else runs on the computer only adds to it. Without the garbage
collector.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

from proxy.coordinator import events as ev
from proxy.coordinator.description import Clocks, count_quarantined, describe_group
from proxy.coordinator.effects import Effect, WriteRecords
from proxy.coordinator.machine import Coordinator
from proxy.coordinator.records import encode_key, encode_value
from proxy.coordinator.status import GroupStatus
from proxy.coordinator.steps import Steps
from proxy.coordinator.wire import PING
from proxy.text_table import format_table
from tests.unit.coordinator.driver import Driver, topic

MEMBERS = 5000
PARTITIONS = 10_000
"""Of the topic that one group of all members reads; a smaller group reads one of as many for each member."""

ROUNDS = 3

Calls = list[tuple[str, str, float]]
"""What was done, the event, and milliseconds, of one call after the other."""

Longest = dict[tuple[str, str], float]
"""Milliseconds, by what was done and the event."""


class Timed:
    """A machine that notes how long each call takes."""

    def __init__(self, machine: Coordinator) -> None:
        self.machine = machine
        self.calls: Calls = []
        self.doing = "start"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.machine, name)

    def handle(self, event: ev.Event, now: int) -> list[Effect]:
        name = "(time)" if event is None else type(event).__name__
        effects: list[Effect] = self.timed(name, lambda: self.machine.handle(event, now))
        for effect in effects:
            if isinstance(effect, WriteRecords):
                self.timed("records encoded", lambda: {encode_key(one): encode_value(one) for one in effect.records})  # noqa: B023
        return effects

    def timed(self, name: str, call: Callable[[], Any]) -> Any:
        began = time.thread_time()
        result = call()
        self.calls.append((self.doing, name, (time.thread_time() - began) * 1e3))
        return result


class Fleet(Driver):
    """A driver whose consumers can all come back to a successor."""

    def __init__(self, groups: int, level: int, **settings: Any) -> None:
        self.sizes = (groups, MEMBERS // groups)
        super().__init__(level=level, partition_count=1, max_consumers=2 * MEMBERS, **settings)
        self.timed = Timed(self.machine)
        self.machine = self.timed  # type: ignore[assignment]
        self.level = level
        self.topics = {"t": topic(PARTITIONS // groups)}

    def doing(self, what: str) -> None:
        self.timed.doing = what

    def register_all(self) -> None:
        groups, size = self.sizes
        for group in range(groups):
            for number in range(size):
                self.register(f"consumer-{number:04}", group=f"group-{group:03}", level=self.level)
        self.history.clear()

    def successor_of(self, other: Driver) -> None:
        self.topics, self.committed, self.records = other.topics, other.committed, other.records
        self.do(ev.PartitionAssigned(self.partition, is_empty=False))

    def living(self) -> list[Any]:
        return [one for one in self.consumers.values() if one.closed is None]


def steady(groups: int, level: int) -> Iterator[Fleet]:
    """All that happens to a group that goes on."""
    fleet = Fleet(groups, level)
    yield fleet
    fleet.doing("all register")
    fleet.register_all()
    fleet.advance(2000)
    fleet.doing("pings")
    fleet.advance(9000)
    fleet.doing("one joins")
    late = fleet.register("late", group="group-000", level=level)
    fleet.advance(3000)
    fleet.doing("one leaves")
    late.end()
    fleet.advance(3000)
    fleet.doing("topic grows")
    fleet.change_topics(t=topic(PARTITIONS // groups + 100))
    fleet.advance(3000)
    fleet.doing("all pings at once")
    fleet.now += 4000
    fleet.do(None)
    fleet.doing("settings")
    fleet.change_settings(rebalance_delay_ms=100)
    fleet.doing("pages")
    describe(fleet)
    fleet.doing("mute, and not")
    fleet.writes_hang = True
    fleet.advance(5500)
    fleet.writes_hang = False
    for write in list(fleet.hung):
        fleet.commit(write)
    fleet.advance(1000)
    for what, come_back in (("successor, all come back", True), ("successor, nobody comes back", False)):
        after = Fleet(groups, level, hold=False)
        after.now = fleet.now
        yield after
        after.doing(what)
        after.successor_of(fleet)
        if come_back:
            after.register_all()
        after.advance(4000 if come_back else 40_000)
    fleet.doing("lost")
    fleet.do(ev.PartitionLost(fleet.partition, "evacuated"))
    fleet.advance(1000)


def describe(fleet: Fleet) -> None:
    state, clocks = fleet.machine.state, Clocks(fleet.now, 0)
    fleet.timed.timed("GET /coordinator", fleet.machine.sizes)
    fleet.timed.timed("GET /metrics", lambda: sum(map(count_quarantined, state.groups.values())))
    some = next(iter(state.groups.values()))
    described: list[GroupStatus] = []  # kept: to free it is no part of the last call
    steps = collect(describe_group(state, some, clocks, with_consumers=True), described)
    while fleet.timed.timed("GET /groups?group=", lambda: next(steps, None)) is not None:
        pass


def collect(steps: Steps[GroupStatus], found: list[GroupStatus]) -> Iterator[int]:
    found.append((yield from steps))


def reset(fleet: Fleet) -> None:
    for consumer in fleet.living():
        consumer.end(by_peer=False)
    fleet.advance(20_000)


def leave(fleet: Fleet) -> None:
    for consumer in fleet.living():
        consumer.end()
    fleet.advance(2000)


def silent(fleet: Fleet) -> None:
    for consumer in fleet.living():
        consumer.answers = False
    fleet.advance(40_000)


def refuse(fleet: Fleet) -> None:
    """Nobody answers what a rebalance asks, though pings are answered."""
    deliver = fleet._deliver

    def some(consumer: Any, frame: bytes) -> None:
        consumer.answers = frame[5] == PING % 256 if consumer.code is not None else True
        deliver(consumer, frame)

    fleet._deliver = some  # type: ignore[method-assign]
    fleet.change_topics(t=topic(PARTITIONS // fleet.sizes[0] + 200))
    fleet.advance(60_000)


def ordinary(fleet: Fleet) -> None:
    fleet.ordinary = True
    fleet.advance(12_000)


def hung_registrations(fleet: Fleet) -> None:
    fleet.do(ev.PartitionLost(fleet.partition, "evacuated"))
    fleet.advance(1000)


ENDS: dict[str, Callable[[Fleet], None]] = {
    "all reset": reset,
    "all leave": leave,
    "all are silent": silent,
    "rebalance fails": refuse,
    "ordinary member": ordinary,
}


def ended(groups: int, level: int) -> Iterator[Fleet]:
    """All that ends groups."""
    for name, end in ENDS.items():
        fleet = Fleet(groups, level)
        fleet.register_all()
        fleet.advance(2000)
        yield fleet
        fleet.doing(name)
        end(fleet)
    fleet = Fleet(groups, level)
    yield fleet
    fleet.doing("lost, while all register")
    fleet.writes_hang = True
    fleet.register_all()
    hung_registrations(fleet)


def measure(groups: int, level: int) -> Calls:
    found: Calls = []
    for scenario in (steady, ended):
        for fleet in list(scenario(groups, level)):
            found += fleet.timed.calls
        gc.collect()
    return found


def longest(rounds: list[Calls]) -> Longest:
    found: Longest = {}
    for calls in zip(*rounds, strict=True):
        doing, name, _ = calls[0]
        took = min(one[2] for one in calls)
        found[doing, name] = max(took, found.get((doing, name), 0))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench.coordinator_calls", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--groups", type=int, nargs="*", default=(1, 100), help="the members are in so many groups")
    parser.add_argument("--levels", type=int, nargs="*", default=(1, 2))
    parser.add_argument("--least", type=float, default=0.5, help="milliseconds of the shortest call that is shown")
    options = parser.parse_args()
    gc.disable()
    columns: dict[str, Longest] = {}
    for groups in options.groups:
        for level in options.levels:
            name = f"{groups} × {MEMBERS // groups:,}, LEVEL {level}"
            columns[name] = longest([measure(groups, level) for _ in range(options.rounds)])
    keys = dict.fromkeys(key for one in columns.values() for key in one)
    rows = [
        (*key, *(f"{one.get(key, 0):.2f}" for one in columns.values()))
        for key in keys
        if key[0] != "start" and max(one.get(key, 0) for one in columns.values()) >= options.least
    ]
    print(format_table(("WHAT", "CALL, MS", *columns), rows, left=(0, 1)))


if __name__ == "__main__":
    main()
