"""Whatever names a protected topic, in whatever pieces: the broker never has a whole frame of it, everything else
reaches it as it was sent, and every answer keeps its place."""

import struct
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.accessors import printed_id
from proxy.core.counters import ListenerCounters
from proxy.core.interceptor import InterceptorChain
from proxy.core.observation_interest import WANT_EXCHANGE, WANT_FACTS
from proxy.core.protected_topics import ProtectedTopics
from proxy.core.session import Session
from proxy.core.struct import SchemaError, view
from proxy.core.wire import TRUNCATED
from proxy.errors import PeerError
from proxy.interceptors.topic_protection import TopicProtection
from tests.frames import METADATA, batch, request, response
from tests.golden.frames import Frame
from tests.property.test_session_interception import CONNECTION, MAX_FRAME, Side
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


def start(wanted: int | None) -> Side:
    topics = ProtectedTopics(["elsewhere"])
    topics.ids.update(IDS[:2])
    counters, exchanges = ListenerCounters(), list[Any]()
    sink = None if wanted is None else watching(exchanges.append, wanted=wanted)
    interceptors = InterceptorChain([TopicProtection(topics, lambda request: None)])
    return Side(Session(CONNECTION, counters, sink, MAX_FRAME, None, interceptors), counters, exchanges)


def whole(stream: bytes) -> tuple[list[bytes], bytes]:
    """Its frames, and what is left of the last one."""
    frames = []
    while len(stream) >= 4 and len(stream) >= (end := 4 + struct.unpack_from(">i", stream)[0]):
        frames.append(stream[:end])
        stream = stream[end:]
    return frames, stream


@pytest.mark.promise(
    "protected-topics.md",
    "The broker never gets a whole Produce that names a protected topic, in whatever pieces it comes.",
)
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
    ours = start(wanted)
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
        ours.step(side, data, now)
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
    ours.session.close(now)
    for one in ours.exchanges:
        assert (one.error_code == 29) <= one.synthesized
    if wanted is not None and not interception.ending:
        assert [one.synthesized for one in sorted(ours.exchanges, key=lambda one: one.received_at)].count(True) == sum(
            call.protected for call in made
        )


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


@pytest.mark.promise("protected-topics.md", "A malformed Produce does not carry a protected topic past the check.")
@given(call=calls(), seed=st.integers(0, 2**32), sizes=st.sampled_from([[1], [3, 20], [100_000]]))
def test_a_broken_frame_passes_whole_only_if_no_protected_topic_is_read_in_it(
    call: Call, seed: int, sizes: list[int]
) -> None:
    rng = Random(seed)
    frame = bytearray(call.sent)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(8, len(frame))
        frame[at : at + rng.randrange(2)] = rng.choice(
            [b"\xff", b"\x80", b"\x7f", b"\0", b"\1", b"\xff\xff\xff\xff\x7f"]
        )
    frame[:4] = struct.pack(">i", len(frame) - 4)
    outcomes = []
    for wanted in (WANT_EXCHANGE | WANT_FACTS, None):
        side, rest, reason = start(wanted), bytes(frame), ""
        while rest:
            piece = rest[: rng.choice(sizes) if wanted else len(rest)]
            try:
                side.step("client", piece, 1.0)
            except PeerError as error:
                reason = error.reason
                break
            rest = rest[len(piece) :]
        interception = side.session.interception
        assert interception is not None
        outcomes.append(
            (reason, interception.cause, side.to_broker == frame, side.to_client, side.counters.intercepted)
        )
        assert frame.startswith(side.to_broker)
        side.session.close(2.0)
    assert outcomes[0] == outcomes[1], "pieces make a difference"
    if call.produce and outcomes[0][2]:
        assert not any(map(is_protected, names_in(call.version, bytes(frame)))), "the broker has it"


def names_in(version: int, frame: bytes) -> list[tuple[str | None, str | None]]:
    """Names and ids of topics as a broker reads them; none of what cannot be read."""
    try:
        found = view(0, version, frame[Frame("request", 0, version, frame).body() :], response=False)
        return [(one.get_or_else("Name", None), one.get_or_else("TopicId", None)) for one in found.get("TopicData")]
    except (SchemaError, *TRUNCATED):
        return []


def is_protected(topic: tuple[str | None, str | None]) -> bool:
    name, topic_id = topic
    return (name or "").encode() in PROTECTED_NAMES or topic_id in map(printed_id, IDS[:2])
