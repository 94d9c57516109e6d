"""The records of the features' topic, as bytes, and what a process knows of them."""

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
from proxy.features.topic_state import MAX_IDS, MAX_OPEN_PROPOSALS, TopicState
from tests.unit.features.fleets import name

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
    (CONTROLLER_KEY, ControllerClaim(4, 2, "boot"), b'{"claim":4,"broker_id":2,"boot_id":"boot","version":1}'),
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


def test_records_are_these_bytes() -> None:
    for key, record, value in GOLDEN:
        assert encode(record) == value, (key, record, value)
        assert decode(key, value) == record, (key, record, value)
    one = ReaderRecord({NAME: SupportedRange(1, 2)}, True, "running", "run", 1_700_000_000_000, "0.1.0")
    value = (
        b'{"features":{"brokerside.audit.event.schema":{"min_version":1,"max_version":2}},"durable":true,'
        b'"state":"running","job":"run","started":1700000000000,"software":"0.1.0","version":1}'
    )
    assert encode(one) == value
    assert decode_reader(value) == one
    assert decode(FEATURES_KEY, b'{"epoch":1,"features":{},"later":[1]}') == FinalizedFeatures(1, {})
    assert decode_reader(b'{"features":{},"later":{}}') == ReaderRecord({})


NO_FEATURES = (
    *(("brokerside.x", 2, 1), ("brokerside.x", 0, 1), ("brokerside.x", 1, 32_768)),
    *(("metadata.version", 1, 1), ("brokerside.\\u001b[2J", 1, 1), ("", 1, 1)),
)


def impossible(name: str = "brokerside.x", low: int = 2, high: int = 1) -> bytes:
    return b'{"%s":{"min_version_level":%d,"max_version_level":%d}}' % (name.encode(), low, high)


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
        *((FEATURES_KEY, b'{"epoch":1,"features":%s}' % impossible(*feature)) for feature in NO_FEATURES),
        (FEATURES_KEY, b'{"epoch":1,"features":{},"pending":{"update":"","features":%s}}' % impossible()),
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
    assert update_of_key(update_key(UPDATE)) == UPDATE
    assert update_of_key(b"update/" + b"g" * 32) is None
    assert update_of_key(b"update/" + b"a" * 32 + b"\n") is None
    assert reader_of_key(reader_key("tables-1.a_b")) == "tables-1.a_b"
    assert reader_of_key(b"reader/") is None
    assert reader_of_key(b"reader/a b") is None
    assert reader_of_key(b"reader/" + b"a" * 129) is None


def test_a_later_layout_and_a_record_that_is_too_large_are_not_read() -> None:
    value = encode(FinalizedFeatures(1, {}, version=2))
    assert decode(FEATURES_KEY, value) is None
    assert has_later_layout(value)
    assert has_later_layout(b'{"version":2,"epoch":"a text by now"}')
    assert not has_later_layout(encode(FinalizedFeatures(1, {})))
    assert not has_later_layout(b'{"version":"2"}')
    assert not has_later_layout(b"[" * 100_000)
    assert decode_reader(encode(ReaderRecord({}, version=2))) is None
    value = encode(FinalizedFeatures(1, {}))
    assert decode(FEATURES_KEY, value + b" " * (records.MAX_RECORD - len(value))) is not None
    assert decode(FEATURES_KEY, value + b" " * (records.MAX_RECORD - len(value) + 1)) is None
    assert decode_reader(encode(ReaderRecord({})) + b" " * records.MAX_RECORD) is None


FIRST = FinalizedFeatures(1, {"brokerside.quota.ip": FinalizedRange(1, 1)})
PROPOSAL = UpdateProposal(1, "boot", 1_000, (FeatureUpdate("brokerside.quota.ip", 2),))


def test_what_cannot_be_read_is_ignored_and_counted() -> None:
    topic = TopicState()
    topic.apply(FEATURES_KEY, encode(FIRST), 5)
    assert topic.apply(FEATURES_KEY, b"{", 6) == "malformed"
    assert topic.apply(b"groups", b"{}", 6) == "malformed"
    assert (topic.finalized, topic.later_layout) == (FIRST, False)
    assert topic.apply(FEATURES_KEY, encode(FinalizedFeatures(9, {}, version=2)), 7) == "later_layout"
    assert (topic.finalized, topic.present, topic.later_layout) == (FIRST, True, True)
    assert topic.apply(CONTROLLER_KEY, encode(ControllerClaim(3, 1, "boot", version=2)), 7) == "later_layout"
    assert topic.claim is None
    assert topic.ignored == {"malformed": 2, "later_layout": 2}
    topic.apply(FEATURES_KEY, encode(FIRST), 8)
    assert not topic.later_layout


def test_a_proposal_is_open_until_it_has_an_outcome_and_of_too_many_only_the_ids_are_kept() -> None:
    topic = TopicState()
    topic.apply(update_key(name(1)), encode(PROPOSAL), 5)
    topic.apply(update_key(name(2)), encode(PROPOSAL), 6)
    assert {update: one.at for update, one in topic.proposals.items()} == {name(1): 5, name(2): 6}
    topic.apply(update_key(name(1)), encode(UpdateOutcome(0, epoch=2)), 7)
    assert list(topic.proposals) == [name(2)]
    assert topic.outcomes[name(1)] == (UpdateOutcome(0, epoch=2), 7)
    topic.apply(update_key(name(1)), encode(PROPOSAL), 8)
    assert list(topic.proposals) == [name(2)], "it has an outcome"
    topic.apply(update_key(name(1)), None, 9)
    topic.apply(update_key(name(2)), None, 9)
    assert (topic.proposals, topic.outcomes) == ({}, {})
    topic = TopicState()
    for number in range(MAX_OPEN_PROPOSALS + MAX_IDS + 5):
        topic.apply(update_key(name(number)), encode(PROPOSAL), 5)
    assert len(topic.proposals) == MAX_OPEN_PROPOSALS
    assert len(topic.excess) == MAX_IDS
    assert next(iter(topic.excess)) == name(MAX_OPEN_PROPOSALS)
    topic.apply(update_key(name(MAX_OPEN_PROPOSALS)), encode(UpdateOutcome(96)), 6)
    assert len(topic.excess) == MAX_IDS - 1


@pytest.mark.promise(
    "features.md", "A sidecar ignores a record of the finalized levels whose epoch is below one that it has read."
)
def test_a_record_with_a_lower_epoch_is_not_followed() -> None:
    """Somebody has written a record of a controller once more."""
    topic = TopicState()
    second = FinalizedFeatures(2, {})
    for record in (FIRST, second):
        topic.apply(FEATURES_KEY, encode(record), 5)
    assert topic.apply(FEATURES_KEY, encode(FIRST), 6) == "older"
    assert (topic.finalized, topic.present) == (second, False)
    third = FinalizedFeatures(3, {})
    assert topic.apply(FEATURES_KEY, encode(third), 7) is None
    assert (topic.finalized, topic.present) == (third, True)
    topic = TopicState()
    topic.apply(FEATURES_KEY, encode(FIRST), 5)
    topic.apply(FEATURES_KEY, None, 6)
    assert (topic.finalized, topic.present) == (FIRST, False)
    topic.apply(FEATURES_KEY, encode(FIRST), 5)
    topic.apply(CONTROLLER_KEY, encode(ControllerClaim(3, 1, "boot")), 7)
    topic.apply(update_key(name(1)), encode(PROPOSAL), 5)
    topic.restart()
    assert (topic.finalized, topic.present, topic.claim, topic.proposals) == (FIRST, False, None, {})
