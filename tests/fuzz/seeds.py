"""Valid inputs to begin with: frames of real clients, random messages of every version, and what once failed."""

from base64 import b64decode
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from proxy.core.exchange import EMPTY_RECORD_SET
from proxy.core.records import sums_of
from tests.frames import METADATA, SASL_HANDSHAKE, batch, produce, produced, request, response, sized
from tests.golden.frames import Frame, message_sets, recordings
from tests.sasl import authenticate, authenticate_reply, bearer, handshake, handshake_reply, jwt, plain, scram, software
from tests.tools import messages, random_messages
from tests.tools.messages import Field, Made, Message, encode

CORPUS = Path(__file__).parent / "corpus"

MESSAGES: list[tuple[int, bool, Message]] = [
    (0, False, messages.PRODUCE_REQUEST),
    (0, True, messages.PRODUCE_RESPONSE),
    (1, False, messages.FETCH_REQUEST),
    (1, True, messages.FETCH_RESPONSE),
    (78, False, messages.SHARE_FETCH_REQUEST),
    (78, True, messages.SHARE_FETCH_RESPONSE),
]
"""Api key, whether it is a response, and layout of what has a walker."""

WALKED = {0: "produce", 1: "fetch", 78: "share_fetch"}
"""Names of these messages by api key."""

CLIENT, BROKER = 0, 0x8000
"""Who sends a step of a script; see ``step``."""


def corpus(target: str) -> list[bytes]:
    """Inputs of ``target`` that are kept: one a line, in base64; ``#`` begins a comment."""
    path = CORPUS / f"{target}.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return [b64decode(line) for line in lines if line and not line.startswith("#")]


@cache
def frames() -> tuple[Frame, ...]:
    """Produce and Fetch frames of real clients and brokers."""
    return tuple(frame for recording in recordings() for frame in recording.frames)


def record_sets() -> list[bytes]:
    """Of every magic and codec; with control batches, several batches, a cut one."""
    control = bytearray(batch(1, b"marker", 7, 1))
    control[22] |= 0x20
    old = [one.data for one in message_sets() if one.records < 100]
    new = [batch(3, b"records", 9, 1, 5), bytes(control), batch(70_000)]
    return [b"", *new, *old, b"".join(new), new[0] + old[5] + new[0][:40]]


def bodies() -> list[bytes]:
    """For the target ``bodies``: number of the message, version, body."""
    rng = Random("bodies")
    found = []
    for number, (_, _, message) in enumerate(MESSAGES):
        for version in range(message.max_version + 1):
            found += [
                bytes([number, version]) + encode(message, version, values_of(message.fields, version, rng))
                for _ in range(3)
            ]
    numbers = {(key, response): number for number, (key, response, _) in enumerate(MESSAGES)}
    for frame in frames():
        found.append(bytes([numbers[frame.key, frame.kind == "response"], frame.version]) + frame.data[frame.body() :])
    return found


def values_of(fields: tuple[Field, ...], version: int, rng: Random) -> dict[str, Any]:
    live = [field for field in fields if field.lives_in(version) and (field.tag is None or rng.random() < 0.3)]
    values: dict[str, Any] = {field.name: _value(field, version, rng) for field in live}
    if rng.random() < 0.1:
        values[messages.UNKNOWN_TAGS] = ((99, rng.randbytes(5)),)
    return values


