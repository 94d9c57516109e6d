"""Everything that once failed, and a few blocks of fresh inputs, the same ones each time; and every api key."""

from collections.abc import Iterator

import pytest

from proxy.core import apis
from tests.cases import each
from tests.frames import METADATA, request, response
from tests.fuzz import seeds
from tests.fuzz.observed import ALL
from tests.fuzz.run import replay, run_block, seeds_of
from tests.fuzz.sessions import converse
from tests.fuzz.targets import Target

FRESH = 1000
"""Inputs of each target; ``make fuzz`` takes a million."""


@pytest.mark.promise(
    "conformance.md",
    "Hostile bytes give the documented error alone, whole or in pieces, with time and memory in proportion.",
)
@pytest.mark.promise(
    "principals.md", "Whatever a client sends, nobody is believed to be somebody before the broker has agreed."
)
@each("target", ALL.values())
def test_whatever_once_failed_and_fresh_inputs_pass(target: Target) -> None:
    failures = replay(target, seeds.corpus(target.name)) + replay(target, list(seeds_of(target))[::5], attempts=1)
    assert not failures, failures[0].text
    figures = run_block(target, "tests", 0, FRESH)
    assert figures.inputs == FRESH
    assert not figures.failures, figures.failures[0].text


# ---- every api key there can be --------------------------------------------------------------------------------------

CHUNK = 250
"""Requests at a time: fewer than may be open."""


def pairs() -> Iterator[tuple[int, int]]:
    """Each key in versions that it has, and in those beyond."""
    for key in range(-32768, 32768):
        newest = apis.APIS[key].max_version if key in apis.APIS else 3
        yield from ((key, version) for version in (-1, 0, newest, newest + 1))


@pytest.mark.promise(
    "supported-versions.md",
    "A request of a newer Kafka than the sidecar knows is forwarded as it is and has its event.",
)
def test_every_key_in_every_version_passes_and_is_reported_once() -> None:
    wanted = list(pairs())
    for start in range(0, len(wanted), CHUNK):
        chunk = [*wanted[start : start + CHUNK], (METADATA, 9)]
        asked = [
            request(*frame, number, b"\0" if frame is chunk[-1] else bytes(30)) for number, frame in enumerate(chunk)
        ]
        # A Produce of zeros has acks 0.
        answered = [response(number, bytes(30)) for number, frame in enumerate(chunk) if frame[0] != 0]
        conversation = converse([("client", b"".join(asked)), ("broker", b"".join(answered))])
        assert conversation.refused is None, conversation.refused
        assert conversation.requests == len(asked)
        assert sorted((one["api_key"], one["api_version"]) for one in conversation.exchanges) == sorted(chunk)
        assert {one["outcome"] for one in conversation.exchanges} <= {"answered", "no_response"}
