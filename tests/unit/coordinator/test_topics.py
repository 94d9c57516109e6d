"""Topics: what a consumer subscribes to; added, deleted, grown, recreated; by name and by pattern."""

import json

import pytest

from proxy.coordinator.effects import WatchTopics
from proxy.coordinator.events import PartitionAssigned, TopicsChanged
from proxy.coordinator.records import partition_of
from proxy.coordinator.subscription import MAX_PATTERN, TopicCount, parse_topic_count
from proxy.coordinator.topics import TopicIndex
from proxy.coordinator.wire import SMALLEST, RegistrationRefused
from tests.unit.coordinator.driver import Driver, topic


@pytest.mark.promise("coordinator.md", "A topic that does not exist, or grows, is assigned once it does.")
def test_topics_that_are_created_grow_and_go_are_assigned_and_taken_away() -> None:
    driver = Driver()
    (c1,) = driver.stable("c1", topic_count='{"t9": 1}')
    assert c1.partitions() == []
    driver.change_topics(t9=topic(3))
    driver.advance(1000)
    assert c1.partitions() == [("t9", 0), ("t9", 1), ("t9", 2)]
    c1.offsets["t9", 0] = 5
    driver.change_topics(t9=topic(4))
    driver.advance(1000)
    assert c1.fetches == {("t9", 0): 5, **{("t9", number): -2 for number in range(1, 4)}}
    kinds = c1.kinds()
    driver.change_topics(t9=driver.topics["t9"]._replace(leaders=(2, 2, 2, -1)))
    driver.advance(1000)
    assert c1.kinds() == kinds, "another leader alone is no reason"

    driver = Driver()
    (c1,) = driver.stable("c1", topic_count="*1*logs.*")
    driver.change_topics(logs1=topic(1), other=topic(1), __logs=topic(1))
    driver.advance(1000)
    assert c1.partitions() == [("logs1", 0)]
    driver.change_topics(logs2=topic(1), logs1=None)
    driver.advance(1000)
    assert c1.partitions() == [("logs2", 0)]


def test_what_is_watched() -> None:
    driver = Driver()
    driver.stable("c1")
    driver.stable("c2", topic_count='{"t": 1, "u": 1}')
    driver.stable("c3", topic_count="*1*x")
    for consumer in driver.consumers.values():
        consumer.end()
    driver.advance(1000)
    watched = [(watch.watch, watch.names, watch.all_topics) for watch in driver.all(WatchTopics)]
    assert watched[:3] == [(0, {"t"}, False), (1, {"t", "u"}, False), (2, frozenset(), True)]
    assert watched[-1][1:] == (frozenset(), False)


def test_index() -> None:
    index = TopicIndex()
    named, pattern = parse_topic_count('{"a": 1}'), parse_topic_count("*1*.*")
    index.subscribe("g", "named", named)
    index.subscribe("g", "named", named)
    index.subscribe("h", "pattern", pattern)
    assert index.take_watch() == WatchTopics(0, frozenset(), True)
    assert index.take_watch() is None
    assert not index.are_known("g")
    assert index.changed(TopicsChanged(-1, {"b": topic(1)})) == {"b": {"h"}}
    assert not index.are_known("h"), "that was asked before"
    assert index.changed(TopicsChanged(0, {"a": topic(2), "b": topic(1)})) == {"a": {"g", "h"}}
    assert index.are_known("g")
    assert index.are_known("h")
    assert (index.leader("a", 1), index.leader("a", 2), index.leader("z", 0)) == (1, -1, -1)
    index.unsubscribe("g", "named")
    assert index.take_watch() is None
    index.unsubscribe("g", "named")
    index.unsubscribe("h", "pattern")
    assert index.take_watch() == WatchTopics(1, frozenset(), False)
    index.subscribe("g", "named", named)
    assert index.take_watch() == WatchTopics(2, frozenset({"a"}), False)
    assert index.changed(TopicsChanged(1, {})) == {}, "nobody had asked for any"
    assert not index.are_known("g")
    assert index.changed(TopicsChanged(2, {"a": topic(2)})) == {"a": {"g"}}
    assert index.changed(TopicsChanged(1, {})) is None, "late"
    assert list(index.topics) == ["a"]
    assert index.changed(TopicsChanged(2, {})) == {"a": {"g"}}


def test_offsets_outlive_the_moment_in_which_nobody_subscribes() -> None:
    """The last member goes, and the next one registers before the answer that nothing is watched."""
    driver = Driver()
    (c1,) = driver.stable("c1")
    c1.offsets = {("t", 0): 42}
    driver.advance(3000)
    driver.topics_hang = True
    c1.end(by_peer=False)
    c2 = driver.register("c2")
    watch = driver.all(WatchTopics)[-1].watch
    driver.do(TopicsChanged(watch - 1, {}))
    driver.do(TopicsChanged(watch, driver.topics))
    driver.advance(10_000)
    assert c2.fetches["t", 0] == 42


def test_a_topic_that_was_recreated_before_a_takeover_is_told_apart_where_it_is_watched_already() -> None:
    before = Driver(partition_count=2)
    (c1,) = before.stable("c1")
    driver = Driver(hold=False, partition_count=2)
    driver.topics = {"t": topic(4, "id-2")}
    driver.do(PartitionAssigned(1 - before.partition, is_empty=False))
    driver.stable("o1", group=next(name for name in "hijk" if partition_of(name, 2) != before.partition))
    driver.records = dict(before.records)
    driver.do(PartitionAssigned(before.partition, is_empty=False))
    again = driver.register("c1", fetches=c1.fetches, offsets={("t", 0): 77})
    driver.advance(1000)
    assert again.fetches["t", 0] == SMALLEST
    assert driver.count("offsets_total", "accepted") == 0


EXISTING = ["whitetopic", "whitetopic.2", "a.whitetopic", "blacktopic", "__consumer_offsets", "_whitetopic"]

SELECTED: dict[str, tuple[list[str], dict[str, int]]] = {
    '{"t1": 4, "t2": 1}': (["t2", "t3", "t1"], {"t2": 1, "t1": 4}),
    '{"__consumer_offsets": 1}': (EXISTING, {"__consumer_offsets": 1}),
    "*4*whitetopic.*": (EXISTING, {"whitetopic": 4, "whitetopic.2": 4}),
    "!4!blacktopic.*": (EXISTING, dict.fromkeys(["whitetopic", "whitetopic.2", "a.whitetopic", "_whitetopic"], 4)),
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
        assert (error.code, "no topic can be named" in str(error)) == (17, True), name
    for text in WRONG:
        error = refusal(text)
        assert (error.code, len(str(error)) < 200) == (42, True), text[:80]
