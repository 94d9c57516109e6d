"""``topic_count``: what a consumer subscribes to."""

from __future__ import annotations

import json

import pytest

from proxy.coordinator.subscription import MAX_PATTERN, TopicCount, parse_topic_count
from proxy.coordinator.wire import RegistrationRefused

TOPICS = ["whitetopic", "whitetopic.2", "a.whitetopic", "blacktopic", "__consumer_offsets", "_whitetopic"]

SELECTED: dict[str, tuple[list[str], dict[str, int]]] = {
    '{"t1": 4, "t2": 1}': (["t2", "t3", "t1"], {"t2": 1, "t1": 4}),
    '{"__consumer_offsets": 1}': (TOPICS, {"__consumer_offsets": 1}),
    "*4*whitetopic.*": (TOPICS, {"whitetopic": 4, "whitetopic.2": 4}),
    "!4!blacktopic.*": (TOPICS, dict.fromkeys(["whitetopic", "whitetopic.2", "a.whitetopic", "_whitetopic"], 4)),
    "*2*a*": (["a", "aaa", "b"], {"a": 2, "aaa": 2}),
    "!2!!": (["a"], {"a": 2}),
    "*1000*a|b": (["b", "ab"], {"b": 1000}),
    "*1*" + "a" * MAX_PATTERN: (["a"], {}),
    **dict.fromkeys(["*1*.*", "*1*__.*", "!1!x", "*1*(?s).*"], (["__consumer_offsets", "__brokerside_groups"], {})),
    # ``re`` would take 2**240 steps for each of these.
    **{f"*1*{one}": (["a" * 240, "x" * 240], {}) for one in ("(a+)+b", "(a|aa)*b", "(a*)*b", "(x+x+)+y")},
}

NO_NAMES = ("", ".", "..", "a b", "é", "a" * 250, "a/b", "a\n", "a\0")

WRONG = (
    *("", "{", "{}", "t", "[1]", '{"t": 0}', '{"t": -1}', '{"t": 1001}', '{"t": 1.5}', '{"t": true}', '{"t": "1"}'),
    *('{"t": 1} x', '{"t": ' + "[" * 30_000, json.dumps({f"t{number}": 1 for number in range(1001)})),
    *("*0*a", "*1001*a", "*99999*a", "*-1*a", "*1*", "*1!a", "*a", "**a", "!١!a", " *1*a"),
    *("*1*(", "*1*a{1001}", r"*1*(a)\1", "*1*(?=a)", "*1*é", "*1*" + "a" * (MAX_PATTERN + 1)),
    *("*1*(.{0,250}a){4}", "*1*((a{100}){100}){100}"),
)


def refusal(text: str) -> RegistrationRefused | None:
    try:
        parse_topic_count(text)
    except RegistrationRefused as error:
        return error
    return None


@pytest.mark.promise("consumer.md", "A pattern matches whole names of topics, and none that begins with `__`.")
def test_topics_are_selected_by_name_and_by_pattern() -> None:
    for text, (topics, selected) in SELECTED.items():
        assert parse_topic_count(text).select(topics) == selected, text
    assert parse_topic_count('{"t1": 4, "t2": 1}') == TopicCount(4, {"t1": 4, "t2": 1})
    assert parse_topic_count("*4*white.*") == TopicCount(4, {}, "white.*")
    assert parse_topic_count("!4!black.*") == TopicCount(4, {}, "black.*", excludes=True)
    for name in ("a" * 249, "...", "..a", "a.", "_-.9Z"):
        assert parse_topic_count(json.dumps({name: 1})).named == {name: 1}
    longest = json.dumps({f"t{number}": 1000 for number in range(1000)})
    assert len(parse_topic_count(longest).named) == 1000


def test_a_name_that_no_topic_can_have_is_error_17_and_all_else_that_is_wrong_42() -> None:
    for name in NO_NAMES:
        error = refusal(json.dumps({"t": 1, name: 1}))
        assert error is not None, name
        assert (error.code, "no topic can be named" in str(error)) == (17, True), name
    for text in WRONG:
        error = refusal(text)
        assert error is not None, text[:80]
        assert (error.code, len(str(error)) < 200) == (42, True), text[:80]
