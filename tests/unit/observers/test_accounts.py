from __future__ import annotations

from collections.abc import Mapping

from observers.accounts import MAX_GAPS, Accounts, Counts, Gap
from observers.batch import Chunk


def chunk(first: int, count: int) -> Chunk:
    return Chunk(first, count, b"{}")


def given(accounts: Accounts, *chunks: Chunk, last: int, lost: Mapping[str, int] | None = None) -> None:
    accounts.give(chunks, last, lost or {}, last, 0)


def balanced(counts: Counts) -> bool:
    return counts.emitted == counts.delivered + counts.lost + counts.spooled + counts.queued


def gap(reason: str, first: int, last: int, boot: str = "me") -> Gap:
    return Gap(reason, boot, first, last)


def test_events_go_from_memory_to_disk_to_the_topic() -> None:
    accounts = Accounts("me")
    given(accounts, chunk(1, 10), last=10)
    assert (accounts.counts().queued, accounts.counts().taken) == (10, 10)
    accounts.store(1, 6)
    accounts.deliver(1, 4, spooled=True)
    accounts.deliver(7, 8, spooled=False)
    counts = accounts.counts()
    assert (counts.delivered, counts.spooled, counts.queued, accounts.kept) == (6, 2, 2, 8)
    assert balanced(counts)


def test_numbers_without_an_event_are_lost_for_the_reasons_given_in_their_order() -> None:
    accounts = Accounts("me")
    given(accounts, chunk(4, 2), chunk(8, 1), last=10, lost={"observer_queue": 3, "failed": 3, "too_large": 1})
    counts = accounts.counts()
    assert (counts.emitted, counts.queued) == (10, 3)
    assert counts.dropped == {"observer_queue": 3, "failed": 3, "too_large": 1}
    accounts.store(4, 5)
    assert accounts.take_gaps() == [gap("observer_queue", 1, 3)]
    accounts.store(8, 8)
    assert accounts.take_gaps() == [gap("failed", 6, 7)]
    given(accounts, chunk(11, 1), last=11)
    accounts.store(11, 11)
    assert accounts.take_gaps() == [gap("failed", 9, 9), gap("too_large", 10, 10)]
    assert balanced(accounts.counts())


def test_numbers_that_nobody_gave_a_reason_for_are_lost_all_the_same() -> None:
    accounts = Accounts("me")
    given(accounts, chunk(1, 2), last=5, lost={"observer_queue": 1})
    assert accounts.counts().dropped == {"observer_queue": 1, "failed": 2}
    assert balanced(accounts.counts())


def test_a_run_is_told_as_one_gap_once_it_has_ended() -> None:
    accounts = Accounts("me")
    given(accounts, chunk(1, 30), last=30)
    for first in (1, 11):
        accounts.lose("spool_full", first, first + 9, spooled=False)
        assert accounts.take_gaps() == []
    accounts.store(21, 30)
    assert accounts.take_gaps() == [gap("spool_full", 1, 20)]
    assert accounts.take_gaps() == []


def test_a_gap_is_told_once_its_event_is_kept_and_told_again_if_that_is_lost() -> None:
    accounts = Accounts("me")
    other = gap("killed", 5, 9, "other")
    accounts.add_gap(other)
    assert accounts.take_gaps() == [other]
    given(accounts, chunk(1, 1), last=1)
    assert accounts.told() == []
    accounts.lose("spool_full", 1, 1, spooled=False)
    assert accounts.take_gaps() == [other]
    given(accounts, chunk(2, 1), last=2)
    accounts.store(2, 2)
    assert accounts.told() == [other]
    assert accounts.told() == []
    assert accounts.take_gaps() == [gap("spool_full", 1, 1)]


def test_a_part_of_a_block_may_have_been_lost_before() -> None:
    accounts = Accounts("me")
    given(accounts, chunk(1, 4), chunk(7, 4), last=10, lost={"failed": 2})
    accounts.store(1, 4)
    accounts.store(7, 10)
    accounts.lose("spool_torn", 1, 10, spooled=True, events=8)
    assert accounts.counts().dropped == {"failed": 2, "spool_torn": 8}
    assert balanced(accounts.counts())


def test_gaps_that_nobody_takes_are_bounded() -> None:
    accounts = Accounts("me")
    for n in range(MAX_GAPS + 5):
        accounts.add_gap(gap("killed", 1, 1, f"boot{n}"))
    assert len(accounts.take_gaps()) == MAX_GAPS
