"""What is concluded from the journals of consumers, and which replays their events explain."""

import pytest

from tests.integration.journals import (
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
)

SOURCE = "t", 0, 1


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