def _value(field: Field, version: int, rng: Random) -> Any:
    if field.array:
        return [_value(field._replace(array=False), version, rng) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    if field.fields:
        return values_of(field.fields, version, rng)
    match field.type:
        case "records":
            data = rng.choice([None, *record_sets()])
            return Made(data, sums_of(data) if data else EMPTY_RECORD_SET)
        case "uuid":
            return rng.randbytes(16)
        case "string":
            return rng.choice((b"", b"topic", b"name-" * 30))
        case "bool":
            return rng.random() < 0.5
        case kind:
            bits = int(kind.removeprefix("int"))
            return rng.choice((0, 1, -1, rng.randrange(-(1 << bits - 1), 1 << bits - 1)))


def structs() -> list[bytes]:
    """For the target ``struct``: api key, version, whether it is a response, body."""
    rng = Random("structs")
    found = []
    for key, version, is_response in random_messages.all_messages():
        drawn = random_messages.draw(rng, key, version, is_response)
        found.append(bytes([key, version, is_response]) + drawn.body)
    return found + [
        bytes([frame.key, frame.version, frame.kind == "response"]) + frame.data[frame.body() :] for frame in frames()
    ]


def numbered(messages: list[tuple[int, int]], *, response: bool) -> list[bytes]:
    """For the targets ``resources`` and ``errors``: two bytes that number the message, and its body."""
    rng = Random(f"numbered {response}")
    return [
        bytes(divmod(number, 32)) + random_messages.draw(rng, key, version, response).body
        for number, (key, version) in enumerate(messages)
    ]


# ---- scripts: what comes from which side, in which pieces -----------------------------------------------------------


def step(side: int, data: bytes) -> bytes:
    """One step of a script: side and length in two bytes, then the bytes that come at once."""
    return (side | len(data)).to_bytes(2, "big") + data


def scripts() -> list[bytes]:
    """For the target ``session``: conversations of real clients, and some by hand."""
    found = []
    for recording in recordings():
        steps = [
            step(CLIENT if frame.kind == "request" else BROKER, frame.data)
            for frame in recording.frames
            if len(frame.data) < BROKER
        ]
        found += [b"".join(steps), *(b"".join(steps[at : at + 2]) for at in range(0, len(steps), 2))]
    return found + [_conversation(*pairs) for pairs in _pairs()]


def _pairs() -> list[list[tuple[bytes, bytes]]]:
    """Requests and their responses (empty where there is none), conversation by conversation."""
    hello = (request(18, 3, 1, b"\0" + software("java", "4.3.1")), response(1, b"\0\0\1\0\0\0\0\0\0"))
    wanted = (request(SASL_HANDSHAKE, 1, 2, handshake("PLAIN")), response(2, handshake_reply()))
    proof = (request(36, 2, 3, b"\0" + authenticate(plain("me", "secret"))), response(3, b"\0" + authenticate_reply()))
    refused = (proof[0], response(3, b"\0" + authenticate_reply(error_code=58, message="no")))
    metadata = (request(METADATA, 9, 4, b"\0\0\1\1\0\0"), response(4, b"\0\0\0\0\0\1\0\0\0\0\1\1" + bytes(5)))
    sent = (produce(5, 1, batch(3, b"records")), produced(5))
    unanswered = (produce(6, 0, batch(3, b"records")), b"")
    tokens = [
        (request(SASL_HANDSHAKE, 0, 7, handshake("SCRAM-SHA-256")), response(7, handshake_reply())),
        (sized(scram("me")), sized(b"r=x,s=y,i=4096")),
        (sized(b"c=biws,r=x,p=z"), sized(b"v=sig")),
    ]
    future = (request(0, 99, 8, b"future"), response(8))
    unknown = (request(30_000, 0, 9, b"private", None), response(9, b"x" * 9))
    topics = (
        request(METADATA, 12, 10, b"\0" + bytes(4), ""),
        response(10, b"\0\0\0\0\5\2\0\0\0\1\2h\0\0#\x84\0\0\2c\0\0\0\1\1\0"),
    )
    shared = []
    rng = Random("share")
    for version in range(3):
        asked, answered = (
            encode(message, version, values_of(message.fields, version, rng)) for _, _, message in MESSAGES[4:]
        )
        shared.append((request(78, version, version, b"\0" + asked), response(version, b"\0" + answered)))
    return [
        [hello, wanted, proof, metadata, sent, unanswered],
        [hello, wanted, refused],
        [*tokens, metadata, sent],
        [metadata, sent, unanswered, future, unknown, topics],
        [unanswered, unanswered, metadata],
        [hello, wanted, proof, wanted, proof, topics],
        shared,
    ]


def _conversation(*pairs: tuple[bytes, bytes]) -> bytes:
    return b"".join(step(CLIENT, one) + (step(BROKER, other) if other else b"") for one, other in pairs)


def streams() -> list[bytes]:
    """For the target ``frame``: side, then everything that it sends."""
    found = []
    for pairs in _pairs():
        found += [b"\0" + b"".join(one for one, _ in pairs), b"\1" + b"".join(other for _, other in pairs)]
    return found + [bytes([frame.kind == "response"]) + frame.data for frame in frames()[::3]]


def requests() -> list[bytes]:
    """For the target ``header``: a request without its size."""
    return [one[4:] for pairs in _pairs() for one, _ in pairs] + [
        frame.data[4:] for frame in frames() if frame.kind == "request"
    ]


# ---- identity: its input, call by call -----------------------------------------------------------------------------


def calls() -> list[bytes]:
    """For the target ``identity``: see ``call``."""
    claims = [
        ("PLAIN", plain("me", "secret"), b""),
        ("SCRAM-SHA-256", scram("me=2C"), b"v=sig"),
        ("SCRAM-SHA-512", scram("me", ",tokenauth=true"), b"v=sig"),
        ("OAUTHBEARER", bearer(jwt({"sub": "me", "n": [1, {}]})), b""),
        ("OAUTHBEARER", bearer("opaque", "me"), b""),
        ("GSSAPI", b"`\x82\x01", b""),
    ]
    found = [call(0, 3, software("java", "4.3.1"))]
    for mechanism, token, answer in claims:
        begin = call(1, 1, handshake(mechanism)) + call(3, 1, handshake_reply())
        for version in range(3):
            sent = call(2, version, authenticate(token, version))
            found += [
                begin + sent + call(4, version, authenticate_reply(answer, version, lifetime_ms=9)),
                begin + sent + call(4, version, authenticate_reply(b"", version, error_code=58)),
                begin + sent + call(7, 0, b""),
            ]
        found.append(begin + call(5, 0, token) + call(6, 0, answer) + call(8, 0, b""))
    return found


def call(what: int, version: int, body: bytes) -> bytes:
    """One call: number of the method in ``targets.CALLS``, version, length in two bytes, body."""
    return bytes([what, version]) + len(body).to_bytes(2, "big") + body


# ---- the others -----------------------------------------------------------------------------------------------------


def packed() -> list[bytes]:
    """For the target ``deep``: a record set after 0, or codec and compressed bytes."""
    found = [b"\0" + one for one in record_sets()]
    for one in message_sets():
        codec = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3}[one.codec]
        found.append(b"\0" + one.data)
        if codec:
            found.append(bytes([codec]) + one.data[34 if one.magic else 26 :])
    return found


def proxy_headers() -> list[bytes]:
    """For the target ``proxy_protocol``."""
    signature = b"\r\n\r\n\0\r\nQUIT\n"
    four = bytes([10, 0, 0, 7, 10, 0, 0, 8]) + b"\x9c\x40\x23\x84"
    six = bytes(range(32)) + b"\x9c\x40\x23\x84"
    return [
        b"PROXY TCP4 10.0.0.7 10.0.0.8 40000 9092\r\nrest",
        b"PROXY TCP6 2001:db8::1 ::ffff:10.0.0.8 40000 9092\r\n",
        b"PROXY UNKNOWN\r\n",
        b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n",
        signature + b"\x21\x11\0\x0c" + four + b"rest",
        signature + b"\x21\x21\0\x24" + six,
        signature + b"\x21\x11\0\x14" + four + b"\x03\0\x05abcde",
        signature + b"\x20\0\0\0",
        signature + b"\x21\x31\0\xd8" + bytes(216),
        request(METADATA, 9, 1),
    ]
