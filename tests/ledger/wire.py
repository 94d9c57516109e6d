"""How sidecars report what happened: records of the audit topics, with losses, repetitions, delays and poison."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from observers.account_events import GapEvent, StatusEvent
from observers.event import Envelope, encoder
from tests.ledger import events
from tests.ledger.acts import HOUR, MINUTE, SECOND, Act, Call, Change, Limited, Run
from tests.ledger.world import World
from tests.spark.envelopes import POISON

PARTITIONS = 3
"""Of each audit topic."""

STATUS = 30 * SECOND
"""Three times as rare as a sidecar emits them: they would be most of the events."""

SLICE = 2 * MINUTE
"""The time that an envelope collects events for; as they are 200 at most."""

ON_ITS_WAY = 45 * SECOND
"""What a killed sidecar had not delivered."""

REPEATED, POISONED, DELAYED = 50, 100, 37
"""Each how-manyth record is there twice, is followed by poison, is written hours later."""


@dataclass(frozen=True)
class Emission:
    """One event, and what it is about. ``make``: of the number of the event."""

    at: int
    make: Callable[[int], msgspec.Struct]
    acts: tuple[Act, ...] = ()


@dataclass(frozen=True)
class Record:
    """One record of an audit topic, in the order of its partition."""

    partition: int
    offset: int
    at: int
    """Its timestamp."""
    value: bytes | None
    poison: tuple[str, str | None] | None = None
    """Reason and detail."""
    repeated: bool = False
    """Whether it has been there before."""


@dataclass
class Emitted:
    """All that was emitted, and what it was about."""

    acts: list[Act] = field(default_factory=list)
    envelopes: list[tuple[Run, Envelope]] = field(default_factory=list)
    topics: dict[str, list[Record]] = field(default_factory=dict)
    """Records of the audit topic of each cluster, in the order in which they were written."""


def emit(world: World) -> Emitted:
    result = Emitted()
    gaps: dict[tuple[str, int], list[GapEvent]] = {}
    for run in world.runs:
        number = _Numbers(run, gaps.pop((run.cluster, run.broker), []))
        number.all(sorted(_emissions(world, run), key=lambda one: one.at))
        result.acts += number.acts
        result.envelopes += [(run, envelope) for envelope in number.envelopes]
        gaps[run.cluster, run.broker] = number.left
    for cluster in dict.fromkeys(run.cluster for run in world.runs):
        mine = [envelope for run, envelope in result.envelopes if run.cluster == cluster]
        result.topics[cluster] = list(_written(mine, first_poison=len(result.topics) * 5))
    return result


def _emissions(world: World, run: Run) -> Iterator[Emission]:
    calls = [call for visit in world.visits if visit.run is run for call in visit.calls]
    rolled_up = [call for call in calls if run.rolls_up and not call.stands_alone]
    for at, event, group in events.rollups(rolled_up):
        yield Emission(min(at, run.ended - 2 * SECOND), _numbered(event), tuple(group))
    for call in calls:
        if not run.rolls_up or call.stands_alone:
            at = min(call.at + call.latency_us, run.ended - 2 * SECOND)
            yield Emission(at, _numbered(events.request(call)), (call,))
    for change in world.changes:
        if change.visit.run is run:
            yield Emission(change.at, _numbered(events.connection(change)), (change,))
    for limited in world.limits:
        if limited.run is run:
            yield Emission(limited.at + SECOND, _numbered(events.throttle(limited)), (limited,))
    for listing in world.listings:
        if listing.run is run:
            *first, last = events.inventory(listing)
            yield from (Emission(listing.at, _numbered(event)) for event in first)
            yield Emission(listing.at, _numbered(last), (listing,))
    for member in world.memberships:
        if member.run is run:
            yield Emission(member.last + SECOND, _numbered(events.membership(member)), (member,))
    for ends in world.ends:
        if ends.run is run:
            yield Emission(ends.at, _numbered(events.ends(ends)), (ends,))


def _numbered(event: msgspec.Struct) -> Callable[[int], msgspec.Struct]:
    return lambda seq: msgspec.structs.replace(event, seq=seq)


class _Numbers:
    """Gives the events of one run their numbers, and puts them into envelopes."""

    def __init__(self, run: Run, former: Iterable[GapEvent]) -> None:
        self.run = run
        self.acts: list[Act] = []
        self.envelopes: list[Envelope] = []
        self.left: list[GapEvent] = []
        """What the next run has to emit."""
        self._former = list(former)
        self._seq = self._seen = self._waiting = 0
        self._dropped: dict[str, int] = {}
        self._lost: tuple[str, int, int] | None = None
        self._spooled = 0
        self._held: list[tuple[int, msgspec.Struct]] = []

    def all(self, emissions: list[Emission]) -> None:
        run = self.run
        waiting = [call.at for one in emissions for call in one.acts if isinstance(call, Call)] if run.rolls_up else []
        beats = range(run.started + STATUS, run.ended if run.killed else run.ended + 1, STATUS)
        timed = [*emissions, *[Emission(at, self._status(at, waiting)) for at in beats if at < run.ended]]
        timed += [Emission(run.started, _numbered(gap)) for gap in self._former]
        timed.sort(key=lambda one: one.at)
        for one in timed:
            self._tell(one)
        if not run.killed and not run.lives:
            self._tell(Emission(run.ended, self._status(run.ended, [], last=True)))
        self._flush()
        if self._lost is not None:
            reason, first, last = self._lost
            self.left.append(GapEvent(0, reason, run.boot, first, last))

    def _status(self, at: int, waiting: list[int], *, last: bool = False) -> Callable[[int], msgspec.Struct]:
        def make(seq: int) -> StatusEvent:
            lost = sum(self._dropped.values())
            statuses = (at - self.run.started) // STATUS
            hidden, left_out = (
                {name: count * statuses for name, count in counts.items()}
                for counts in (self.run.hides, self.run.leaves_out)
            )
            return StatusEvent(
                seq=seq, ts=at, started_at=self.run.started, seen=self._seen + sum(hidden.values()), emitted=seq - 1,
                delivered=seq - 1 - lost - self._spooled,
                waiting=0 if last else max(0, sum(one <= at for one in waiting) - self._waiting),
                hidden=sum(hidden.values()), hidden_by=hidden, partly_hidden=max(left_out.values(), default=0),
                partly_hidden_by=left_out, spooled=self._spooled, dropped=dict(self._dropped), last=last,
            )  # fmt: skip

        return make

    def _tell(self, one: Emission) -> None:
        reason = self._reason(one.at)
        if self._lost is not None and reason != self._lost[0]:
            self._flush()
            reported, first, last = self._lost
            self._lost = None
            self._take(one.at, GapEvent(self._next(), reported, self.run.boot, first, last))
        event = one.make(self._next())
        self._seen += sum(isinstance(act, Call | Change | Limited) for act in one.acts)
        self._waiting += sum(isinstance(act, Call) for act in one.acts)
        if reason:
            self._flush()
            self._lost = (reason, self._lost[1] if self._lost else self._seq, self._seq)
            self._dropped[reason] = self._dropped.get(reason, 0) + 1
            return
        self.acts += one.acts
        self._take(one.at, event)

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    def _reason(self, at: int) -> str:
        run = self.run
        if run.killed and at >= run.ended - ON_ITS_WAY:
            return "killed"
        return "queue_full" if run.overrun and run.overrun[0] <= at < run.overrun[1] else ""

    def _take(self, at: int, event: msgspec.Struct) -> None:
        if self._held and (at - self._held[0][0] > SLICE or len(self._held) == 200):
            self._flush()
        self._held.append((at, event))
        outage = self.run.outage
        self._spooled = self._spooled + 1 if outage and outage[0] <= at < outage[1] else 0

    def _flush(self) -> None:
        if not self._held:
            return
        run, at = self.run, self._held[-1][0]
        if run.outage and run.outage[0] <= at < run.outage[1]:
            at = run.outage[1] + len(self.envelopes) * 1000
        held = [event for _, event in self._held]
        self._held = []
        self.envelopes.append(
            Envelope(
                schema_level=2 if run.rolls_up else 1, cluster_id=run.cluster, broker_id=run.broker, boot_id=run.boot,
                sidecar_version="0.1.0",
                first_seq=held[0].seq,  # type: ignore[attr-defined]
                last_seq=held[-1].seq,  # type: ignore[attr-defined]
                dropped=sum(self._dropped.values()),
                sent_at=at + SECOND,
                events=held,  # type: ignore[arg-type]
            )
        )  # fmt: skip


def _written(envelopes: Iterable[Envelope], first_poison: int) -> Iterator[Record]:
    """The records of one topic in the order in which they are written."""
    poison = list(POISON.values())
    written: list[tuple[int, bytes | None, tuple[str, str | None] | None, bool]] = []
    for number, envelope in enumerate(sorted(envelopes, key=lambda one: (one.sent_at, one.broker_id)), 1):
        value = encoder.encode(envelope)
        at = envelope.sent_at + (3 * HOUR if number % DELAYED == 0 else 0)
        written.append((at, value, None, False))
        if number % REPEATED == 0:  # at once, or hours later, in either case perhaps in another partition
            written.append((at + (1 if number % (2 * REPEATED) else 5 * HOUR), value, None, True))
        if number % POISONED == 0:
            bad, why, detail = poison[(number // POISONED * 11 + first_poison) % len(poison)]
            written.append((at + 2, bad, (why, detail), False))
    offsets = [0] * PARTITIONS
    for number, (at, content, reason, repeated) in enumerate(sorted(written, key=lambda one: one[0])):
        partition = number * 7 % PARTITIONS
        yield Record(partition, offsets[partition], at, content, reason, repeated)
        offsets[partition] += 1
