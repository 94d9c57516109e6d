"""Whatever tagged fields a broker sends: the features of the fleet follow its own, and every other byte stays."""

import struct
from collections.abc import Mapping
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.wire import TRUNCATED, DecodeError
from proxy.features.catalog import LevelRange
from proxy.features.view import FeaturesView
from proxy.interceptors.feature_tags import add_features
from tests.tools.messages import uvarint

SUPPORTED, EPOCH, FINALIZED = 0, 1, 2


class Entry(NamedTuple):
    """A feature in a response. ``levels``: as they stand there. ``tags``: encoded, with their count."""

    name: str
    levels: tuple[int, int]
    tags: bytes = b"\0"

    def encode(self) -> bytes:
        raw = self.name.encode()
        return uvarint(len(raw) + 1) + raw + struct.pack(">hh", *self.levels) + self.tags


class Fields(NamedTuple):
    """The tagged fields of a response; None: there is none. ``other``: encoded values by tag, from 3."""

    supported: list[Entry] | None
    epoch: int | None
    finalized: list[Entry] | None
    other: Mapping[int, bytes]

    def encode(self) -> bytes:
        values = dict(self.other)
        if self.epoch is not None:
            values[EPOCH] = struct.pack(">q", self.epoch)
        for tag, entries in ((SUPPORTED, self.supported), (FINALIZED, self.finalized)):
            if entries is not None:
                values[tag] = uvarint(len(entries) + 1) + b"".join(one.encode() for one in entries)
        fields = (uvarint(tag) + uvarint(len(values[tag])) + values[tag] for tag in sorted(values))
        return uvarint(len(values)) + b"".join(fields)


levels = st.integers(-32_768, 32_767)
names = st.sampled_from(["brokerside.a", "brokerside.b", "brokerside." + "c" * 130, "metadata.version", "ä", ""])
tags = st.dictionaries(st.integers(0, 300), st.binary(max_size=3), max_size=2).map(
    lambda values: (
        uvarint(len(values))
        + b"".join(uvarint(tag) + uvarint(len(values[tag])) + values[tag] for tag in sorted(values))
    )
)
entries = st.none() | st.lists(st.builds(Entry, names, st.tuples(levels, levels), tags), max_size=4)
epochs = st.none() | st.integers(-2, 2**63 - 1)
others = st.dictionaries(st.integers(3, 2**31 - 1), st.binary(max_size=200), max_size=3)
sections = st.builds(Fields, entries, epochs, entries, others)
ranges = st.dictionaries(names, st.builds(LevelRange, st.integers(1, 5), st.integers(5, 9)), max_size=3)
views = st.builds(FeaturesView, ranges, ranges, st.integers(-1, 2**63 - 1))
before = st.binary(min_size=4, max_size=4)
after = st.binary(max_size=3)


def joined(there: list[Entry] | None, added: Mapping[str, tuple[int, int]]) -> list[Entry] | None:
    more = [Entry(name, both) for name, both in added.items() if name not in {one.name for one in there or ()}]
    return there if not more else [*(there or ()), *more]


@pytest.mark.promise(
    "features.md", "The fleet's features follow the broker's own in ApiVersions, and every other byte stays."
)
@given(sections, views, before, after)
def test_what_a_client_gets(sent: Fields, view: FeaturesView, throttle: bytes, trailer: bytes) -> None:
    supported = joined(sent.supported, {name: (one.min, one.max) for name, one in view.supported.items()})
    epoch, finalized = sent.epoch, sent.finalized
    if view.epoch >= 0:
        epoch = view.epoch if epoch is None or epoch < 0 else epoch
        finalized = joined(finalized, {name: (one.max, one.min) for name, one in view.finalized.items()})
    expected = Fields(supported, epoch, finalized, sent.other)
    out = add_features(throttle + sent.encode() + trailer, view)
    assert out == throttle + expected.encode() + trailer
    assert add_features(out, view) == out


def test_fields_that_are_not_in_order_are_refused() -> None:
    for wrong in (b"\2\5\0\4\0", b"\2\5\0\5\0", b"\1\1\1\0", b"\1\0\1\0", b"\1\0\2\1\0"):
        with pytest.raises((*TRUNCATED, DecodeError)):
            add_features(bytes(4) + wrong, FeaturesView({"brokerside.a": LevelRange(1, 1)}))
