"""The addresses of every response that has any are replaced, and nothing else is."""

from typing import Any

import pytest

from proxy.core.apis import APIS
from proxy.core.exchange import Connection
from proxy.core.interceptor import (
    ON_HEADER,
    REWRITE,
    REWRITE_PREFIX,
    REWRITE_STREAM,
    Disposition,
    InterceptorChain,
    Request,
)
from proxy.core.schema_table import RESPONSES
from proxy.core.struct import view
from proxy.interceptors.address_rewriter import FIRST_VERSIONS, AddressRewriter, max_version
from tests.cases import each
from tests.tools.addressed import UNKNOWN, all_addressed, drawn, expected, rewriting, rewritten
from tests.tools.messages import uvarint
from tests.tools.random_messages import UNKNOWN_TAGS, Drawn, read_all

ANYBODY = Connection("c-1", "CLIENT", "127.0.0.1", 5, 0.0, "User:ANONYMOUS")
NO_SINK = Connection("c-1", "CLIENT", "127.0.0.1", 5, 0.0, "User:ANONYMOUS", principal_source="unauthenticated")

EDGE = {1: ("edge", 9092), 2: ("edge-2.example", 9093)}

SERVED_TO_OTHERS = {15, 29, 31, 52, 53, 54, 55, 59, 69, 77, 82, 88, 89}
"""Responses with hosts that are none of a broker's for clients: of clients (DescribeGroups and its like), of access
rules, of members of a Streams group, and those of and about controllers."""


def reported(key: int, version: int, body: bytes) -> dict[str, Any]:
    """The values of a response."""
    return read_all(view(key, version, body, response=True))


def test_no_other_response_has_hosts() -> None:
    with_hosts = {key for key, text in RESPONSES.items() if "host" in text.lower() or "endpoint" in text.lower()}
    assert with_hosts == {*FIRST_VERSIONS, *SERVED_TO_OTHERS}


@pytest.mark.promise("addresses.md", "Every address of a broker in the listed responses is replaced, and nothing else.")
@each(("key", "version"), all_addressed())
def test_each_address_is_replaced_and_nothing_else(key: int, version: int) -> None:
    changed = 0
    for number in range(40):
        one = drawn(number, key, version)
        out = rewritten(rewriting(), one)
        before, after = reported(key, version, one.body), reported(key, version, out)
        changed += before != after
        if out == one.body:
            assert expected(before) == before
            continue
        if len(out) != len(one.body) or rewriting().flags(key, version) != REWRITE_STREAM:
            assert after == expected(before)
            continue
        padding = after.get(UNKNOWN_TAGS, {}).keys() - before.get(UNKNOWN_TAGS, {}).keys()
        for tag in padding:
            assert after[UNKNOWN_TAGS].pop(tag).strip(b"\0") == b""
        if padding and not after[UNKNOWN_TAGS]:
            del after[UNKNOWN_TAGS]
        assert len(padding) <= 1
        assert after in (expected(before), before | {"NodeEndpoints": ()})
    assert changed > 5


def compact(text: str) -> bytes:
    return uvarint(len(text) + 1) + text.encode()


def int32(value: int) -> bytes:
    return value.to_bytes(4, "big", signed=True)


