"""Features in ApiVersions responses of real brokers: after the broker's own, and nothing else differs."""

from __future__ import annotations

import io
from typing import Any

import pytest
from kio import index
from kio.serial import entity_reader, entity_writer

from proxy.core.accessors import Accessors
from proxy.core.apis import API_VERSIONS
from proxy.core.struct import view
from proxy.features.catalog import SUPPORTED, LevelRange
from proxy.features.view import FeaturesDirectory, FeaturesView
from proxy.interceptors.api_versions import ApiVersionsInterceptor
from proxy.interceptors.supported_versions import SupportedVersions
from tests.cases import each
from tests.tools.record_ranges import PRIVATE, VIEW, recorded_bodies, rewrite

RECORDED = {which: both for which, both in recorded_bodies().items() if both[0].startswith(b"\0\0")}

every_recording = each("which", RECORDED)


def read(version: int, body: bytes) -> dict[str, Any]:
    message = view(API_VERSIONS, version, body, response=True)
    return {name: message.get(name) for name in message.field_names()}


def rows(features: tuple[Accessors, ...]) -> list[tuple[Any, ...]]:
    return [tuple(one.get(name) for name in one.field_names()) for one in features]


def test_there_are_recordings_of_every_release() -> None:
    assert {kafka for kafka, _ in RECORDED} == {"3.9.2", "4.3.1", "4.4.0"}
    assert {version for _, version in RECORDED} == {3, 4, 5}


@pytest.mark.promise(
    "features.md", "ApiVersions responses of real brokers show the fleet's features, byte for byte as recorded."
)
@every_recording
def test_a_real_response_byte_for_byte(which: tuple[str, int]) -> None:
    before, after = RECORDED[which]
    assert rewrite(which[1], before) == after


@every_recording
def test_what_a_client_reads(which: tuple[str, int]) -> None:
    before, after = (read(which[1], body) for body in RECORDED[which])
    ours = [(name, levels.min, levels.max) for name, levels in SUPPORTED.items()]
    assert rows(after["SupportedFeatures"]) == rows(before["SupportedFeatures"]) + ours
    assert rows(after["FinalizedFeatures"]) == [
        *rows(before["FinalizedFeatures"]),
        ("brokerside.audit.event.schema", 2, 1),
    ]
    assert rows(after["ApiKeys"]) == [*rows(before["ApiKeys"]), (30000, 0, 0)]
    changed = {"SupportedFeatures", "FinalizedFeatures", "ApiKeys"}
    assert {name: after[name] for name in after if name not in changed} == {
        name: before[name] for name in before if name not in changed
    }
    assert before["FinalizedFeaturesEpoch"] > VIEW.epoch, "the broker's, as it was"


@each("which", [which for which in RECORDED if which[1] <= 4])
def test_kio_reads_and_writes_the_same(which: tuple[str, int]) -> None:
    """kio has no version 5."""
    before, after = RECORDED[which]
    made = index.load_response_schema(API_VERSIONS, which[1])
    (sent, _), (received, size) = entity_reader(made)(before, 0), entity_reader(made)(after, 0)
    assert size == len(after)
    assert len(received.supported_features) == len(sent.supported_features) + len(SUPPORTED)
    assert received.supported_features[: len(sent.supported_features)] == sent.supported_features
    assert received.finalized_features_epoch == sent.finalized_features_epoch
    out = io.BytesIO()
    entity_writer(made)(out, received)
    assert out.getvalue() == after


@every_recording
def test_without_features_not_a_byte_differs_from_the_private_apis_alone(which: tuple[str, int]) -> None:
    version, before = which[1], RECORDED[which][0]
    only_finalized = FeaturesView({}, VIEW.finalized, VIEW.epoch)
    alone = rewritten(version, before, FeaturesView())
    assert rewritten(version, before, only_finalized) == alone
    entry = (30000).to_bytes(2, "big") + bytes(5)
    assert alone.replace(entry, b"")[4:] == before[4:], "an api more, and the length of the list"


def rewritten(version: int, body: bytes, features: FeaturesView) -> bytes:
    directory = FeaturesDirectory()
    directory.view = features
    return ApiVersionsInterceptor(SupportedVersions(PRIVATE), directory, lambda ranges: None).rewrite(
        API_VERSIONS, version, body
    )


def test_the_answer_to_an_unknown_version_stays() -> None:
    sent = bytes.fromhex("002300000001001200000004")
    assert [rewritten(version, sent, VIEW) for version in range(6)] == [sent] * 6


ONE = FeaturesView({"b.a": LevelRange(1, 2)}, {"b.a": LevelRange(1, 1)}, 9)


def test_features_that_change_are_in_the_next_response() -> None:
    directory = FeaturesDirectory()
    interceptor = ApiVersionsInterceptor(SupportedVersions(PRIVATE), directory, lambda ranges: None)
    (body,) = {body for (kafka, version), (body, _) in RECORDED.items() if (kafka, version) == ("4.4.0", 3)}
    for features, there in ((VIEW, False), (ONE, True)):
        directory.view = features
        assert (b"b.a" in interceptor.rewrite(API_VERSIONS, 3, body)) == there
