"""``topic_count``: what a consumer subscribes to."""

from __future__ import annotations

import json

import pytest

from proxy.coordinator.subscription import MAX_PATTERN, TopicCount, parse_topic_count
from proxy.coordinator.wire import RegistrationRefused

TOPICS = ["whitetopic", "whitetopic.2", "a.whitetopic", "blacktopic", "__consumer_offsets", "_whitetopic"]


def test_topics_by_name() -> None:
    found = parse_topic_count('{"t1": 4, "t2": 1}')
    assert found == TopicCount(4, {"t1": 4, "t2": 1})
    assert found.select(["t2", "t3", "t1"]) == {"t2": 1, "t1": 4}
    assert found.select([]) == {}


def test_an_internal_topic_has_to_be_named() -> None:
    assert parse_topic_count('{"__consumer_offsets": 1}').select(TOPICS) == {"__consumer_offsets": 1}


def test_a_whitelist_is_of_whole_names() -> None:
    found = parse_topic_count("*4*whitetopic.*")
    assert found == TopicCount(4, {}, "whitetopic.*")
    assert found.select(TOPICS) == {"whitetopic": 4, "whitetopic.2": 4}


def test_a_blacklist_is_all_other_topics() -> None:
    found = parse_topic_count("!4!blacktopic.*")
    assert found == TopicCount(4, {}, "blacktopic.*", excludes=True)
    assert found.select(TOPICS) == dict.fromkeys(["whitetopic", "whitetopic.2", "a.whitetopic", "_whitetopic"], 4)


@pytest.mark.parametrize("text", ["*1*.*", "*1*__.*", "!1!x", "*1*(?s).*"])
def test_internal_topics_match_no_pattern(text: str) -> None:
    assert parse_topic_count(text).select(["__consumer_offsets", "__brokerside_groups"]) == {}


def test_a_pattern_may_have_the_marker_in_it() -> None:
    assert parse_topic_count("*2*a*").select(["a", "aaa", "b"]) == {"a": 2, "aaa": 2}
    assert parse_topic_count("!2!!").select(["a"]) == {"a": 2}
    assert parse_topic_count("*1000*a|b").select(["b", "ab"]) == {"b": 1000}


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "é", "a" * 250, "a/b", "a\n", "a\0"])
def test_a_name_that_no_topic_can_have_is_error_17(name: str) -> None:
    with pytest.raises(RegistrationRefused, match="no topic can be named") as error:
        parse_topic_count(json.dumps({"t": 1, name: 1}))
    assert error.value.code == 17


@pytest.mark.parametrize("name", ["a" * 249, "...", "..a", "a.", "_-.9Z"])
def test_names_that_topics_can_have(name: str) -> None:
    assert parse_topic_count(json.dumps({name: 1})).named == {name: 1}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "{}",
        "t",
        "[1]",
        '{"t": 0}',
        '{"t": -1}',
        '{"t": 1001}',
        '{"t": 1.5}',
        '{"t": true}',
        '{"t": "1"}',
        '{"t": 1} x',
        '{"t": ' + "[" * 30_000,
        json.dumps({f"t{number}": 1 for number in range(1001)}),
        "*0*a",
        "*1001*a",
        "*99999*a",
        "*-1*a",
        "*1*",
        "*1!a",
        "*a",
        "**a",
        "!١!a",
        "*1*(",
        "*1*a{1001}",
        r"*1*(a)\1",
        "*1*(?=a)",
        "*1*é",
        "*1*" + "a" * (MAX_PATTERN + 1),
        "*1*(.{0,250}a){4}",
        "*1*((a{100}){100}){100}",
        " *1*a",
    ],
)
def test_all_else_that_is_wrong_is_error_42(text: str) -> None:
    with pytest.raises(RegistrationRefused) as error:
        parse_topic_count(text)
    assert error.value.code == 42
    assert len(str(error.value)) < 200


def test_the_longest_list_and_the_longest_pattern() -> None:
    assert len(parse_topic_count(json.dumps({f"t{number}": 1000 for number in range(1000)})).named) == 1000
    assert parse_topic_count("*1*" + "a" * MAX_PATTERN).select(["a"]) == {}


def test_a_pattern_that_makes_others_backtrack() -> None:
    """``re`` would take 2**240 steps for each."""
    for pattern in ("(a+)+b", "(a|aa)*b", "(a*)*b", "(x+x+)+y"):
        assert parse_topic_count(f"*1*{pattern}").select(["a" * 240, "x" * 240]) == {}
