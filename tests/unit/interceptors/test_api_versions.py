"""What the broker's ApiVersions response becomes: the apis and features of the sidecar more, and all else as it was."""

import struct
from collections.abc import Mapping
from typing import Any

import pytest

from proxy.core.accessors import Accessors
from proxy.core.struct import view
from proxy.features.catalog import SUPPORTED, LevelRange
from proxy.features.view import FeaturesDirectory, FeaturesView
from proxy.interceptors.api_versions import ApiVersionsInterceptor
from proxy.interceptors.supported_versions import SupportedVersions, VersionRange
from tests.cases import each
from tests.tools.messages import uvarint
from tests.tools.record_ranges import VIEW, recorded_bodies

PRIVATE = {30000: (0, 0)}
VERSIONS = range(6)
BROKER = {0: (0, 13), 1: (4, 17), 3: (0, 13), 18: (0, 4)}
TAIL = struct.pack(">i", 77)


class Bench:
    """An interceptor, and what it has learnt."""

    def __init__(self, newest: Mapping[int, int] | None = None, features: FeaturesView | None = None) -> None:
        self.learnt: list[Mapping[int, VersionRange]] = []
        self.supported = SupportedVersions(PRIVATE, ({} if newest is None else newest).get)
        self.features = FeaturesDirectory()
        self.features.view = features or FeaturesView()
        self.versions = ApiVersionsInterceptor(self.supported, self.features, self.learnt.append)

    def rewrite(self, version: int, body: bytes) -> bytes:
        return self.versions.rewrite(18, version, body)


def answer(version: int, apis: Mapping[int, VersionRange], *, error: int = 0, tail: bytes = TAIL) -> bytes:
    """A response."""
    compact = version >= 3
    count = uvarint(len(apis) + 1) if compact else struct.pack(">i", len(apis))
    entries = (struct.pack(">hhh", key, *versions) + (b"\0" if compact else b"") for key, versions in apis.items())
    return struct.pack(">h", error) + count + b"".join(entries) + tail


@pytest.mark.promise("broker-metadata.md", "ApiVersions names the sidecar's own api after those of the broker.")
@each("version", VERSIONS)
def test_the_apis_of_the_sidecar_follow_those_of_the_broker(version: int) -> None:
    bench = Bench()
    assert bench.rewrite(version, answer(version, BROKER)) == answer(version, BROKER | PRIVATE)
    assert bench.learnt == [BROKER]


@each("version", VERSIONS)
def test_what_may_pass_changes_between_two_equal_responses(version: int) -> None:
    newest: dict[int, int] = {}
    bench = Bench(newest)
    assert bench.rewrite(version, answer(version, BROKER)) == answer(version, BROKER | PRIVATE)
    newest[1] = 16
    bench.versions.clear_cache()
    assert bench.rewrite(version, answer(version, BROKER)) == answer(version, BROKER | {1: (4, 16)} | PRIVATE)


@each("version", VERSIONS)
@each("count", [1, 126, 127, 128, 16_382, 16_383])
def test_where_the_length_of_the_list_takes_a_byte_more(version: int, count: int) -> None:
    broker = dict.fromkeys(range(count), (0, 1))
    assert Bench().rewrite(version, answer(version, broker)) == answer(version, broker | PRIVATE)


@each("version", VERSIONS)
def test_the_answer_to_an_unknown_version_has_the_form_of_v0_and_stays(version: int) -> None:
    bench = Bench()
    sent = answer(0, {18: (0, 4)}, error=35, tail=b"")
    assert bench.rewrite(version, sent) == sent
    assert bench.learnt == []


@pytest.mark.promise("addresses.md", "Clients are not offered versions with addresses that the sidecar cannot rewrite.")
@each("version", VERSIONS)
def test_versions_that_may_not_pass_are_not_returned(version: int) -> None:
    bench = Bench({1: 16, 3: 13, 60: 1})
    broker = {**BROKER, 60: (2, 3), 10: (0, 6)}
    reported = {0: (0, 13), 1: (4, 16), 3: (0, 13), 18: (0, 4), 10: (0, 6)}
    assert bench.rewrite(version, answer(version, broker)) == answer(version, reported | PRIVATE)
    assert bench.learnt == [broker]


@each("version", [3, 4, 5])
@each("tail", [b"", TAIL, TAIL + b"\2\1", TAIL + uvarint(2) + b"\2\1\1\0\1\1"])
def test_an_end_that_cannot_be_read_stays_and_gets_no_features(version: int, tail: bytes) -> None:
    features = FeaturesView({"brokerside.a": LevelRange(1, 1)})
    sent, without = answer(version, BROKER, tail=tail), answer(version, BROKER | PRIVATE, tail=tail)
    assert Bench(features=features).rewrite(version, sent) == Bench().rewrite(version, sent) == without


# ---- features, in responses of real brokers --------------------------------------------------------------------------


RECORDED = {which: both for which, both in recorded_bodies().items() if both[0].startswith(b"\0\0")}


def read(version: int, body: bytes) -> dict[str, Any]:
    message = view(18, version, body, response=True)
    return {name: message.get(name) for name in message.field_names()}


def rows(features: tuple[Accessors, ...]) -> list[tuple[Any, ...]]:
    return [tuple(one.get(name) for name in one.field_names()) for one in features]


@pytest.mark.promise(
    "features.md", "ApiVersions responses of real brokers show the fleet's features, byte for byte as recorded."
)
@each("which", RECORDED)
def test_features_of_the_fleet_follow_those_of_a_real_broker(which: tuple[str, int]) -> None:
    version, (sent, received) = which[1], RECORDED[which]
    assert Bench(features=VIEW).rewrite(version, sent) == received
    before, after = read(version, sent), read(version, received)
    ours = [(name, levels.min, levels.max) for name, levels in SUPPORTED.items()]
    assert rows(after["SupportedFeatures"]) == rows(before["SupportedFeatures"]) + ours
    finalized = [*rows(before["FinalizedFeatures"]), ("brokerside.audit.event.schema", 2, 1)]
    assert rows(after["FinalizedFeatures"]) == finalized
    assert rows(after["ApiKeys"]) == [*rows(before["ApiKeys"]), (30000, 0, 0)]
    changed = dict.fromkeys(("SupportedFeatures", "FinalizedFeatures", "ApiKeys"))
    assert after | changed == before | changed
    assert before["FinalizedFeaturesEpoch"] > VIEW.epoch, "the broker's, as it was"
    alone = Bench().rewrite(version, sent)
    assert Bench(features=FeaturesView({}, VIEW.finalized, VIEW.epoch)).rewrite(version, sent) == alone
    entry = (30000).to_bytes(2, "big") + bytes(5)
    assert alone.replace(entry, b"")[4:] == sent[4:], "without features: an api more, and the length of the list"