def old(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


def fetched(host: str, port: int, more: bytes = b"") -> Drawn:
    """A Fetch response of version 16 without topics, that names one node; ``more``: another tagged field."""
    nodes = b"\2" + int32(1) + compact(host) + int32(port) + b"\0\0"
    tags = uvarint(1 + bool(more)) + b"\0" + uvarint(len(nodes)) + nodes + more
    return Drawn(1, 16, True, int32(0) + b"\0\0" + int32(0) + b"\1" + tags, {})


def share_fetched(host: str, port: int, more: bytes = b"") -> Drawn:
    """The same of ShareFetch, version 1."""
    nodes = b"\2" + int32(1) + compact(host) + int32(port) + b"\0\0"
    return Drawn(78, 1, True, int32(0) + b"\0\0\0" + int32(9) + b"\1" + nodes + uvarint(bool(more)) + more, {})


OTHERS = {b"": None, b"\x7e\2hi": (126, b"hi"), b"\x7f\0": (127, b""), b"\xff\x7f\0": (16_383, b"")}
"""A tagged field that the broker sent besides, and what it says."""


@pytest.mark.promise(
    "addresses.md",
    "A shorter address in a Fetch response is filled up by a tagged field; a longer one leaves the leaders out.",
)
@each("made", [fetched, share_fetched])
@each(("more", "least"), list(zip(OTHERS, (2, 2, 3, 4), strict=True)))
def test_a_response_that_streams_keeps_its_length(made: Any, more: bytes, least: int) -> None:
    """Shorter addresses are filled up by a tagged field that nobody knows, which takes ``least`` bytes or more; where
    that cannot be, the nodes are left out."""
    wanted = made("edge.x", 9092, more)
    for length in (*range(1, 300), 16_384, 16_390, 16_391, 16_392, 32_000):
        one = made("b" * length, 1, more)
        out = rewritten(rewriting({1: ("edge.x", 9092)}), one)
        assert len(out) == len(one.body)
        after = reported(one.key, one.version, out)
        gap = len(one.body) - len(wanted.body)
        assert bool(after["NodeEndpoints"]) == (gap == 0 or gap >= least)
        assert after["NodeEndpoints"] in ((), reported(one.key, one.version, wanted.body)["NodeEndpoints"])
        other = OTHERS[more]
        assert other is None or after[UNKNOWN_TAGS][other[0]] == other[1]


@pytest.mark.promise("addresses.md", "Records of a Fetch response pass as they come; its end alone is held back.")
def test_what_comes_before_the_nodes_is_not_held_back() -> None:
    records = bytes(1_000_000)
    partition = int32(0) + b"\0\0" + bytes(24) + b"\0" + int32(-1) + uvarint(len(records) + 1) + records + b"\0"
    front = int32(0) + b"\0\0" + int32(0) + b"\2" + bytes(16) + b"\2" + partition + b"\0"
    nodes = b"\2" + int32(1) + compact("broker-1.internal") + int32(5) + b"\0\0"
    body = front + b"\1\0" + uvarint(len(nodes)) + nodes
    stream = rewriting(EDGE).stream(1, 16, len(body))
    at = 0
    for size in (5, 40, 400_000, 600_000 + len(front) - 1_000_045 + 3):
        piece = body[at : at + size]
        at += size
        assert stream.feed(piece) == (piece if at <= len(front) else piece[: len(front) - at])
    assert stream.feed(body[at:-1]) == b""
    after = reported(1, 16, front + stream.feed(body[-1:]))
    assert after["NodeEndpoints"] == ({"NodeId": 1, "Host": "edge", "Port": 9092, "Rack": None},)


@pytest.mark.promise(
    "addresses.md", "A broker whose sidecar is not known gets a name that never resolves, never its own address."
)
def test_an_address_that_is_not_known_is_reported_and_never_the_real_one() -> None:
    missed: list[int] = []
    addresses = AddressRewriter({}, missed.append)
    body = int32(2) + int32(1) + old("b-1.internal") + int32(5) + int32(UNKNOWN) + old("b-2.internal") + int32(6)
    out = addresses.rewrite(3, 0, body + int32(0))
    assert [(one["Host"], one["Port"]) for one in reported(3, 0, out)["Brokers"]] == [
        ("node-1.unmapped.invalid", 1),
        (f"node-{UNKNOWN}.unmapped.invalid", 1),
    ]
    assert missed == [1, UNKNOWN]


@pytest.mark.promise("addresses.md", "Versions with addresses that the sidecar does not know get an empty response.")
def test_versions_that_are_not_known_are_refused() -> None:
    rules = InterceptorChain([rewriting()])
    for key, since in FIRST_VERSIONS.items():
        last = APIS[key].max_version
        assert max_version(key) == last
        assert [rules.flags(key, version) for version in (-1, since - 1)] == [0, 0]
        assert rules.flags(key, last) in (REWRITE, REWRITE_STREAM, REWRITE | REWRITE_STREAM, REWRITE_PREFIX)
        assert [rules.flags(key, version) for version in (last + 1, 31, 32, 32_767)] == [ON_HEADER] * 4
    assert [max_version(18), max_version(30_000), rules.flags(18, 4), rules.flags(2, 99)] == [None, None, 0, 0]
    assert rules.on_header(Request(ANYBODY, 0, 99, "c", 1, 1)) == b""
    assert rules.on_header(Request(ANYBODY, 0, 99, "c", 0, 1)) is Disposition.CLOSE
    assert rules.on_header(Request(NO_SINK, 3, 99, "c", 1, 1)) is Disposition.FORWARD
