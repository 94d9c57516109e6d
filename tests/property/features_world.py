"""A fleet without sockets: pure controllers, elections and participants over two logs with fencing, and what must hold.

The log of the features is as Kafka's: a transaction is committed first and readable later (its marker is written), and
what stands behind a transaction that is not over cannot be read either. Times are milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Literal, NamedTuple

from proxy.features.catalog import LevelRange
from proxy.features.controller import FeatureController
from proxy.features.controller_states import (
    CloseProducer,
    ControllerState,
    Effect,
    FencePredecessor,
    ReadRegistry,
    WriteTransaction,
)
from proxy.features.levels import FleetLevels, fleet_levels
from proxy.features.participants import Participant
from proxy.features.records import FeatureUpdate, ReaderRecord, SupportedRange, UpdateProposal, encode, update_key
from proxy.features.topic_state import TopicState
from proxy.features.updates import wait_ms
from proxy.fleet import sidecar_record
from proxy.fleet.applied_epoch import Applied, AppliedEpoch, AuditLevels
from proxy.fleet.election import Decision, Election
from proxy.fleet.membership import Membership, RegistryContent
from proxy.fleet.registered_features import HOLD, LOG, claims_of, participants_of, unapplied
from proxy.fleet.sidecar_record import SidecarRecord
from proxy.fleet.suspicion import Suspicion
from tests.property import features_invariants as invariants

TRANSACTION_TIMEOUT = 10_000
HEARTBEAT = 3_000


@dataclass
class Transaction:
    records: list[tuple[bytes, bytes | None]]
    generation: int
    writer: tuple[str, int]
    begun: int
    state: str = "open"
    """open, committed (acknowledged, not readable), readable, aborted."""


class Entry(NamedTuple):
    key: bytes
    value: bytes | None
    at: int
    transaction: Transaction | None


@dataclass
class Log:
    """The topic of the features: one partition, one transactional id."""

    entries: list[Entry] = field(default_factory=list)
    open: list[Transaction] = field(default_factory=list)
    """Those that are not over: open or committed."""
    generation: int = 0

    def fence(self) -> int:
        self.generation += 1
        self.finish("aborted")
        return self.generation

    def finish(self, open_becomes: str) -> None:
        for one in self.open:
            one.state = "readable" if one.state == "committed" else open_becomes
        self.open = [one for one in self.open if one.state == "open"]

    def begin(
        self, generation: int, records: dict[bytes, bytes | None], writer: tuple[str, int], now: int
    ) -> Transaction:
        self.finish("open")
        one = Transaction(list(records.items()), generation, writer, now)
        self.open.append(one)
        self.entries += [Entry(key, value, now, one) for key, value in one.records]
        return one

    def end(self) -> int:
        """The end of what can be read."""
        for place, entry in enumerate(self.entries if self.open else ()):
            if entry.transaction in self.open:
                return place
        return len(self.entries)


class Registry:
    """The registry, as far as somebody has read it. ``own``: broker id of the sidecar that reads it; 0 for nobody."""

    def __init__(self, own: int = 0) -> None:
        self.suspicion = Suspicion(own, LOG)
        self.membership = Membership()
        self.place = 0

    def read(self, log: list[tuple[bytes, bytes | None, int]], end: int | None = None) -> None:
        self.membership.apply(log[self.place : end])
        self.place = len(log) if end is None else max(self.place, end)

    def content(self) -> RegistryContent:
        """With those that are dead for their silence, or because they have refused a connection."""
        return self.suspicion.judge(self.membership.content())


def boot_of(record: SidecarRecord | ReaderRecord) -> int:
    return int(record.boot_id) if isinstance(record, SidecarRecord) else record.started


@dataclass
class Task:
    """An effect that is being carried out."""

    effect: Effect
    stage: int = 0
    end: int = 0
    transaction: Transaction | None = None


class Process:
    """A sidecar or a reader from its start to its end."""

    def __init__(self, world: World, key: str, supported: dict[str, LevelRange], durable: bool = True) -> None:
        self.world, self.key, self.supported, self.durable = world, key, supported, durable
        self.boot = next(world.boots)
        self.applied = AppliedEpoch()
        self.paused = self.registered = self.settled = False
        self.registers = True
        """Whether no predecessor is registered in its place any more."""
        self.settled_at = -1
        """The epoch of the last committed record when it was settled."""
        self.node_id = int(key.removeprefix("sidecar/")) if key.startswith("sidecar/") else 0
        self.registry = Registry(self.node_id)
        self.place = 0
        self.target: int | None = None
        self.tasks: list[Task] = []
        self.generation = -1
        self.beat = -HEARTBEAT
        self.controller: FeatureController | None = None
        self.topic = TopicState()
        if self.node_id:
            boot_id = f"boot {self.boot}"
            self.controller = FeatureController(self.node_id, boot_id, supported=supported, min_levels=world.low)
            self.election = Election(LOG, 0, self.node_id)
            self.topic = self.controller.topic

    def levels(self) -> FleetLevels:
        """What it knows of the fleet's levels."""
        record = self.topic.finalized if self.settled else None
        return fleet_levels(self.supported, record)

    def apply(self) -> int:
        """Note what it follows, and its predecessor. Return the epoch that both have applied."""
        self.applied.update(self.levels(), AuditLevels())
        before = self.world.draining.get(self.key)
        if before is not None:
            self.applied.predecessor_applies(Applied(before.levels().epoch))
        else:
            self.applied.predecessor_ended(self.world.now / 1000)
            self.applied.update(self.levels(), AuditLevels())
        return self.applied.registered.epoch

    def participant(self) -> Participant:
        return Participant(self.key, "1.0", self.supported, running=True)

    def problems(self) -> dict[str, str]:
        return {name: text for name, text in self.levels().problems.items() if self.participant().takes_part(name)}

    def start_by(self, half: int) -> None:
        """Do one half of a start: register, then read the levels."""
        (self.heartbeat, self.read_features)[half]()

    def record(self, state: Literal["running", "stopped"], epoch: int = -1) -> bytes:
        """What it registers."""
        features = {name: SupportedRange(*levels) for name, levels in self.supported.items()}
        if self.controller is None:
            return encode(ReaderRecord(features, self.durable, state, started=self.boot))
        claim, boot = self.controller.claim, str(self.boot)
        return sidecar_record.encode(
            SidecarRecord(
                {}, (), "host", 1, boot, features=features, boot_id=boot, state=state, applied_epoch=epoch,
                holds={HOLD: claim} if claim else {},
            )
        )  # fmt: skip

    def heartbeat(self) -> None:
        """Write its record; the first time, measure the end of the features' log after it."""
        world = self.world
        if not self.registers:
            return
        epoch = self.apply()
        world.registry.append((self.key.encode(), self.record("running", epoch), world.now))
        self.beat = world.now
        self.registered = True
        if self.target is None:
            self.target = world.log.end()

    def read_features(self, limit: int | None = None) -> None:
        log, end = self.world.log, self.world.log.end()
        if limit is not None:
            end = min(end, self.place + limit)
        read = []
        while self.place < end:
            entry = log.entries[self.place]
            self.place += 1
            if entry.transaction is None or entry.transaction.state != "aborted":
                read.append((entry.key, entry.value, entry.at))
        if self.controller:
            self.take(self.controller.records(read, self.world.now))
        else:
            for record in read:
                self.topic.apply(*record)
        if self.target is not None and self.place >= self.target and not self.settled:
            record = self.world.history.finalized
            self.settled, self.settled_at = True, record.epoch if record else 0

    def read_registry(self, limit: int | None = None) -> None:
        end = len(self.world.registry)
        self.registry.read(self.world.registry, end if limit is None else min(end, self.registry.place + limit))
        self.registry.suspicion.read(self.registry.content(), self.world.now)
        self.participants_changed()

    def participants_changed(self) -> None:
        if self.controller:
            self.take(self.controller.participants_changed(participants_of(self.registry.content()), self.world.now))

    def elect(self) -> None:
        """Dial who is late, and ask the election, as often as the executor does."""
        assert self.controller
        for late in self.registry.suspicion.late(self.registry.membership.content(), self.world.now):
            if f"sidecar/{late.node_id}" not in self.world.processes:
                self.registry.suspicion.refused(late)
                self.participants_changed()
        claims = claims_of(self.registry.content(), self.node_id, str(self.boot))
        decision = self.election.decide(self.world.leader, claims, self.world.now)
        if decision is Decision.TAKE:
            self.take(self.controller.hold(self.world.now))
        elif decision is Decision.LET_GO:
            self.take(self.controller.lost("the election says so", self.world.now))
        self.take(self.controller.tick(self.world.now))

    def hold(self) -> None:
        """Become the controller, whatever the election says."""
        if self.controller and self.controller.state is ControllerState.AWAY:
            self.election.held = True
            self.take(self.controller.hold(self.world.now))

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, CloseProducer):
                self.tasks.clear()
                self.election.lost(self.world.now)
            elif isinstance(effect, FencePredecessor | WriteTransaction | ReadRegistry):
                self.tasks.append(Task(effect))

    def work(self, which: int = 0, outcome: str = "done") -> bool:
        """Do the next stage of a task; return whether anything was done."""
        if not self.tasks or self.controller is None:
            return False
        task = self.tasks[which % len(self.tasks)]
        if isinstance(task.effect, FencePredecessor):
            return self._fence(task, self.controller)
        if isinstance(task.effect, ReadRegistry):
            return self._barrier(task, self.controller)
        assert isinstance(task.effect, WriteTransaction)
        return self._write(task, task.effect, self.controller, outcome)

    def _fence(self, task: Task, controller: FeatureController) -> bool:
        assert isinstance(task.effect, FencePredecessor)
        if task.stage == 0:
            self.generation = self.world.log.fence()
            task.stage, task.end = 1, self.world.log.end()
        elif self.place < task.end:
            return False
        else:
            self.tasks.remove(task)
            self.take(controller.opened(task.effect.number, self.world.now))
        return True

    def _barrier(self, task: Task, controller: FeatureController) -> bool:
        assert isinstance(task.effect, ReadRegistry)
        if task.stage == 0:
            task.stage, task.end = 1, len(self.world.registry)
            self.world.barrier()
        elif self.registry.place < task.end:
            return False
        else:
            self.tasks.remove(task)
            found = participants_of(self.registry.content())
            self.take(controller.barrier_passed(task.effect.number, found, self.world.now))
        return True

    def _write(self, task: Task, effect: WriteTransaction, controller: FeatureController, outcome: str) -> bool:
        world, log = self.world, self.world.log
        if self.generation != log.generation:
            self.tasks.remove(task)
            self.take(controller.lost("fenced", world.now))
        elif task.stage == 0 and outcome == "failed":
            self.tasks.remove(task)
            self.take(controller.write_failed(effect.number, world.now))
        elif task.stage == 0:
            task.transaction = log.begin(self.generation, dict(effect.records), (self.key, self.boot), world.now)
            task.stage = 1
        elif task.stage == 1:
            assert task.transaction
            task.stage = 2
            task.transaction.state = "aborted" if outcome == "failed" else "committed"
            if outcome != "failed":
                invariants.committed(world, task.transaction)
            if outcome != "done":  # failed, or committed without the producer's knowledge
                log.finish("aborted")
                self.tasks.remove(task)
                self.take(controller.write_failed(effect.number, world.now))
        else:
            self.tasks.remove(task)
            self.take(controller.written(effect.number, world.now))
        return True


