"""Targets behind the sessions: what observers make of exchanges that hostile bytes gave."""

from __future__ import annotations

from random import Random

import msgspec

from observers.audit_writer import RequestEventEncoder
from observers.event import RequestEvent, encoder
from observers.event_blocks import EncodedEvents, split_events
from observers.record_counter import count_compressed_records
from observers.rollup_writer import RollupAggregator
from observers.topic_id_learner import TOPIC_ID_PATHS, carries_topic_ids, read_topic_ids
from proxy.compiled.exchange import Exchange
from proxy.core.struct import SchemaError, UnknownMessage
from tests.fuzz import connections, consumers, feature_records, features, responses, seeds, sessions, targets
from tests.fuzz.sessions import converse, steps_of
from tests.fuzz.targets import Target
from tests.property.audited import API_NAMES, WALL, surroundings

ROWS = 1 << 19
"""Bytes: the translator writes into blocks of half as many."""


def exchanges_of(data: bytes) -> list[Exchange]:
    exchanges: list[Exchange] = []
    converse(steps_of(data), exchanges)
    return exchanges


# ---- audit ----------------------------------------------------------------------------------------------------------


def translated(exchanges: list[Exchange]) -> EncodedEvents:
    made = RequestEventEncoder(API_NAMES, *surroundings()).encode_exchanges(exchanges, 1, WALL)
    assert (made.failed, made.not_encodable, made.too_large) == (0, 0, 0)
    assert made.last + made.hidden == len(exchanges)
    return made


def rolled(exchanges: list[Exchange]) -> None:
    rollup = RollupAggregator(API_NAMES, *surroundings())
    added = rollup.add_exchanges(exchanges, 0, WALL)
    assert (added.failed, added.not_encodable, added.until) == (0, 0, len(exchanges))
    assert sum(one.requests for one in rollup.drain()) == len(exchanges) - added.hidden


def check_audit(data: bytes, rng: Random) -> None:
    """Every exchange has its event, as msgspec would encode it."""
    found = exchanges_of(data)
    made = translated(found)
    written = [one for chunk in made.chunks for one in split_events(chunk.json)]
    assert len(written) == made.last
    assert [encoder.encode(msgspec.json.decode(one, type=RequestEvent)) for one in written] == written
    for exchange in found:
        count_compressed_records(exchange)
    rolled(found)


def audit_once(data: bytes) -> object:
    return translated(exchanges_of(data))


# ---- learn -----------------------------------------------------------------------------------------------------------

KEYS = sorted(TOPIC_ID_PATHS)


def learn_once(data: bytes) -> list[tuple[bytes, str]]:
    """The pairs before the first fault."""
    key, version = (data + b"\0\0")[:2]
    key = key if key in TOPIC_ID_PATHS else KEYS[key % len(KEYS)]
    found: list[tuple[bytes, str]] = []
    if not carries_topic_ids(key, version):
        return found
    try:
        for pair in read_topic_ids(key, version, data[2:]):
            found.append(pair)  # noqa: PERF402 - those before the fault count
    except (SchemaError, UnknownMessage):
        pass
    return found


def check_learn(data: bytes, rng: Random) -> None:
    for topic_id, name in learn_once(data):
        assert len(topic_id) == 16
        assert name.encode()


ALL = {
    target.name: target
    for target in (
        *sessions.TARGETS,
        *targets.TARGETS,
        *responses.TARGETS,
        *feature_records.TARGETS,
        *features.TARGETS,
        *consumers.TARGETS,
        *connections.TARGETS,
        Target("audit", seeds.scripts, check_audit, audit_once, share=60, besides=ROWS),
        Target("learn", seeds.teaching, check_learn, learn_once),
    )
}
"""Every target by its name."""
