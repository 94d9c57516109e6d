"""How sidecars report what happened: records of the audit topics, with losses, repetitions, delays and poison."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from observers.account_events import GapEvent, StatusEvent
from observers.event import (
    ROLLUP_BUCKETS,
    ConnectionEvent,
    Envelope,
    PrincipalSource,
    RequestEvent,
    RollupEvent,
    RollupTopic,
    ThrottleEvent,
    TopicPartition,
    encoder,
)
from tests.ledger.acts import API_KEYS, HOUR, MINUTE, SECOND, Act, Call, Change, Run, Visit, World
from tests.spark.envelopes import POISON

INTERVAL = 20 * SECOND
"""After which rollups are emitted."""

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
    partition: int
    offset: int
    at: int
    value: bytes | None


@dataclass
class Emitted:
    acts: list[Act] = field(default_factory=list)
    envelopes: list[Envelope] = field(default_factory=list)
    topics: dict[str, list[Record]] = field(default_factory=dict)
    """Records of the audit topic of each cluster, in the order in which they were written."""


def emit(world: World) -> Emitted:
    result = Emitted()
    gaps: dict[tuple[str, int], list[GapEvent]] = {}
    for run in world.runs:
        number = _Numbers(run, gaps.pop((run.cluster, run.broker), []))
        number.all(sorted(_emissions(world, run), key=lambda one: one.at))
        result.acts += number.acts
        result.envelopes += number.envelopes
        gaps[run.cluster, run.broker] = number.left
    for cluster in dict.fromkeys(run.cluster for run in world.runs):
        mine = [envelope for envelope in result.envelopes if envelope.cluster_id == cluster]
        result.topics[cluster] = list(_written(mine, first_poison=len(result.topics) * 5))
    return result


def _emissions(world: World, run: Run) -> Iterator[Emission]:
    calls = [call for visit in world.visits if visit.run is run for call in visit.calls]
    rolled_up = [call for call in calls if run.rolls_up and not call.stands_alone]
    for at, event, group in rollups(rolled_up):
        yield Emission(min(at, run.ended - 2 * SECOND), _numbered(event), tuple(group))
    for call in calls:
        if not run.rolls_up or call.stands_alone:
            at = min(call.at + call.latency_us, run.ended - 2 * SECOND)
            yield Emission(at, _numbered(request(call)), (call,))
    for change in world.changes:
        if change.visit.run is run:
            yield Emission(change.at, _numbered(connection(change)), (change,))
    for told in world.told:
        if told.run is run:
            yield Emission(told.at, _numbered(told.event), (told,))


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
        self._seen += sum(
            isinstance(act, Call | Change) or isinstance(getattr(act, "event", None), ThrottleEvent) for act in one.acts
        )
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
    poison = [value for value, *_ in POISON.values()]
    written: list[tuple[int, bytes | None]] = []
    for number, envelope in enumerate(sorted(envelopes, key=lambda one: (one.sent_at, one.broker_id)), 1):
        value = encoder.encode(envelope)
        at = envelope.sent_at + (3 * HOUR if number % DELAYED == 0 else 0)
        written.append((at, value))
        if number % REPEATED == 0:  # at once, or hours later, in either case perhaps in another partition
            written.append((at + (1 if number % (2 * REPEATED) else 5 * HOUR), value))
        if number % POISONED == 0:
            written.append((at + 2, poison[(number // POISONED * 11 + first_poison) % len(poison)]))
    offsets = [0] * PARTITIONS
    for number, (at, content) in enumerate(sorted(written, key=lambda one: one[0])):
        partition = number * 7 % PARTITIONS
        yield Record(partition, offsets[partition], at, content)
        offsets[partition] += 1


def request(call: Call) -> RequestEvent:
    name, version = call.visit.client.software or (None, None)
    return RequestEvent(
        seq=0, listener=call.visit.client.listener, connection_id=call.visit.id,
        correlation_id=call.visit.calls.index(call) + 1, api_key=API_KEYS[call.api], api=call.api,
        api_version=call.version, principal=call.visit.client.principal, client_ip=call.visit.client.ip,
        ts_request=call.at, latency_us=call.latency_us, request_bytes=call.request_bytes,
        response_bytes=call.response_bytes,
        outcome=call.outcome,  # type: ignore[arg-type]
        decode="full", client_id=call.visit.client.client_id, client_software_name=name,
        client_software_version=version, throttle_ms=call.throttle_ms, max_wait_ms=call.max_wait_ms, acks=call.acks,
        error_code=call.error,
        topics=tuple(
            TopicPartition(
                topic=part.topic, partition=part.partition, bytes=part.bytes, records=part.records,
                error_code=part.error, producer_id=part.producer[0], producer_epoch=part.producer[1],
                base_sequence=part.sequence, base_offset=part.offset,
            )
            for part in call.parts
        ),
        upstream_us=call.upstream_us, principal_source=_source(call.visit), polled=call.polled, muted_us=call.muted_us,
        item_failures=call.failures, operation=call.operation, resources=call.about, resource_count=len(call.about),
        validate_only=call.validate_only,
    )  # fmt: skip


def rollups(calls: Iterable[Call]) -> Iterator[tuple[int, RollupEvent, list[Call]]]:
    """When each rollup is emitted, the rollup, and the calls in it."""
    groups: dict[object, list[Call]] = defaultdict(list)
    for call in calls:
        ends = call.at + call.latency_us
        client = call.visit.client
        groups[ends // INTERVAL, call.at // MINUTE, call.api, call.version, client].append(call)
    for group in groups.values():
        ends = group[0].at + group[0].latency_us
        yield (ends // INTERVAL + 1) * INTERVAL, _rollup(group), group


def _rollup(calls: Sequence[Call]) -> RollupEvent:
    first, client = calls[0], calls[0].visit.client
    name, version = client.software or (None, None)
    topics = dict.fromkeys(topic for call in calls for topic in call.topics)
    latencies, service = _counts(calls, "latency_us"), _counts(calls, "service_us")
    return RollupEvent(
        seq=0, minute=first.at // MINUTE * MINUTE, listener=client.listener, api_key=API_KEYS[first.api], api=first.api,
        principal=client.principal, client_ip=client.ip, requests=len(calls),
        request_bytes=sum(call.request_bytes for call in calls), client_id=client.client_id,
        principal_source=_source(first.visit), api_version=first.version, client_software_name=name,
        client_software_version=version, response_bytes=sum(call.response_bytes for call in calls),
        errors=sum(call.failed for call in calls), retriable=sum(call.retriable for call in calls),
        protocol=sum(call.protocol for call in calls),
        connection_lost=sum(call.outcome == "connection_lost" for call in calls),
        throttle_ms=sum(call.throttle_ms for call in calls), idle=sum(call.idle for call in calls), latencies=latencies,
        upstream_latencies=_counts(calls, "upstream_us"), service_latencies=() if service == latencies else service,
        per_topic=tuple(_of_topic(topic, calls) for topic in topics),
        polled=tuple(dict.fromkeys(topic for call in calls for topic in call.polled)),
    )  # fmt: skip


def _of_topic(topic: str, calls: Sequence[Call]) -> RollupTopic:
    touching = [call for call in calls if topic in call.topics]
    reported = RollupTopic(topic, topic_requests=len(touching), latencies=_counts(touching, "latency_us"))
    service = _counts(touching, "service_us")
    reported.service_latencies = () if service == reported.latencies else service
    for call in touching:
        parts = [part for part in call.parts if part.topic == topic]
        reported.errors += any(part.error for part in parts)
        for part in parts:
            if part.error and call.api == "Produce":
                reported.rejected_records += part.records
                reported.rejected_bytes += part.bytes
            elif not part.error and call.answered:
                reported.records += part.records
                reported.bytes += part.bytes
            elif not part.error and call.api == "Produce":
                reported.unconfirmed_records += part.records
                reported.unconfirmed_bytes += part.bytes
    return reported


def _counts(calls: Iterable[Call], of: str) -> tuple[int, ...]:
    counts = [0] * 40
    for call in calls:
        if call.answered and not call.idle:
            counts[bisect_left(ROLLUP_BUCKETS, getattr(call, of))] += 1
    while counts and not counts[-1]:
        counts.pop()
    return tuple(counts)


def connection(change: Change) -> ConnectionEvent:
    visit, client = change.visit, change.visit.client
    event = ConnectionEvent(
        seq=0,
        change=change.what,  # type: ignore[arg-type]
        ts=change.at, listener=client.listener, connection_id=visit.id,
        principal="User:ANONYMOUS" if change.what == "opened" else client.principal, client_ip=client.ip,
        client_port=visit.port, principal_source="anonymous" if client.mechanism is None else "unauthenticated",
    )  # fmt: skip
    if change.what != "opened":
        event.tls_version, event.tls_cipher = client.tls
    if change.what in ("opened", "authentication_failed"):
        event.error_code = 58 * (change.what != "opened")
        return event
    event.principal_source = _source(visit)
    event.sasl_mechanism = client.mechanism
    if change.what == "closed":
        if client.software and visit.calls:
            event.client_software_name, event.client_software_version = client.software
        event.client_id = client.client_id if visit.calls else None
        event.cause = "client"
        event.duration_ms = (change.at - visit.opened) // 1000
        event.requests = len(visit.calls)
        event.received_bytes = sum(call.request_bytes for call in visit.calls)
        event.sent_bytes = sum(call.response_bytes for call in visit.calls)
    return event


def _source(visit: Visit) -> PrincipalSource:
    return "anonymous" if visit.client.mechanism is None else "sasl"
