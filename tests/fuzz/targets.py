"""What is fuzzed, and what has to hold for every input: nothing is raised but what is documented, pieces give what the
whole gives, and the oracle agrees."""

import struct
from collections.abc import Callable
from itertools import accumulate
from random import Random
from typing import Any, NamedTuple

from observers.decompress import MAX_COMPRESSION_RATIO, MAX_DECOMPRESSION_STEPS, OUTPUT_BLOCK_BYTES
from observers.record_counter import count_records
from proxy.compiled import walk_door as walk
from proxy.compiled.exchange import Exchange, Kind
from proxy.core.accessors import Accessors, Records
from proxy.core.exchange import Connection, ConnectionTransition
from proxy.core.principal_tracker import MAX_UNANSWERED, PrincipalTracker
from proxy.core.proxy_protocol import parse
from proxy.core.request_resources import program as program_of_resources
from proxy.core.response_errors import program as program_of_errors
from proxy.core.struct import SchemaError, UnknownMessage, view
from proxy.errors import MalformedBody, PeerError, Side
from tests.fuzz import seeds, tls
from tests.fuzz.mutate import cuts, single
from tests.oracle import read_errors, read_resources
from tests.tools import facts, random_messages
from tests.tools.messages import uvarint

COMPARED = 1 / 4
"""Share of the inputs that the oracle or a struct reads, too: it takes several times as long."""

BYTE_BY_BYTE = 1 / 4
"""Share of the inputs that are read byte by byte as well."""


class Target(NamedTuple):
    """``check`` raises whatever is wrong with an input. ``once`` reads the input as the sidecar does, once: what its
    time and memory are reported: ``share`` bytes of memory for each of an input and ``besides``, no more."""

    name: str
    seeds: Callable[[], list[bytes]]
    check: Callable[[bytes, Random], None]
    once: Callable[[bytes], object]
    share: int = 10
    besides: int = 65536


# ---- bodies ---------------------------------------------------------------------------------------------------------


class Body(NamedTuple):
    """Of a message that has a walker."""

    key: int
    version: int
    response: bool
    data: bytes

    @property
    def side(self) -> Side:
        return "broker" if self.response else "client"

    @property
    def name(self) -> str:
        """Of its walker, and of its facts."""
        return f"{seeds.WALKED[self.key]}_{'response' if self.response else 'request'}"


def _body(data: bytes) -> Body:
    number, version = (data + b"\0\0")[:2]
    key, response, message = seeds.MESSAGES[number % len(seeds.MESSAGES)]
    return Body(key, version % (message.max_version + 1), response, data[2:])


def whole(body: Body, noise: bytes = b"") -> Any:
    """The facts, or whom the MalformedBody blames. ``noise``: comes before and after the body."""
    data, end = noise + body.data + noise, len(noise) + len(body.data)
    try:
        return walk.walk_whole(getattr(walk, body.name), data, len(noise), end, body.version, body.side)
    except MalformedBody as error:
        return error.side


def in_pieces(body: Body, pieces: list[bytes], noise: bytes = b"") -> Any:
    """The facts; or whom the MalformedBody blames, after how many bytes (-1: at the end), and why."""
    feed, place = walk.BodyFeed(getattr(walk, body.name), body.version, body.side), 0
    try:
        for piece in pieces:
            place += len(piece)
            feed.feed(noise + piece + noise, len(noise), len(noise) + len(piece))
        place = -1
        return feed.finish()
    except MalformedBody as error:
        return error.side, place, error.detail


LOOKED_INTO_SINCE = {
    "produce_request": 99, "produce_response": 10, "fetch_request": 11, "fetch_response": 12,
    "share_fetch_request": 99, "share_fetch_response": 0,
}  # fmt: skip
"""Versions from which on structs look into what walkers pass over: tagged fields, texts that must not be null."""


def facts_of_struct(body: Body, found: Any) -> Any:
    """What the struct views say of a body, or whom they blame; ``found`` where they look at what no walker does."""
    try:
        return facts.of_struct(body.name, body.key, body.version, body.data)
    except MalformedBody:
        return found if body.version >= LOOKED_INTO_SINCE[body.name] else body.side
    except UnicodeEncodeError:
        return found


def check_body(body: Body, rng: Random) -> Any:
    """The same whole, byte by byte and cut anywhere, with what is malformed found at the same byte; and by a struct."""
    expected, pieces = in_pieces(body, single(body.data)), cuts(rng, body.data)
    found = in_pieces(body, pieces)
    if isinstance(expected, tuple):
        side, place, detail = expected
        ends = accumulate(map(len, pieces))
        assert found == (side, place if place < 0 else next(end for end in ends if end >= place), detail)
        expected = side
    else:
        assert found == expected
    assert whole(body) == expected
    assert facts_of_struct(body, expected) == expected
    return expected


