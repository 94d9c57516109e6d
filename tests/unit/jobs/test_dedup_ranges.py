"""Written events are known by number: whenever they come again, in whatever parts."""

import json
import random

import pytest

from spark_jobs import dedup_ranges as module
from spark_jobs.dedup_ranges import AuditRecord, DedupRanges, SidecarBoot

BOOT, OTHER = SidecarBoot("kafka", 1, "boot"), SidecarBoot("kafka", 1, "other")


def record(
    first: int, last: int, *, boot: SidecarBoot = BOOT, partition: int = 0, offset: int = 7, other: int = 0
) -> AuditRecord:
    """A record whose event of each number is always the same, but for that of the number ``other``."""
    events = [(number, number == other) for number in range(first, last + 1)]
    middle = len(events) // 2
    whole, front, back = (hash(tuple(part)) for part in (events, events[:middle], events[middle:]))
    return AuditRecord(partition, offset, boot, first, last, (whole, front, back))


def add(taken: DedupRanges, first: int, last: int, boot: SidecarBoot = BOOT) -> list[tuple[int, int]] | None:
    """Intervals of the one record that are new; None: all of it."""
    ranges = taken.add_records([record(first, last, boot=boot)]).new_ranges
    return [*ranges[0, 7]] if ranges else None


def test_any_order_of_any_intervals_is_what_a_set_says() -> None:
    chance, taken, known = random.Random(20260922), DedupRanges(), set[int]()
    for _ in range(200):
        first = chance.randrange(1, 2_000)
        asked = range(first, first + chance.randrange(1, 30))
        found = add(taken, asked[0], asked[-1])
        new = set(asked) - known
        assert (set(asked) if found is None else {n for a, b in found for n in range(a, b + 1)}) == new
        known |= new
        taken = DedupRanges.from_json(taken.to_json())
    ((*_, found_ranges, _, _),) = json.loads(taken.to_json())
    assert found_ranges == ranges(known)


def ranges(numbers: set[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


@pytest.mark.promise(
    "jobs.md", "Ranges of written numbers are kept for the last boots of sidecars, whatever their age."
)
def test_those_heard_of_last_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BOOTS", 2)
    monkeypatch.setattr(module, "MAX_RANGES_PER_BOOT", 2)
    taken = DedupRanges()
    for name in ("a", "b", "a", "c"):
        add(taken, 1, 1, SidecarBoot("kafka", 1, name))
    for number in (3, 5):
        add(taken, number, number, SidecarBoot("kafka", 1, "c"))
    reported = [each[:4] for each in json.loads(taken.to_json())]
    assert reported == [["kafka", 1, "a", [[1, 1]]], ["kafka", 1, "c", [[3, 3], [5, 5]]]]
    assert add(taken, 1, 1, SidecarBoot("kafka", 1, "b")) is None


def conflicts(taken: DedupRanges, *records: AuditRecord) -> list[str]:
    return [*taken.add_records(records).conflicts.values()]


def noted(*records: AuditRecord) -> DedupRanges:
    """What was taken of ``records``, as the next batch of another run reads it."""
    taken = DedupRanges()
    assert not conflicts(taken, *records)
    return DedupRanges.from_json(taken.to_json())


@pytest.mark.promise(
    "audit-delivery.md",
    "A forged record with numbers of a sidecar is found as a conflict, before or after the true one.",
)
def test_a_forged_record_is_a_conflict_wherever_it_begins_and_ends() -> None:
    for forged in ((1, 200), (1, 1), (200, 200), (150, 350), (50, 60), (1, 1_000)):
        order = [record(*forged, other=forged[0]), record(1, 200)]
        for first, second in (order, order[::-1]):
            assert len(conflicts(noted(first), second)) == 1, forged
            assert len(conflicts(DedupRanges(), first, second)) == 1, forged
            assert not conflicts(noted(first), second._replace(boot=OTHER)), forged


@pytest.mark.promise(
    "jobs.md", "A repetition of a record whose digest is no longer kept is a conflict while its boot has digests."
)
def test_what_is_no_longer_known_is_a_conflict_within_a_process_and_none_of_one_long_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_DIGESTS_PER_BOOT", 2)
    monkeypatch.setattr(module, "MAX_DIGESTS", 2)
    taken = noted(*[record(number, number) for number in (1, 2, 3)])
    assert conflicts(taken, record(3, 3), record(2, 2)) == []
    assert conflicts(taken, record(1, 1)) == ["1 to 1 repeat numbers too old to be compared"]
    taken = DedupRanges.from_json(
        DedupRanges.from_json(
            noted(record(1, 1), record(1, 1, boot=OTHER), record(2, 2, boot=OTHER)).to_json()
        ).to_json()
    )
    assert conflicts(taken, record(1, 1, other=1), record(1, 1, boot=OTHER)) == []
    assert len(conflicts(taken, record(1, 1, boot=OTHER, other=1))) == 1
