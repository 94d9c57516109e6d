"""The catalog of features contradicts itself nowhere, and one that does is refused."""

from __future__ import annotations

import pytest

from proxy.features import catalog
from proxy.features.catalog import LevelRange

NAME = "brokerside.made.up"


def test_this_release() -> None:
    assert {name: str(levels) for name, levels in catalog.SUPPORTED.items()} == {
        "brokerside.audit.event.schema": "1 to 2",
        "brokerside.coordinator.protocol": "1 to 2",
        "brokerside.broker.metadata": "1 to 1",
        "brokerside.quota.ip": "1 to 1",
    }
    assert catalog.SUPPORTED.keys() >= catalog.READER_FEATURES
    assert catalog.UNSAFE_TO_LEAVE.keys() <= catalog.SUPPORTED.keys()


@pytest.mark.parametrize(
    ("name", "levels", "low", "meanings", "text"),
    [
        (NAME, LevelRange(0, 1), 1, {1: "x"}, r"made\.up: supports 0 to 1 \(allowed: 1 to 32767, the minimum first\)"),
        (NAME, LevelRange(2, 1), 1, {1: "x"}, "supports 2 to 1"),
        (NAME, LevelRange(1, 32_768), 1, {}, "supports 1 to 32768"),
        ("made.up", LevelRange(1, 1), 1, {1: "x"}, r"made\.up: a feature of the fleet begins with brokerside\."),
        (NAME, LevelRange(1, 2), 3, {1: "x", 2: "x"}, "the lowest finalized level 3 is not in 1 to 2"),
        (NAME, LevelRange(1, 2), 1, {1: "x"}, "no meaning of level 2"),
    ],
)
def test_a_catalog_that_cannot_be(name: str, levels: LevelRange, low: int, meanings: dict[int, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        catalog.check({name: levels}, {name: low}, {name: meanings})