def _same(one: Any, other: Any) -> None:
    """Facts are equal; of errors the side is, for how far a body is read before it is given up may differ."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        one, other = one[0], other[0]
    assert one == other, f"{one} is not {other}"


# ---- records --------------------------------------------------------------------------------------------------------


def _wrapped(data: bytes) -> Body:
    """A FetchResponse v12 of one partition with the record set ``data``."""
    head = b"\0" * 10 + b"\2\2t\2" + bytes(4 + 2 + 24) + b"\0" + bytes(4)
    return Body(1, 12, True, head + uvarint(len(data) + 1) + data + b"\0\0\0")


def check_records(data: bytes, rng: Random) -> None:
    found = check_body(_wrapped(data), rng)
    if found == "broker":
        assert count_records(memoryview(data)) is None
    elif not found.partitions[0].records.claimed:
        assert count_records(memoryview(data)) == found.partitions[0].records.records


# ---- structs --------------------------------------------------------------------------------------------------------


class _Reading:
    """Reads every field of a struct, and counts them."""

    def __init__(self) -> None:
        self.values = 0

    def all(self, value: Any) -> Any:
        self.values += 1
        match value:
            case Accessors():
                decoded = {name: self.all(value.get(name)) for name in value.field_names()}
                return decoded, dict(value.unknown_tagged_fields()), value.size_of()
            case tuple() if value and isinstance(value[0], Accessors):
                return tuple(map(self.all, value))
            case Records():
                try:
                    return bytes(value.data or b""), value.records, value.claimed
                except SchemaError:
                    return bytes(value.data or b"")
            case float():
                return repr(value)  # NaN is itself then
            case _:
                return value


def _read(key: int, version: int, response: bool, body: bytes) -> tuple[Any, int] | None:
    """Every value, and how many there were; None where there is no such message, or it is malformed."""
    reading = _Reading()
    try:
        return reading.all(view(key, version, body, response=response, size=len(body))), reading.values
    except (SchemaError, UnknownMessage):
        return None


def check_struct(data: bytes, rng: Random) -> None:
    key, version, response = (data + b"\0\0\0")[:3]
    body = data[3:]
    found = _read(key, version, bool(response & 1), body)
    if found is not None:
        assert found[1] <= 100 * (len(body) + 1), f"{found[1]} values in {len(body)} bytes"
    if found is not None and rng.random() < BYTE_BY_BYTE:
        noise = rng.randbytes(5)
        more = _read(key, version, bool(response & 1), body + noise)
        assert more is not None
        assert more[0][:2] == found[0][:2], "bytes after the end of a message are read"


def struct_once(data: bytes) -> object:
    key, version, response = (data + b"\0\0\0")[:3]
    return _read(key, version, bool(response & 1), data[3:])


# ---- errors of items, and resources of requests ----------------------------------------------------------------------

CLIENT = Connection("c-1", "CLIENT", "127.0.0.1", 5, 0.0, "User:ANONYMOUS")


class Items(NamedTuple):
    """What is read of messages that have no walker. ``oracle``: raises MalformedBody, or returns what ``read`` does."""

    kind: Kind
    response: bool
    messages: list[tuple[int, int]]
    oracle: Callable[[int, int, bytes], Any]

    def read(self, key: int, version: int, pieces: list[bytes], *, whole: bool) -> Any:
        """Errors, or resources and what they are charged; a tuple where the message is malformed."""
        decoded = Exchange(CLIENT, key, version, 1, None, 0.0, 1)
        try:
            if whole:
                body = b"".join(pieces)
                charged = walk.read_whole(decoded, self.kind, self.response, body, 0, len(body))
            else:
                feed = walk.new_feed(self.kind, key, version)
                for piece in pieces:
                    feed.feed(piece, 0, len(piece))
                charged = feed.finish_into(decoded, self.response)
        except MalformedBody as error:
            return error.side, error.detail
        if not self.response:
            return [decoded.resources, charged]
        assert (charged > 0) == (decoded.item_errors is not None)
        return [decoded.error_code, decoded.item_errors]

    def once(self, data: bytes) -> Any:
        key, version, body = self.message(data)
        return self.read(key, version, [body], whole=True)

    def message(self, data: bytes) -> tuple[int, int, bytes]:
        high, low = (data + b"\0\0")[:2]
        return *self.messages[(high * 32 + low) % len(self.messages)], data[2:]

    def check(self, data: bytes, rng: Random) -> None:
        key, version, body = self.message(data)
        found = self.once(data)
        _same(found, self.read(key, version, cuts(rng, body), whole=False))
        if rng.random() < BYTE_BY_BYTE:
            _same(found, self.read(key, version, single(body), whole=False))
        if rng.random() < COMPARED:
            try:
                expected = self.oracle(key, version, body)
            except MalformedBody as error:
                expected = error.side, error.detail
            _same(found, expected)

    def target(self, name: str) -> Target:
        return Target(name, lambda: seeds.numbered(self.messages, response=self.response), self.check, self.once)


def _messages(program: Callable[[int, int], object], *, response: bool) -> list[tuple[int, int]]:
    return [
        (key, version)
        for key, version, is_response in random_messages.all_messages()
        if is_response == response and program(key, version) is not None
    ]


ERRORS = Items(Kind.RESPONSE_ERRORS, True, _messages(program_of_errors, response=True), read_errors)
RESOURCES = Items(Kind.REQUEST_RESOURCES, False, _messages(program_of_resources, response=False), read_resources)

# ---- identity -------------------------------------------------------------------------------------------------------

FRESH = Connection("c-1", "CLIENT", "127.0.0.1", 5, 0.0, "User:ANONYMOUS", principal_source="unauthenticated")

CALLS: list[Callable[[PrincipalTracker, int, bytes], ConnectionTransition | None]] = [
    lambda identity, version, body: identity.request(version, 18, body),
    lambda identity, version, body: identity.request(version, 17, body),
    lambda identity, version, body: identity.request(version, 36, body),
    lambda identity, version, body: identity.response(17, body, 1.0),
    lambda identity, version, body: identity.response(36, body, 1.0),
    lambda identity, version, body: identity.token(body),
    lambda identity, version, body: identity.token_reply(body, 1.0),
    lambda identity, version, body: identity.closed(1.0),
    lambda identity, version, body: identity.passed(1.0),
    lambda identity, version, body: identity.request(version, 36, None),
    lambda identity, version, body: identity.response(36, None, 1.0),
]
"""Input of an identity."""


def check_identity(data: bytes, rng: Random) -> None:
    identity = PrincipalTracker(FRESH)
    pos, asked = 0, 0
    while pos + 4 <= len(data):
        what, version, size = data[pos] % len(CALLS), data[pos + 1], int.from_bytes(data[pos + 2 : pos + 4], "big")
        body, pos = data[pos + 4 : pos + 4 + size], pos + 4 + size
        before, undecided = identity.connection, identity.undecided
        change = CALLS[what](identity, version, body)
        asked += what in (1, 2, 5, 9)
        assert len(identity._steps) <= MAX_UNANSWERED
        after = identity.connection
        assert change is None or (what not in (0, 1, 2, 5, 9) and not identity.undecided)
        if change is None or change.change == "authentication_failed":
            assert (after.principal, after.principal_source) == (before.principal, before.principal_source)
        else:
            assert change.change == "authenticated"
            assert undecided if what == 8 else what != 10
            assert change.connection is after
            assert asked, "believed without having asked"
            assert after.principal.startswith("User:")
            assert after.principal_source in ("sasl", "unknown")
        after.principal.encode()


def identity_once(data: bytes) -> object:
    return check_identity(data, Random(0))


# ---- the others -----------------------------------------------------------------------------------------------------


def deep_once(data: bytes) -> int | None:
    codec, rest = (data + b"\0")[0] % 8, data[1:]
    if codec:
        entry = struct.pack(">Ibbqii", 0, 1, codec, 0, -1, len(rest)) + rest
        rest = struct.pack(">qi", 0, len(entry)) + entry
    return count_records(memoryview(rest))


def check_deep(data: bytes, rng: Random) -> None:
    count = deep_once(data)
    assert count is None or count >= 0
    if count is not None and data[:1] and data[0] % 8:
        assert count <= MAX_DECOMPRESSION_STEPS


def proxy_once(data: bytes) -> object:
    try:
        return parse(data)
    except PeerError as error:
        return error.side, error.reason


def check_proxy(data: bytes, rng: Random) -> None:
    """As long as it is undecided more bytes may decide; from then on they change nothing."""
    expected = proxy_once(data)
    assert not isinstance(expected, tuple) or expected == ("client", "invalid_proxy_header")
    found: object = None
    pieces = single(data) if rng.random() < BYTE_BY_BYTE else cuts(rng, data)
    size = 0
    for piece in pieces:
        size += len(piece)
        now = proxy_once(data[:size])
        if found is not None:
            assert now == found, f"{found} became {now}"
        found = now
    assert found == (expected if data else None)


TARGETS = [
    Target("bodies", seeds.bodies, lambda data, rng: check_body(_body(data), rng), lambda data: whole(_body(data))),
    Target("records", seeds.record_sets, check_records, lambda data: whole(_wrapped(data))),
    Target("struct", seeds.structs, check_struct, struct_once),
    RESOURCES.target("resources"),
    ERRORS.target("errors"),
    Target("identity", seeds.calls, check_identity, identity_once),
    Target(
        "deep", seeds.packed, check_deep, deep_once, share=3 * MAX_COMPRESSION_RATIO, besides=3 * OUTPUT_BLOCK_BYTES
    ),
    Target("proxy_protocol", seeds.proxy_headers, check_proxy, proxy_once),
    Target("tls", tls.seeds, tls.check, tls.once),
]
