"""Every api key there can be, in versions that exist and in some that do not: reported, and the connection stays."""

from __future__ import annotations

from collections.abc import Iterator

from proxy.core import apis
from proxy.core.session import Session
from tests.frames import METADATA, request, response
from tests.fuzz.sessions import converse

KEYS = range(-32_768, 32_768)
CHUNK = 250
"""Requests at a time: fewer than may be open."""


def pairs() -> Iterator[tuple[int, int]]:
    """Api key and version."""
    for key in KEYS:
        newest = apis.APIS[key].max_version if key in apis.APIS else 3
        yield from ((key, version) for version in (-1, 0, newest, newest + 1))


def test_every_key_in_every_version() -> None:
    wanted = list(pairs())
    for start in range(0, len(wanted), CHUNK):
        chunk = wanted[start : start + CHUNK]
        asked = [request(key, version, number, bytes(30)) for number, (key, version) in enumerate(chunk)]
        asked.append(request(METADATA, 9, CHUNK, b"\0"))
        answered = [
            response(number, bytes(30)) for number, frame in enumerate([*chunk, (METADATA, 9)]) if has_answer(frame)
        ]
        answered[-1] = response(CHUNK, bytes(30))
        conversation = converse(Session, [("client", b"".join(asked)), ("broker", b"".join(answered))])
        assert conversation.refused is None, conversation.refused
        assert conversation.requests == len(asked)
        assert sorted((one["api_key"], one["api_version"]) for one in conversation.exchanges) == sorted(
            [*chunk, (METADATA, 9)]
        )
        assert {one["outcome"] for one in conversation.exchanges} <= {"answered", "no_response"}


def has_answer(frame: tuple[int, int]) -> bool:
    """A Produce of zeros has acks 0."""
    return frame[0] != 0
