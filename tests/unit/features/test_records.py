"""The records of the features' topic, as bytes."""

from __future__ import annotations

import pytest

from proxy.features import records
from proxy.features.records import (
    CONTROLLER_KEY,
    FEATURES_KEY,
    ControllerClaim,
    FeaturesRecord,
    FeatureUpdate,
    FinalizedFeatures,
    FinalizedRange,
    PendingUpdate,
    ReaderRecord,
    SupportedRange,
    UpdateOutcome,
    UpdateProposal,
    decode,
    decode_reader,
    encode,
    has_later_layout,
    reader_key,
    reader_of_key,
    update_key,
    update_of_key,
)

UPDATE = "0123456789abcdef" * 2
NAME = "brokerside.audit.event.schema"

GOLDEN: list[tuple[bytes, FeaturesRecord, bytes]] = [
    (
        FEATURES_KEY,
        FinalizedFeatures(7, {NAME: FinalizedRange(1, 2)}, None, 3, 1_700_000_000_000),
        (
            b'{"epoch":7,"features":{"brokerside.audit.event.schema":{"min_version_level":1,"max_version_level":2}},'
            b'"pending":null,"controller":3,"at":1700000000000,"status":1,"version":1}'
        ),
    ),
    (
        FEATURES_KEY,
        FinalizedFeatures(0, {}, PendingUpdate(UPDATE, {NAME: FinalizedRange(1, 1)})),
        (
            b'{"epoch":0,"features":{},"pending":{"update":"0123456789abcdef0123456789abcdef","features":'
            b'{"brokerside.audit.event.schema":{"min_version_level":1,"max_version_level":1}}},'
            b'"controller":-1,"at":0,"status":1,"version":1}'
        ),
    ),
    (
        CONTROLLER_KEY,
        ControllerClaim(4, 2, "boot"),
        b'{"claim":4,"broker_id":2,"boot_id":"boot","version":1}',
    ),
    (
        update_key(UPDATE),
        UpdateProposal(1, "boot", 60_000, (FeatureUpdate(NAME, 2),), principal="User:alice"),
        (
            b'{"state":"asked","asked_by":1,"boot_id":"boot","timeout_ms":60000,"updates":[{"feature":'
            b'"brokerside.audit.event.schema","level":2,"upgrade_type":1}],"validate_only":false,"api_version":1,'
            b'"principal":"User:alice","client_ip":"","listener":"","version":1}'
        ),
    ),
    (
        update_key(UPDATE),
        UpdateOutcome(0, None, 8, (1, 2, 3)),
        b'{"state":"done","code":0,"message":null,"epoch":8,"waits_for":[1,2,3],"version":1}',
    ),
]


def test_bytes_of_a_record() -> None:
    for key, record, value in GOLDEN:
        assert encode(record) == value, (key, record, value)
        assert decode(key, value) == record, (key, record, value)


def test_bytes_of_a_reader() -> None:
    record = ReaderRecord({NAME: SupportedRange(1, 2)}, True, "running", "run", 1_700_000_000_000, "0.1.0")
    value = (
        b'{"features":{"brokerside.audit.event.schema":{"min_version":1,"max_version":2}},"durable":true,'
        b'"state":"running","job":"run","started":1700000000000,"software":"0.1.0","version":1}'
    )
    assert encode(record) == value
    assert decode_reader(value) == record


def test_unknown_fields_are_ignored_and_others_have_defaults() -> None:
    assert decode(FEATURES_KEY, b'{"epoch":1,"features":{},"later":[1]}') == FinalizedFeatures(1, {})
    assert decode_reader(b'{"features":{},"later":{}}') == ReaderRecord({})


@pytest.mark.promise("features.md", "A record on the topic of features that cannot be read changes nothing.")
def test_a_record_that_cannot_be() -> None:
    for key, value in [
        (FEATURES_KEY, b""),
        (FEATURES_KEY, b"{"),
        (FEATURES_KEY, b"\xff"),
        (FEATURES_KEY, b"[" * 100_000),
        (FEATURES_KEY, b"null"),
        (FEATURES_KEY, b'{"epoch":1}'),
        (FEATURES_KEY, b'{"epoch":-1,"features":{}}'),
        (FEATURES_KEY, b'{"epoch":9223372036854775808,"features":{}}'),
        (FEATURES_KEY, b'{"epoch":1,"features":{"brokerside.x":{"min_version_level":2,"max_version_level":1}}}'),
        (FEATURES_KEY, b'{"epoch":1,"features":{"brokerside.x":{"min_version_level":0,"max_version_level":1}}}'),
        (FEATURES_KEY, b'{"epoch":1,"features":{"brokerside.x":{"min_version_level":1,"max_version_level":32768}}}'),
        (FEATURES_KEY, b'{"epoch":1,"features":{"metadata.version":{"min_version_level":1,"max_version_level":1}}}'),
        (
            FEATURES_KEY,
            b'{"epoch":1,"features":{"brokerside.\\u001b[2J":{"min_version_level":1,"max_version_level":1}}}',
        ),
        (FEATURES_KEY, b'{"epoch":1,"features":{"":{"min_version_level":1,"max_version_level":1}}}'),
        (
            FEATURES_KEY,
            (
                b'{"epoch":1,"features":{},"pending":{"update":"","features":{"brokerside.x":{"min_version_level":2,'
                b'"max_version_level":1}}}}'
            ),
        ),
        (FEATURES_KEY, b'{"epoch":1,"features":{},"pending":{"update":"xyz","features":{}}}'),
        (CONTROLLER_KEY, b'{"claim":0,"broker_id":1,"boot_id":""}'),
        (update_key(UPDATE), b'{"state":"other","code":0}'),
        (update_key(UPDATE), b'{"code":0}'),
        (update_key(UPDATE), b'{"state":"done","code":40000}'),
        (b"update/short", encode(UpdateOutcome(0))),
        (b"groups", b"{}"),
        (b"", b"{}"),
        (b"\xff", b"{}"),
    ]:
        assert decode(key, value) is None, (key, value)


def test_a_later_layout_is_not_read() -> None:
    value = encode(FinalizedFeatures(1, {}, version=2))
    assert decode(FEATURES_KEY, value) is None
    assert has_later_layout(value)
    assert has_later_layout(b'{"version":2,"epoch":"a text by now"}')
    assert not has_later_layout(encode(FinalizedFeatures(1, {})))
    assert not has_later_layout(b'{"version":"2"}')
    assert not has_later_layout(b"[" * 100_000)
    assert decode_reader(encode(ReaderRecord({}, version=2))) is None


def test_a_record_that_is_too_large_is_not_read() -> None:
    value = encode(FinalizedFeatures(1, {}))
    assert decode(FEATURES_KEY, value + b" " * (records.MAX_RECORD - len(value))) is not None
    assert decode(FEATURES_KEY, value + b" " * (records.MAX_RECORD - len(value) + 1)) is None
    assert decode_reader(encode(ReaderRecord({})) + b" " * records.MAX_RECORD) is None


def test_keys() -> None:
    assert update_of_key(update_key(UPDATE)) == UPDATE
    assert update_of_key(b"update/" + b"g" * 32) is None
    assert update_of_key(b"update/" + b"a" * 32 + b"\n") is None
    assert reader_of_key(reader_key("tables-1.a_b")) == "tables-1.a_b"
    assert reader_of_key(b"reader/") is None
    assert reader_of_key(b"reader/a b") is None
    assert reader_of_key(b"reader/" + b"a" * 129) is None
