"""Events are encoded as msgspec does, many at once as one at a time, and say what their exchanges have; rollups say
what events say; and whatever levels follow each other, every request is recorded once, or lost and counted."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from observers.audit_writer import RequestEventEncoder
from observers.event import ROLLUP_BUCKETS, ROLLUP_LEVEL, RequestEvent, RollupEvent, TopicPartition, encoder
from observers.event_blocks import EncodedEvents, split_events
from observers.numbered_events import epoch_us
from observers.request_events import MAX_EVENT_BYTES, UNKNOWN_ERROR_CODE
from observers.rollup_writer import RollupAggregator
from observers.topic_names import TopicNames
from proxy.compiled.exchange import Exchange
from proxy.core.exchange import (
    AnsweredPartition,
    Connection,
    ItemErrors,
    ProducedPartition,
    ProduceRequest,
    ProduceResponse,
    RecordSet,
)
from proxy.core.names import clip_optional
from proxy.core.response_errors import PROTOCOL, RETRIABLE
from tests.property.audited import API_NAMES, WALL, batches, surroundings
from tests.unit.observers import samples
from tests.unit.observers.audit_levels import Audit, check_records, fake_producers, levels_of, without_pump

COUNTS = ("hidden", "not_encodable", "too_large", "failed")


def events_of(made: EncodedEvents) -> list[RequestEvent]:
    """The events of all chunks, which are numbered as the chunks say and encoded as msgspec does."""
    found = []
    for chunk in made.chunks:
        written = split_events(chunk.json)
        events = [msgspec.json.decode(one, type=RequestEvent) for one in written]
        assert [encoder.encode(event) for event in events] == written
        assert [event.seq for event in events] == list(range(chunk.first, chunk.first + chunk.count))
        found += events
    return found


def check_event(event: RequestEvent, of: Exchange, names: TopicNames) -> None:
    """What an event takes from its exchange alone."""
    client, request, response = of.connection, of.request, of.response
    for same in ("correlation_id", "api_key", "api_version", "request_bytes", "response_bytes", "outcome", "decode"):
        assert getattr(event, same) == getattr(of, same)
    for same in ("listener", "client_ip", "principal_source"):
        assert getattr(event, same) == getattr(client, same)
    for clipped in ("principal", "client_software_name", "client_software_version"):
        assert getattr(event, clipped) == clip_optional(getattr(client, clipped))
    assert (event.connection_id, event.client_id) == (client.id, clip_optional(of.client_id))
    assert (event.synthesized, event.api) == (of.synthesized, API_NAMES.get(of.api_key, f"ApiKey({of.api_key})"))
    assert event.ts_request == epoch_us(of.received_at, WALL)
    spans = [of.answered_at - of.received_at]
    spans.append(of.responded_at - of.forwarded_at if of.responded_at and of.forwarded_at else 0.0)
    answered = of.outcome == "answered"
    assert [event.latency_us, event.upstream_us] == [max(0, round(one * 1e6)) * answered for one in spans]
    fetches = of.api_key in (1, 78)
    assert event.throttle_ms == (of.throttle_ms if response is None else response.throttle_ms)
    assert event.error_code == (response.error_code if fetches and response is not None else of.error_code)
    items = of.item_errors or ItemErrors((), 0, 0, 0)
    counted = (items.failures, items.retriable, items.protocol)
    assert (event.item_failures, event.item_retriable, event.item_protocol) == counted
    assert event.max_wait_ms == (request.max_wait_ms if fetches and request is not None else 0)
    expected = []
    if of.api_key == 0 and request is not None:
        transaction = request.transactional_id
        text = None if transaction is None else clip_optional(transaction.decode("utf-8", "replace"))
        assert (event.acks, event.transactional_id) == (request.acks, text)
        answers = {(one.topic, one.partition): one for one in (() if response is None else response.partitions)}
        for sent in request.partitions:
            missing = AnsweredPartition(sent.topic, sent.partition, UNKNOWN_ERROR_CODE if answered else 0, -1)
            answer, sums = answers.get((sent.topic, sent.partition), missing), sent.records
            name, topic_id = names.label_of(sent.topic, request.topics_are_ids)
            expected.append(
                TopicPartition(
                    name, sent.partition, topic_id, sums.size, sums.records, answer.error_code, sums.producer_id,
                    sums.producer_epoch, sums.base_sequence, answer.base_offset, sums.claimed,
                )
            )  # fmt: skip
    elif fetches and response is not None:
        consumed = iter(event.topics)
        for got in response.partitions:
            name, topic_id = names.label_of(got.topic, response.topics_are_ids)
            if name != "audit" and (got.records.size or got.error_code):
                one = next(consumed)  # how many records: tests/unit/observers/test_fetch_sessions.py
                expected.append(
                    TopicPartition(
                        name, got.partition, topic_id, got.records.size, one.records, got.error_code,
                        base_offset=got.records.base_offset, claimed=got.records.claimed, upper_bound=one.upper_bound,
                    )
                )  # fmt: skip
    assert event.topics == tuple(one for one in expected if one.topic != "audit")


@pytest.mark.promise("audit-format.md", "Encoded audit events are byte for byte what their definition gives.")
@given(batches(), st.sampled_from([0, 700, 3000, MAX_EVENT_BYTES]))
def test_events_are_those_of_the_definition(reported: list[list[Exchange]], max_event: int) -> None:
    together, alone = (RequestEventEncoder(API_NAMES, *surroundings(), max_event=max_event) for _ in range(2))
    names, _ = surroundings()
    first = 1
    for exchanges in reported:
        found, counts, last = list[RequestEvent](), dict.fromkeys(COUNTS, 0), first - 1
        for exchange in exchanges:
            made = alone.encode_exchanges([exchange], last + 1, WALL)
            events, last = events_of(made), made.last
            found += events
            counts = {name: count + getattr(made, name) for name, count in counts.items()}
            for event in events:
                check_event(event, exchange, names)
        made = together.encode_exchanges(exchanges, first, WALL)
        assert events_of(made) == found
        assert (made.last, {name: getattr(made, name) for name in COUNTS}) == (last, counts)
        assert len(found) + counts["not_encodable"] + counts["too_large"] == last - first + 1
        first = last + 1


def test_chunks_of_many_events_hold_what_they_say() -> None:
    connections = [Connection(f"c{n}", "CLIENT", "10.0.0.7", 1, 1.0, f"User:{n}") for n in range(1500)]
    topics = [f"topic-{n}".encode() for n in range(700)]
    exchanges = []
    for n, connection in enumerate(connections):
        sent = tuple(
            ProducedPartition(topics[(n + part) % 700], part, RecordSet(10, 1, 1)) for part in range(n % 11 * (n % 7))
        )
        answered = tuple(AnsweredPartition(part.topic, part.partition, 0, 7 * n) for part in sent[::-1])
        request, response = ProduceRequest(1, 1000, None, sent, False), ProduceResponse(0, answered, False)
        exchanges.append(Exchange(connection, 0, 9, n, None, 1.0, 50, 1.5, 50, "answered", "full", request, response))
    names, audit_filter = surroundings()
    events = events_of(RequestEventEncoder(API_NAMES, names, audit_filter).encode_exchanges(exchanges, 1, WALL))
    assert len(events) == len(exchanges)
    for event, exchange in zip(events, exchanges, strict=True):
        check_event(event, exchange, names)


# ---- rollups ---------------------------------------------------------------------------------------------------------

BATCHES = batches(largest=2**31, besides=(b"audit", bytes([1]) * 16))
"""An event may lack the excluded topic of an error, which a rollup never has: that counts for the event alone."""

CLASSES = ("failure", "retriable", "protocol")
"""Classes of errors, the worst first."""
ITEMS = {"failure": "item_failures", "retriable": "item_retriable", "protocol": "item_protocol"}
SEVERE = ("errors", "retriable", "protocol")

Rows = dict[tuple[Any, ...], Counter[str]]


def gathered(observed: list[list[Exchange]], **bounds: int) -> tuple[list[RollupEvent], Counter[str]]:
    """Every rollup of ``observed``, taken when one is full and at the end; and what became of the other exchanges."""
    names, audit_filter = surroundings()
    rollup = RollupAggregator(API_NAMES, names, audit_filter, **bounds)
    events, others = [], Counter[str]()
    for exchanges in observed:
        at = 0
        while at < len(exchanges):
            added = rollup.add_exchanges(exchanges, at, WALL)
            at = added.until
            others.update(hidden=added.hidden, failed=added.failed, not_encodable=added.not_encodable)
            if rollup.full:
                before = rollup.requests
                taken = rollup.drain()
                assert sum(event.requests for event in taken) == before
                assert (rollup.requests, rollup.full) == (0, False)
                events += taken
    others.update(partly_hidden=audit_filter.partly_hidden, **audit_filter.partly_hidden_by())
    return events + rollup.drain(), others


def traffic_of_events(observed: list[list[Exchange]]) -> tuple[Rows, Counter[str]]:
    """What the table ``traffic`` sums up of single events; see spark_jobs/tables/traffic.py."""
    names, audit_filter = surroundings()
    translator = RequestEventEncoder(API_NAMES, names, audit_filter, max_event=2**60)
    rows: Rows = defaultdict(Counter)
    others = Counter[str]()
    for exchanges in observed:
        made = translator.encode_exchanges(exchanges, 1, WALL)
        others.update(hidden=made.hidden, failed=made.failed, not_encodable=made.not_encodable)
        for chunk in made.chunks:
            for event in msgspec.json.decode(b"[%b]" % chunk.json):
                add_event(rows, event)
    others.update(partly_hidden=audit_filter.partly_hidden, **audit_filter.partly_hidden_by())
    return rows, others


def add_event(rows: Rows, event: dict[str, Any]) -> None:
    key = (
        event["ts_request"] // 60_000_000, event["listener"], event["api"], event["api_version"], event["principal"],
        event.get("principal_source", "anonymous"), event.get("client_id"), event["client_ip"],
        event.get("client_software_name"), event.get("client_software_version"),
    )  # fmt: skip
    outcome, produced, parts = event.get("outcome", "answered"), event["api_key"] == 0, event.get("topics", [])
    failed = event.get("error_code", 0) != 0
    classes = {class_of(event["api_key"], part.get("error_code", 0)) for part in (event, *parts)}
    classes |= {name for name in CLASSES if event.get(ITEMS[name])}
    worst = next((name for name in CLASSES if name in classes), "none")
    idle = outcome == "answered" and event["api_key"] in (1, 78) and not failed and not parts
    asked_for = event.get("muted_us", 0) + 1000 * max(event.get("max_wait_ms", 0), 0)
    service_us = max(event["latency_us"] - asked_for, 0)
    measured = [f"latency {bucket_of(event['latency_us'])}", f"service {bucket_of(service_us)}"]
    if idle or outcome != "answered":
        measured = []
    whole = rows[*key, None]
    whole.update(measured)
    whole.update(f"upstream {bucket_of(event.get('upstream_us', 0))}" for _ in measured[:1])
    whole.update(
        requests=1,
        request_bytes=event["request_bytes"],
        response_bytes=event.get("response_bytes", 0),
        errors=worst == "failure",
        retriable=worst == "retriable",
        protocol=worst == "protocol",
        connection_lost=outcome == "connection_lost",
        throttle_ms=max(event.get("throttle_ms", 0), 0),
        idle=idle,
    )
    for name in event.get("polled", ()):
        rows[*key, name]["polled"] = 1
    for name in {part["topic"] for part in parts}:
        rows[*key, name].update(["topic_requests", *measured])
        rows[*key, name]["errors"] += any(
            class_of(event["api_key"], part.get("error_code", 0)) == "failure"
            for part in parts
            if part["topic"] == name
        )
    for part in parts:
        records, size, error = part.get("records", 0), part.get("bytes", 0), part.get("error_code", 0)
        row = rows[*key, part["topic"]]
        if not error and outcome == "answered":
            row.update(records=records, bytes=size)
            if part.get("claimed") or part.get("upper_bound"):
                row["estimated_records"] += records
        elif not error and produced:
            row.update(unconfirmed_records=records, unconfirmed_bytes=size)
        elif error and produced:
            row.update(rejected_records=records, rejected_bytes=size)


def class_of(api_key: int, code: int) -> str:
    """How bad an error code is."""
    if code in PROTOCOL or (api_key, code) == (18, 35):
        return "protocol"
    return "none" if not code else "retriable" if code in RETRIABLE else "failure"


def bucket_of(latency_us: int) -> int:
    return sum(end < latency_us for end in ROLLUP_BUCKETS)


def traffic_of_rollups(events: list[RollupEvent]) -> Rows:
    rows: Rows = defaultdict(Counter)
    for event in events:
        key = (
            event.minute // 60_000_000, event.listener, event.api, event.api_version, event.principal,
            event.principal_source, event.client_id, event.client_ip, event.client_software_name,
            event.client_software_version,
        )  # fmt: skip
        assert event.minute % 60_000_000 == 0
        whole = rows[*key, None]
        for name in ("requests", "request_bytes", "response_bytes", *SEVERE, "connection_lost", "throttle_ms", "idle"):
            whole[name] += getattr(event, name)
        whole.update({f"latency {n}": count for n, count in enumerate(event.latencies)})
        whole.update({f"upstream {n}": count for n, count in enumerate(event.upstream_latencies)})
        whole.update({f"service {n}": count for n, count in enumerate(event.service_latencies or event.latencies)})
        for name in event.polled:
            rows[*key, name]["polled"] = 1
        for topic in event.per_topic:
            row = rows[*key, topic.topic]
            for name, value in msgspec.structs.asdict(topic).items():
                if name == "latencies":
                    row.update({f"latency {n}": count for n, count in enumerate(value)})
                elif name == "service_latencies":
                    row.update({f"service {n}": count for n, count in enumerate(value or topic.latencies)})
                elif name != "topic":
                    row[name] += value
    return rows


def without_zeros(rows: Rows) -> dict[tuple[Any, ...], dict[str, int]]:
    return {key: {name: value for name, value in row.items() if value} for key, row in rows.items()}


@pytest.mark.promise("audit-event.md", "Rollups add up to exactly what single events say of the same traffic.")
@given(observed=BATCHES, bounds=st.sampled_from([{}, {"max_rollups": 1}, {"max_rollups": 3}, {"max_topics": 2}]))
def test_the_traffic_of_rollups_is_that_of_the_events(observed: list[list[Exchange]], bounds: dict[str, int]) -> None:
    events, others = gathered(observed, **bounds)
    expected, lost = traffic_of_events(observed)
    if not lost["not_encodable"]:  # a rollup lacks some texts of an event, and does not lose it for them
        assert without_zeros(traffic_of_rollups(events)) == without_zeros(expected)
        assert others == lost


# ---- levels ----------------------------------------------------------------------------------------------------------

Step = tuple[str, int]

steps = st.lists(
    st.one_of(
        st.tuples(st.just("use"), st.integers(0, ROLLUP_LEVEL)),
        st.tuples(st.sampled_from(("record", "denied")), st.integers(1, 4)),
        st.tuples(st.sampled_from(("dropped", "turn", "deliver", "refuse")), st.integers(1, 3)),
    ),
    max_size=40,
)


@pytest.mark.promise(
    "audit-event.md", "Whatever levels follow each other, every request is in one event or rollup, or counted as lost."
)
@given(st.sampled_from(("event", "rollup")), st.booleans(), steps)
def test_every_request_is_told_once_or_counted_as_lost(mode: str, features: bool, taken: Sequence[Step]) -> None:
    with fake_producers(), without_pump():
        audit = Audit("b", features=features, mode=mode)
        level = 1 if features or mode == "event" else ROLLUP_LEVEL
        written, requests, correlation = [level], 0, count()
        for what, n in taken:
            before = audit.stats()
            if what == "use":
                audit.use(n)
                written.append(min(n, ROLLUP_LEVEL if mode == "rollup" else 1))
            elif what in ("record", "denied"):
                code = 29 if what == "denied" else 0
                some = [samples.exchange(correlation_id=next(correlation), error_code=code) for _ in range(n)]
                audit.observer.record_exchanges(some, 0)
                requests += n
            elif what == "dropped":
                audit.observer.record_exchanges([], n)
                requests += n
            elif what == "turn":
                audit.turn()
            elif what == "deliver":
                audit.deliver()
            elif audit.producer.sent:
                audit.producer.end("invalid_record")
            after = audit.stats()
            assert after.levels == ({n: 1} if what == "use" else before.levels)
            assert sum(after.undelivered.values()) == after.spooled + after.queued
        audit.close()
        stats, read = audit.stats(), audit.envelopes()
        found = check_records(read)
        assert set(levels_of(read)) <= set(written) - {0}
        assert (stats.taken, stats.emitted) == (requests, stats.delivered + sum(stats.dropped.values()))
        if "invalid_record" not in stats.dropped:
            lost_requests = requests - found["alone"] - found["in rollups"]
            assert 0 <= lost_requests <= sum(stats.dropped.values())
        if not stats.dropped:
            assert found["alone"] + found["in rollups"] == requests
        last = read[-1].last_seq if read else 0
        assert found["missing"] + stats.emitted - last == sum(stats.dropped.values())
