"""A spool gives back what it was given, in order and once, whatever happens in between."""

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from observers.spool import SEGMENT_SUFFIX, Spool, StoredBlock

SEGMENT_BYTES = 600

Step = tuple[str, int]

steps = st.lists(
    st.tuples(st.sampled_from(("put", "put", "direct", "take", "settle", "trim", "sync", "fail")), st.integers(0, 400)),
    max_size=60,
)


def json_of(first: int, size: int) -> bytes:
    return random.Random(first).randbytes(size)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{SEGMENT_SUFFIX}"))


class Model:
    """A spool, and what must be true of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spool = Spool(folder, segment=SEGMENT_BYTES)
        self.seq = 0
        self.sizes: dict[int, int] = {}
        self.waiting: list[int] = []
        self.out: dict[int, StoredBlock] = {}

    def step(self, what: str, n: int) -> None:
        if what in ("put", "direct"):
            self.put(n, direct=what == "direct" and self.spool.caught_up)
        elif what == "take":
            self.take()
        elif what == "settle" and self.out:
            first = sorted(self.out)[n % len(self.out)]
            stored = self.out.pop(first)
            self.spool.settle_block(stored, len(stored))
        elif what == "trim":
            self.spool.delete_settled_segments()
        elif what == "sync":
            self.spool.sync()
            assert not self.spool.unsynced
        elif what == "fail" and self.spool._segments and self.spool._segments[-1].descriptor >= 0:
            segment = self.spool._segments[-1]  # as after an error of the disk, with a part of a frame behind
            segment.sealed = True
        assert self.spool.caught_up is (not self.waiting)
        assert self.spool.done is (not self.waiting and not self.out)
        assert self.spool.peek_first() == (self.waiting[0] if self.waiting else None)
        assert self.spool.bytes == sum(file.stat().st_size for file in files(self.folder))

    def put(self, n: int, *, direct: bool) -> None:
        first, last = self.seq + 1, self.seq + 1 + n % 5
        self.seq = last
        self.sizes[first] = n
        stored = self.spool.append(first, last, 1, json_of(first, n), 0.0, direct=direct)
        assert (stored is not None) is direct
        if stored is None:
            self.waiting.append(first)
        else:
            self.out[first] = stored

    def take(self) -> None:
        taken = self.spool.read_next()
        assert (taken is None) is (not self.waiting)
        if taken is not None:
            stored, json = taken
            assert stored.first == self.waiting.pop(0)
            assert json == json_of(stored.first, self.sizes[stored.first])
            self.out[stored.first] = stored


@pytest.mark.promise("audit-delivery.md", "The spool gives back every block once and in order.")
@given(steps)
def test_what_goes_in_comes_out_once_and_in_order(reported: Sequence[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = Model(Path(folder))
        for what, n in reported:
            model.step(what, n)
        for first, stored in model.out.items():
            assert model.spool.read_again(stored) == json_of(first, model.sizes[first])
        while model.waiting:
            model.take()
        for stored in model.out.values():
            model.spool.settle_block(stored, len(stored))
        model.spool.delete_settled_segments()
        assert len(files(model.folder)) <= 1
        model.spool.close()


@pytest.mark.promise(
    "audit-delivery.md",
    "After a death the spool still has every block that was not delivered, but for a tail that was cut.",
)
@given(steps, st.integers(0, 3000))
def test_after_a_death_all_that_is_not_settled_is_there_but_for_a_cut_tail(reported: Sequence[Step], cut: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = Model(Path(folder))
        for what, n in reported:
            model.step(what, n)
        model.spool.close()
        last = files(model.folder)[-1:]
        for file in last:
            with file.open("r+b") as held:
                held.truncate(max(0, file.stat().st_size - cut))
        second = Spool(model.folder)
        found = []
        while (taken := second.read_next()) is not None:
            stored, json = taken
            assert json == json_of(stored.first, model.sizes[stored.first])
            found.append(stored.first)
        needed = sorted([*model.waiting, *model.out])
        assert found == sorted(set(found))
        missing = [first for first in needed if first not in found]
        assert all(first > max(found, default=0) for first in missing)
        assert not missing or cut
        assert second.torn == []
        second.close()
