"""What is concluded from the journals of consumers, and which replays their events explain."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.journals import (
    MILLISECOND,
    UNSURE,
    Change,
    Event,
    Explainer,
    HandedOut,
    Journal,
    Loss,
    Outage,
    Replay,
    Report,
    UnsureTakeover,
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


def test_overlaps_skipped_messages_replays_and_pauses_are_found(tmp_path: Path) -> None:
    first = journal("a", one(0, 10 * MILLISECOND), one(1, 20 * MILLISECOND), one(2, 30 * MILLISECOND))
    assert find_overlaps([first, journal("b", one(3, 40 * MILLISECOND))]) == []
    assert find_overlaps([first, journal("b", one(3, 25 * MILLISECOND), one(4, 40 * MILLISECOND))])
    waited = journal("b", one(3, 5 * MILLISECOND, 25 * MILLISECOND))
    assert find_overlaps([first, waited]) == [], "it may have been before"
    again = journal("a", one(0, 10), one(2, 30), assigned=(5, 25))
    assert find_overlaps([again, journal("b", one(1, 20))]) == [], "it had the partition again"
    second = journal("b", one(2, 90 * MILLISECOND), one(4, 95 * MILLISECOND))
    assert count_skipped([first, second], {SOURCE: 5, ("t", 0, 0): 0}) == {SOURCE: 1}
    assert find_replays([first, second]) == [Replay("a", first.handed_out[2], "b", second.handed_out[0])]
    assert longest_pauses([first, second], 40 * MILLISECOND, 50 * MILLISECOND) == {SOURCE: 60}
    path = tmp_path / "consumer-1"
    path.write_text("assigned 5 t 1\nstarted 6\nhanded_out t 0 1 7 10 11\nreported 15 t 1 8\nhanded_out t 0 1 8 3")
    found = Journal("consumer-1", [one(7, 10)], [Change(5, "t", 1)], [], [Report(15, "t", 1, 8)], None, [6])
    assert read_journal(path) == found, "up to its last whole line"


FIRST, SECOND = HandedOut(SOURCE, 7, 100, 101), HandedOut(SOURCE, 7, 300, 301)
KILLED = Loss("a", "kill", 120, 120, 30)
OUTAGE = Outage("cut", 130, 160)


def explain(*events: Event, reported: tuple[int, ...] = (), committed: int = 0, assigned: int = 290) -> str | None:
    """Why a message of 100 was handed out again at 300. ``reported``, ``committed``: when it was."""
    reports = [Report(at, "t", 1, 8) for at in reported]
    first = Journal("a", [FIRST], [Change(90, "t", 1)], [], reported=reports, failure=None)
    second = Journal("b", [SECOND], [Change(assigned, "t", 1)], [], [], None)
    commits = [Report(committed, "t", 1, 8)] if committed else []
    explainer = Explainer([first, second], events, commits, unreported=30, uncommitted=40, lease=60)
    return explainer.explain(Replay("a", FIRST, "b", SECOND))


@pytest.mark.promise(
    "coordinator.md",
    "A message is handed out again only where its consumer or coordinator was lost before its offset was committed.",
)
def test_a_replay_is_explained_by_a_loss_only_if_its_consumer_could_not_report() -> None:
    assert explain() is None
    assert explain(KILLED) == "kill"
    assert explain(KILLED._replace(name="c")) is None
    assert explain(KILLED, reported=(110,)) is None
    assert explain(KILLED._replace(at=140, until=140)) is None, "it had to report before"
    assert explain(KILLED, OUTAGE, reported=(110,)) == "kill, cut"
    assert explain(OUTAGE, reported=(110,)) is None, "the consumer lived, and reports again"
    assert explain(UnsureTakeover(140, 200), reported=(150,)) == UNSURE
    assert explain(KILLED, committed=110) is None
    assert explain(KILLED, assigned=95) is None
