"""What is concluded from the journals of consumers."""

from __future__ import annotations

from pathlib import Path

from tests.integration.journals import (
    MILLISECOND,
    Change,
    HandedOut,
    Journal,
    Replay,
    Report,
    count_skipped,
    find_overlaps,
    find_replays,
    longest_pauses,
    read_journal,
)

SOURCE = "t", 0, 1


def one(offset: int, before: int, after: int = 0) -> HandedOut:
    return HandedOut(SOURCE, offset, before, after or before + 1)


def journal(name: str, *messages: HandedOut, assigned: tuple[int, ...] = ()) -> Journal:
    return Journal(name, messages, [Change(at, "t", 1) for at in assigned], [], [], None)


def test_a_message_between_two_of_another_consumer_is_an_overlap() -> None:
    first = journal("a", one(0, 10), one(1, 20), one(2, 30))
    assert find_overlaps([first, journal("b", one(3, 40))]) == []
    assert find_overlaps([first, journal("b", one(3, 25), one(4, 40))])
    assert find_overlaps([journal("b", one(3, 25)), first])


def test_a_consumer_may_have_a_partition_again() -> None:
    other = journal("b", one(1, 20))
    assert find_overlaps([journal("a", one(0, 10), one(2, 30), assigned=(5, 25)), other]) == []
    assert find_overlaps([journal("a", one(0, 10), one(2, 30), assigned=(5,)), other])


def test_what_may_have_been_before_is_no_overlap() -> None:
    """The process was stopped between the handing out and the line in its journal, or waited for the message."""
    waited = journal("b", one(3, 5, 25))
    assert find_overlaps([journal("a", one(0, 10), one(2, 30)), waited]) == []
    late = journal("a", one(0, 10), one(1, 11, 50), one(2, 60), assigned=(5, 40))
    assert find_overlaps([late, journal("b", one(3, 20), one(4, 30))]) == []


def test_other_partitions_have_nothing_to_do_with_it() -> None:
    other = HandedOut(("t", 0, 2), 3, 20, 21)
    assert find_overlaps([journal("a", one(0, 10), one(2, 30)), journal("b", other)]) == []


def test_skipped_replayed_and_pauses() -> None:
    first = journal("a", one(0, 10 * MILLISECOND), one(1, 20 * MILLISECOND))
    second = journal("b", one(1, 90 * MILLISECOND), one(3, 95 * MILLISECOND))
    assert count_skipped([first, second], {SOURCE: 4}) == {SOURCE: 1}
    assert count_skipped([first, second], {("t", 0, 0): 0}) == {}
    assert find_replays([first, second]) == [Replay("a", first.handed_out[1], "b", second.handed_out[0])]
    assert longest_pauses([first, second], 30 * MILLISECOND, 40 * MILLISECOND) == {SOURCE: 70}
    assert longest_pauses([first, second], 96 * MILLISECOND, 99 * MILLISECOND) == {SOURCE: 0}


def test_a_journal_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "consumer-1"
    path.write_text(
        "assigned 5 t 1\nstarted 6\nhanded_out t 0 1 7 10 11\nreported 15 t 1 8\nrevoked 20 t 1\n"
        "failed group g: no\nhanded_out t 0 1 8 3"
    )
    changes = [Change(5, "t", 1)], [Change(20, "t", 1)]
    found = Journal("consumer-1", [one(7, 10)], *changes, [Report(15, "t", 1, 8)], "group g: no", [6])
    assert read_journal(path) == found