class Request(NamedTuple):
    """A proposal, and who waits for its outcome until when."""

    key: str
    boot: int
    deadline: int
    proposal: UpdateProposal


class World:
    """Two logs, a clock, and all processes by key."""

    def __init__(self, low: dict[str, int] | None = None) -> None:
        self.low = low or {}
        self.now = 1_000_000
        self.leader: int | None = None
        self.log = Log()
        self.registry: list[tuple[bytes, bytes | None, int]] = []
        self.processes: dict[str, Process] = {}
        self.successors: dict[str, Process] = {}
        """Second runs of a sidecar that have not taken over yet."""
        self.draining: dict[str, Process] = {}
        """Runs from which another one has taken over. They follow the levels, and that is all."""
        self.boots: Iterator[int] = count(1)
        self.requests: dict[str, Request] = {}
        self.proposals: dict[str, UpdateProposal] = {}
        self.history = invariants.History()

    # What happens

    def start(self, key: str, supported: dict[str, LevelRange], durable: bool = True) -> None:
        self.processes[key] = Process(self, key, supported, durable)
        self.draining.pop(key, None)

    def succeed(self, key: str, supported: dict[str, LevelRange]) -> None:
        """Start a second run of a sidecar, which is to take over."""
        self.successors[key] = Process(self, key, supported)
        self.successors[key].applied = AppliedEpoch(inherits=True)
        self.successors[key].registers = False

    def take_over(self, key: str) -> None:
        """Let the second run of a sidecar serve its clients. The first one, if it still runs, drains."""
        self.draining.pop(key, None)
        before, successor = self.processes.get(key), self.successors.pop(key)
        if before is not None:
            assert before.controller
            before.take(before.controller.lost("the sidecar ends", self.now))
            self.draining[key] = before
        self.processes[key] = successor
        successor.registers = True

    def crash(self, key: str) -> None:
        self.processes.pop(key, None)
        self.draining.pop(key, None)

    def stop(self, key: str) -> None:
        one = self.processes.pop(key)
        if one.registered:
            self.registry.append((key.encode(), one.record("stopped"), self.now))

    def forget(self, key: str) -> None:
        """Delete the record of one that has no process."""
        if key not in self.processes:
            self.registry.append((key.encode(), None, self.now))

    def propose(self, key: str, updates: list[FeatureUpdate], timeout: int, validate_only: bool, version: int) -> None:
        asker = self.processes[key]
        update = f"{len(self.proposals):032x}"
        proposal = UpdateProposal(1, f"boot {asker.boot}", timeout, tuple(updates), validate_only, version)
        self.proposals[update] = proposal
        self.requests[update] = Request(key, asker.boot, self.now + wait_ms(timeout), proposal)
        self.log.entries.append(Entry(update_key(update), encode(proposal), self.now, None))

    def advance(self, time: int) -> None:
        self.now += time
        if any(self.now - one.begun >= TRANSACTION_TIMEOUT and one.state == "open" for one in self.log.open):
            self.log.fence()

    def answer(self) -> None:
        """All that wait for an outcome look for it; whoever is answered 0 relies on it."""
        for update, request in list(self.requests.items()):
            asker = self.processes.get(request.key)
            if asker is None or asker.boot != request.boot:
                del self.requests[update]
                continue
            known = asker.topic.outcomes.get(update)
            if known is not None:
                topic = asker.topic
                last = topic.finalized.epoch if topic.present and topic.finalized else -1
                outcome = known.outcome
                if outcome.code == 0 and not unapplied(
                    asker.registry.membership.content(), outcome.waits_for, outcome.epoch, last
                ):
                    invariants.in_force(self, known.outcome)
                    del self.requests[update]
            if self.now >= request.deadline:
                self.requests.pop(update, None)

    def calm(self, rounds: int = 50) -> None:
        """For as many seconds, everything that runs does all that it can."""
        self.log.finish("open")
        for _ in range(rounds):
            self.advance(1_000)
            for one in [*self.processes.values(), *self.successors.values()]:
                if not one.paused:
                    self.run(one)
            for one in self.draining.values():
                one.read_features()
            self.answer()

    def run(self, one: Process) -> None:
        """Let a process do everything that it can do now."""
        for _ in range(20):
            if self.now - one.beat >= HEARTBEAT or (
                one.controller and one.settled and one.levels().epoch != self.epoch_of(one)
            ):
                one.heartbeat()
            one.read_features()
            one.read_registry()
            if one.controller:
                one.elect()
            done = [one.work(which) for which in range(len(one.tasks))]
            if not any(done):
                return
            self.log.finish("open")

    def epoch_of(self, one: Process) -> int:
        known = one.registry.membership.content().sidecars.get(one.node_id)
        return known.record.applied_epoch if known and boot_of(known.record) == one.boot else -1

    # What must hold

    def runs(self) -> list[Process]:
        return [*self.processes.values(), *self.successors.values(), *self.draining.values()]

    def known(self, end: int | None = None) -> RegistryContent:
        """The registry up to ``end``."""
        everything = Registry()
        everything.read(self.registry, end)
        return everything.content()

    def barrier(self) -> None:
        known = self.known()
        members = {f"sidecar/{node_id}": one for node_id, one in known.sidecars.items()} | {
            f"reader/{name}": one for name, one in known.readers.items()
        }
        self.history.ran = {
            key: boot_of(one.record) for key, one in members.items() if one.alive and one.record.features
        }
