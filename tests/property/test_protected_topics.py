"""Whatever names a protected topic, in whatever pieces: the broker never has a whole frame of it, everything else
reaches it as it was sent, every answer keeps its place, and the oracle does the same."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proxy.compiled.exchange import FIELDS
from proxy.core.counters import ListenerCounters
from proxy.core.interceptor import InterceptorChain
from proxy.core.observation_interest import WANT_EXCHANGE, WANT_FACTS
from proxy.core.protected_topics import ProtectedTopics
from proxy.core.session import Session
from proxy.core.struct import view
from proxy.errors import PeerError
from proxy.interceptors.topic_protection import TopicProtection
from tests.frames import METADATA, batch, request, response
from tests.oracle import session as oracle
from tests.property.test_session_interception import CONNECTION, MAX_FRAME, SESSIONS, Side
from tests.tools.messages import PRODUCE_REQUEST, UNKNOWN_TAGS, Made, encode
from tests.tools.observation_sinks import watching

IDS = [bytes([at]) * 16 for at in range(4)]
PROTECTED_NAMES = [b"brokerside-audit", b"__brokerside_registry", b"brokerside-", b"elsewhere"]
HONEST_NAMES = [
    b"t",
    b"my-brokerside-audit",
    b"brokerside",
    b"__brokerside",
    b"Brokerside-audit",
    b"elsewhere2",
    b"x" * 250,
]


@dataclass
class Call:
    """A request. ``topics``: whether each that a Produce names is protected."""

    sent: bytes
    version: int
    acks: int
    topics: tuple[bool, ...]
    partitions: int
    produce: bool = True

    @property
    def protected(self) -> bool:
        return any(self.topics)


@st.composite
def calls(draw: st.DrawFn) -> Call:
    number = draw(st.integers(0, 2))
    if draw(st.integers(0, 4)) == 0:
        return Call(request(METADATA, 1, number, bytes(4)), 1, 1, (), 0, produce=False)
    version, acks = draw(st.integers(0, 13)), draw(st.sampled_from([-1, 1, 1, 0]))
    tags = draw(st.sampled_from([(), (), ((7, b""),), ((0, b"\1brokerside-x"), (300, b"v" * 200))]))
    topics, protected = [], []
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 4, 0]))):
        guarded = draw(st.integers(0, 3)) == 0
        protected.append(guarded)
        partitions = [
            {"index": at, "records": Made(records, None), UNKNOWN_TAGS: tags}  # type: ignore[arg-type]  # its sums are of no use here
            for at in range(draw(st.integers(0, 3)))
            for records in [draw(st.sampled_from([None, b"", batch(1, b"brokerside-v"), batch(2, b"v" * 3000)]))]
        ]
        topics.append(
            {
                "name": draw(st.sampled_from(PROTECTED_NAMES if guarded else HONEST_NAMES)),
                "topic_id": draw(st.sampled_from(IDS[:2] if guarded else IDS[2:])),
                "partition_data": partitions,
                UNKNOWN_TAGS: tags,
            }
        )
    transactional_id = draw(st.sampled_from([None, b"", b"brokerside-x", b"y" * 400]))
    values: dict[str, Any] = {
        "transactional_id": transactional_id, "acks": acks, "timeout_ms": 1, "topic_data": topics, UNKNOWN_TAGS: tags,
    }  # fmt: skip
    header = b"" if version < 9 else draw(st.sampled_from([b"\0", b"\1\5\3abc"]))
    body = header + encode(PRODUCE_REQUEST, version, values)
    count = sum(len(topic["partition_data"]) for topic in topics)
    return Call(request(0, version, number, body), version, acks, tuple(protected), count)


def start(implementation: type[Session | oracle.Session], wanted: int | None) -> Side:
    topics = ProtectedTopics(["elsewhere"])
    topics.ids.update(IDS[:2])
    counters, exchanges = ListenerCounters(), list[Any]()
    sink = None if wanted is None else watching(exchanges.append, wanted=wanted)
    interceptors = InterceptorChain([TopicProtection(topics, lambda request: None)])
    return Side(implementation(CONNECTION, counters, sink, MAX_FRAME, None, interceptors), counters, exchanges)


def whole(stream: bytes) -> tuple[list[bytes], bytes]:
    """Its frames, and what is left of the last one."""
    frames = []
    while len(stream) >= 4 and len(stream) >= (end := 4 + struct.unpack_from(">i", stream)[0]):
        frames.append(stream[:end])
        stream = stream[end:]
    return frames, stream


@given(
    made=st.lists(calls(), min_size=1, max_size=8),
    wanted=st.sampled_from([None, WANT_EXCHANGE, WANT_EXCHANGE | WANT_FACTS]),
    sizes=st.sampled_from([[1], [1, 3, 20], [20, 400, 10_000], [100_000]]),
    seed=st.integers(0, 2**32),
)
def test_the_broker_never_has_a_whole_frame_that_names_a_protected_topic(
    made: list[Call], wanted: int | None, sizes: list[int], seed: int
) -> None:
    rng = Random(seed)
    sides = [start(implementation, wanted) for implementation in SESSIONS]
    ours = sides[0]
    asked, now, sent = b"".join(call.sent for call in made), 0.0, 0
    interception = ours.session.interception
    assert interception is not None
    while not interception.ending:
        frames, _ = whole(ours.to_broker)
        may = b"".join(
            response(int.from_bytes(frame[8:12], "big"), b"\0" * 9)
            for frame in frames
            if next(call for call in made if call.sent == frame).acks
        )
        able = ([("broker", may[sent:])] if sent < len(may) else []) + (
            [("client", asked)] if asked and not interception.closing else []
        )
        if not able:
            break
        side, data = rng.choice(able)
        data = data[: rng.choice(sizes)]
        now += 1
        first, *others = [each.step(side, data, now) for each in sides]
        assert all(other == first for other in others), "the oracle differs"
        if side == "broker":
            sent += len(data)
        else:
            asked = asked[len(data) :]
    frames, rest = whole(ours.to_broker)
    honest = [call for call in made if not call.protected]
    assert frames == [call.sent for call in honest][: len(frames)]
    seen, cut = whole(ours.to_client)
    assert not cut
    if not interception.ending:
        assert len(frames) == len(honest)
        assert not rest
        assert len(seen) == sum(call.acks != 0 for call in made)
        for call, got in zip([call for call in made if call.acks], seen, strict=True):
            assert got[4:8] == call.sent[8:12]
            if call.protected:
                refused(call, got)
    else:
        closing = next(call for call in made if call.protected and (not call.acks or call.sent.startswith(rest)))
        assert len(rest) < len(closing.sent)
    assert ours.counters.intercepted == {} or [*ours.counters.intercepted] == [(0, "denied")]
    for each in sides:
        each.session.close(now)
    exchanges = [[{name: getattr(one, name) for name in FIELDS} for one in each.exchanges] for each in sides]
    assert all(other == exchanges[0] for other in exchanges), "the exchanges differ"
    assert all(each.counters == ours.counters for each in sides)
    for one in exchanges[0]:
        assert (one["error_code"] == 29) <= one["synthesized"]


def refused(call: Call, got: bytes) -> None:
    body = got[9:] if call.version >= 9 else got[8:]
    message = view(0, call.version, body, response=True)
    found = [
        (one.get("ErrorCode"), one.get("BaseOffset"))
        for topic in message.get("Responses")
        for one in topic.get("PartitionResponses")
    ]
    assert found == [(29, -1)] * call.partitions
    assert len(message.get("Responses")) == len(call.topics)


@given(call=calls(), seed=st.integers(0, 2**32), sizes=st.sampled_from([[1], [3, 20], [100_000]]))
def test_broken_frames_are_taken_alike(call: Call, seed: int, sizes: list[int]) -> None:
    rng = Random(seed)
    frame = bytearray(call.sent)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(8, len(frame))
        frame[at : at + rng.randrange(2)] = rng.choice(
            [b"\xff", b"\x80", b"\x7f", b"\0", b"\1", b"\xff\xff\xff\xff\x7f"]
        )
    frame[:4] = struct.pack(">i", len(frame) - 4)
    outcomes = []
    for side in [start(implementation, WANT_EXCHANGE | WANT_FACTS) for implementation in SESSIONS]:
        rest, reason = bytes(frame), ""
        sizes_of = Random(seed)
        while rest:
            piece = rest[: sizes_of.choice(sizes)]
            try:
                side.step("client", piece, 1.0)
            except PeerError as error:
                reason = f"{error.reason}: {error.detail}"
                break
            rest = rest[len(piece) :]
        side.session.close(2.0)
        exchanges = [{name: getattr(one, name) for name in FIELDS} for one in side.exchanges]
        outcomes.append((reason, len(rest), side.to_broker, side.to_client, exchanges, side.counters))
    assert all(one == outcomes[0] for one in outcomes)
