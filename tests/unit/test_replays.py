"""Which replays the events of a journal explain, and which they do not."""

from __future__ import annotations

import pytest

from tests.integration.journals import Change, HandedOut, Journal, Replay, Report
from tests.integration.replays import UNSURE, Event, Explainer, Loss, Outage, Recreation, UnsureTakeover

SOURCE = "t", 0, 1
FIRST, SECOND = HandedOut(SOURCE, 7, 100, 101), HandedOut(SOURCE, 7, 300, 301)
REPLAY = Replay("a", FIRST, "b", SECOND)
KILLED = Loss("a", "kill", 120, 120, 30)
LEFT = Loss("a", "leave", 200, 200, 0)


def explain(
    *events: Event,
    reported: tuple[int, ...] = (),
    committed: int = 0,
    assigned: int = 290,
    started: tuple[int, ...] = (),
) -> str | None:
    """Why a message of 100 was handed out again at 300. ``reported``, ``committed``: when it was. ``started``: when its
    consumer has responded to StartFetcher."""
    reports = [Report(at, "t", 1, 8) for at in reported]
    first = Journal("a", [FIRST], [Change(90, "t", 1)], [], reported=reports, failure=None, started=started)
    second = Journal("b", [SECOND], [Change(assigned, "t", 1)], [], [], None)
    commits = [Report(committed, "t", 1, 8)] if committed else []
    return Explainer([first, second], events, commits, unreported=30, uncommitted=40, lease=60).explain(REPLAY)


def test_a_consumer_that_was_lost_before_it_reported() -> None:
    assert explain() is None
    assert explain(KILLED) == "kill"
    assert explain(KILLED._replace(name="c")) is None
    assert explain(KILLED, reported=(130,)) == "kill", "it was cut off by then"
    assert explain(KILLED, reported=(110,)) is None
    assert explain(KILLED._replace(at=140, until=140)) is None, "it had to report before"
    assert explain(KILLED._replace(at=80, until=99)) is None, "it was over"
    assert explain(KILLED._replace(at=80, until=170)) == "kill", "it went on on its lease"
    assert explain(KILLED._replace(at=295, until=295, unreported=300)) is None, "it was handed out again before"


@pytest.mark.parametrize("loss", [KILLED, LEFT])
def test_a_coordinator_that_ended_with_what_it_had_heard(loss: Loss) -> None:
    outage = Outage("cut", 130, 160)
    assert explain(loss, outage, reported=(110,)) == f"{loss.what}, cut"
    assert explain(loss, outage._replace(at=151, until=160), reported=(110,)) is None, "it had to commit before"
    assert explain(outage, reported=(110,)) is None, "the consumer lived, and reports again"
    assert explain(loss._replace(at=250, until=250), outage, reported=(110, 180)) is None, "to the next coordinator"
    ended = Outage("kill", 190, 190)
    assert explain(loss._replace(at=250, until=250), outage, ended, reported=(110, 180)) == f"{loss.what}, cut"


def test_a_consumer_that_was_lost_while_it_had_no_coordinator() -> None:
    lost, outage = Loss("a", "kill", 180, 180, 30), Outage("kill", 125, 125)
    assert explain(lost) is None
    assert explain(lost, outage) == "kill, kill"
    assert explain(LEFT, outage) == "leave, kill"
    assert explain(lost, outage._replace(at=140, until=140)) is None, "it had to report before"
    assert explain(lost, outage._replace(at=30, until=35)) is None, "it had another one since"


def test_a_successor_that_takes_nothing_before_startfetcher() -> None:
    takeover = UnsureTakeover(140, 200)
    assert explain(takeover, reported=(150,)) == UNSURE, "it lives, and began anew, or its partition is another's"
    assert explain(reported=(150,)) is None, "whoever knows that it had StartFetcher takes it"
    assert explain(takeover) is None, "one that lives reports"
    assert explain(takeover, reported=(150,), started=(95,)) == UNSURE, "by the predecessor"
    assert explain(takeover, reported=(150,), started=(145,)) is None
    assert explain(takeover, reported=(150, 170), started=(160,)) is None, "it has reported again"
    assert explain(takeover, reported=(210,)) is None, "StartFetcher had to be sent by then"
    assert explain(takeover, reported=(150,), committed=250) is None
    assert explain(takeover._replace(at=151), reported=(150,)) is None, "the predecessor had to commit it"


def test_a_successor_that_takes_nothing_and_a_predecessor_that_could_not_commit() -> None:
    takeover, outage = UnsureTakeover(140, 200), Outage("kill", 138, 138)
    assert explain(takeover, outage, reported=(110, 150)) == UNSURE
    assert explain(takeover, outage._replace(at=160, until=160), reported=(110, 150)) is None, "it had to commit before"
    lost = Loss("a", "reset", 180, 180, 30)
    assert explain(lost, takeover, outage, reported=(110, 150)) == "reset, kill"
    assert explain(lost, takeover, reported=(150,)) == f"reset, {UNSURE}"
    assert explain(lost, takeover, reported=(150,), started=(145,)) is None


def test_nothing_explains_what_was_committed_or_not_handed_on() -> None:
    assert explain(KILLED, committed=110) is None
    assert explain(KILLED, committed=295) == "kill", "by its next owner"
    assert explain(KILLED, assigned=95) is None


def test_a_topic_that_was_recreated_is_read_anew_for_a_while() -> None:
    assert explain(Recreation("t", 60, 110)) == "recreate"
    assert explain(Recreation("t", 60, 90)) is None
    assert explain(Recreation("u", 60, 110)) is None
