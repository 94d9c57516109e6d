"""The seeds and everything that once failed, and a few blocks of fresh inputs, the same ones each time."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from random import Random

import pytest

from proxy.core.session import Session
from tests.fuzz import __main__ as fuzz
from tests.fuzz import seeds
from tests.fuzz.mutate import Mutator
from tests.fuzz.observed import ALL
from tests.fuzz.run import check_memory, replay, run_block, seeds_of
from tests.fuzz.sessions import converse, steps_of
from tests.fuzz.targets import Target

every_target = pytest.mark.parametrize("target", ALL.values(), ids=ALL)

FRESH = 2500
"""Inputs of each target."""


@every_target
def test_every_seed_and_whatever_once_failed_passes(target: Target) -> None:
    failures = replay(target, seeds_of(target))
    assert not failures, failures[0].text


@every_target
def test_fresh_inputs_pass(target: Target) -> None:
    figures = run_block(target, "tests", 0, FRESH)
    assert figures.inputs == FRESH
    assert not figures.failures, figures.failures[0].text


def test_a_block_is_the_same_each_time() -> None:
    seen: list[list[bytes]] = []
    for _ in range(2):
        inputs: list[bytes] = []
        target = Target("bodies", seeds.bodies, lambda data, rng, inputs=inputs: inputs.append(data), len)
        run_block(target, 7, 3, 50)
        seen.append(inputs)
    assert seen[0] == seen[1]
    assert len(set(seen[0])) > 40


def broken(data: bytes, rng: Random) -> None:
    if len(data) % 2:
        raise ValueError(f"odd: {len(data)}")


def test_a_target_that_fails_is_found_out_and_its_inputs_are_kept(tmp_path: Path) -> None:
    figures = run_block(Target("bodies", seeds.bodies, broken, len), 1, 1, 100)
    assert 20 < len(figures.failures) < 80
    assert len({failure.kind for failure in figures.failures}) == 1
    failure = figures.failures[0]
    assert "odd" in failure.text
    note, line = failure.save(tmp_path).read_text().splitlines()
    assert note.startswith("# ValueError in broken")
    assert b64decode(line) == failure.data
    assert len(replay(Target("bodies", seeds.bodies, broken, len), [b"x", b"xx", failure.data])) == 2


def test_an_input_that_takes_too_much_memory_is_found_out() -> None:
    greedy = Target("bodies", seeds.bodies, lambda data, rng: None, lambda data: bytes(100_000))
    with pytest.raises(AssertionError, match="bytes for an input of 3"):
        check_memory(greedy, b"abc")
    assert replay(greedy, [b"abc"])


def test_inputs_of_a_mutator_are_bounded() -> None:
    mutator = Mutator(Random(1), [bytes(20_000)])
    assert {len(mutator.input()) <= 16_384 for _ in range(200)} == {True}


def test_blocks_of_all_targets_take_turns() -> None:
    assert list(fuzz.work(["a", "b"], 2100)) == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2)]


def test_conversations_of_real_clients_are_read_to_their_end() -> None:
    decoded = 0
    for script in seeds.scripts():
        conversation = converse(Session, steps_of(script))
        assert conversation.refused is None
        assert "malformed" not in conversation.decoded
        decoded += conversation.decoded.get("full", 0)
    assert decoded > 100


def test_share_fetches_are_read_in_a_session() -> None:
    conversation = converse(Session, steps_of(seeds.scripts()[-1]))
    assert conversation.decoded["full"] == 6
    assert [exchange["api_key"] for exchange in conversation.exchanges] == [78, 78, 78]
    assert all(exchange["response"].topics_are_ids for exchange in conversation.exchanges)
