"""ApiVersions and UpdateFeatures as bytes. The response of ApiVersions begins as one of Kafka 4.3.1 does."""

import pytest

from proxy import __version__
from proxy.errors import MalformedBody
from proxy.features import catalog
from proxy.features.catalog import LevelRange
from proxy.features.records import SAFE_DOWNGRADE, FeatureUpdate
from proxy.features.updates import UpdateResult
from proxy.rpc import feature_messages
from proxy.rpc.call import encode_frame
from proxy.rpc.messages import RequestRefused
from tests.cases import each
from tests.tools.record_ranges import VIEW, recorded_bodies

AUDIT = "brokerside.audit.event.schema"

APIS = bytes.fromhex("0000 03 0039 0000 0002 00 0012 0000 0005 00 00000000")
"""No error; UpdateFeatures 0 to 2, ApiVersions 0 to 5; not throttled."""

SUPPORTED = bytes.fromhex("00 2b 03 0e") + b"group.version" + bytes.fromhex("0000 0001 00 1e") + AUDIT.encode()
SUPPORTED += bytes.fromhex("0001 0002 00")
EPOCH = bytes.fromhex("01 08 0000000000000007")
FINALIZED = bytes.fromhex("02 2b 03 0e") + b"group.version" + bytes.fromhex("0001 0001 00 1e") + AUDIT.encode()
FINALIZED += bytes.fromhex("0002 0001 00")
SUPPORTED = SUPPORTED[:1] + bytes([len(SUPPORTED) - 2]) + SUPPORTED[2:]
FINALIZED = FINALIZED[:1] + bytes([len(FINALIZED) - 2]) + FINALIZED[2:]
UNKNOWN_TAG = bytes.fromhex("09 02 abcd")
DESCRIBED = APIS + b"\x04" + SUPPORTED + EPOCH + FINALIZED + UNKNOWN_TAG

UPDATED = bytes.fromhex("00 00000000 0000 00 02 1e") + AUDIT.encode() + bytes.fromhex("0000 00 00 00")
FAILED = bytes.fromhex("00 00000000 0000 00 02 1e") + AUDIT.encode() + bytes.fromhex("005f 03 6e6f 00 00")
KAFKA_4_3_1 = bytes.fromhex("00 00000000 0000 05 4e4f4e45 02 0e") + b"group.version"
KAFKA_4_3_1 += bytes.fromhex("0000 05 4e4f4e45 00 00")
REFUSED = bytes.fromhex("00 00000000 0060 05 77616974 01 00")


def test_a_request_for_features_is_flexible() -> None:
    frame = encode_frame(feature_messages.describe_request(4), 5, "c")
    version = __version__.encode()
    body = b"\x0bbrokerside" + bytes([len(version) + 1]) + version + b"\0"
    assert frame[4:] == bytes.fromhex("0012 0004 00000005 0001 63 00") + body
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4


def test_features_of_a_response_count_only_with_an_epoch() -> None:
    found = feature_messages.decode_described(4, DESCRIBED)
    assert found == feature_messages.DescribedFeatures(
        {57: (0, 2), 18: (0, 5)},
        {"group.version": LevelRange(0, 1), AUDIT: LevelRange(1, 2)},
        {"group.version": LevelRange(1, 1), AUDIT: LevelRange(1, 2)},
        7,
    )
    # Finalized levels count only with an epoch.
    without = feature_messages.decode_described(3, APIS + b"\x02" + SUPPORTED + FINALIZED)
    assert (without.finalized, without.epoch) == ({}, -1)
    assert AUDIT in without.supported
    unknown = feature_messages.decode_described(3, APIS + b"\x02" + EPOCH[:2] + b"\xff" * 8 + FINALIZED)
    assert (unknown.finalized, unknown.epoch) == ({}, -1)


@pytest.mark.promise("features.md", "The sidecar's client reads features of real brokers and of sidecars.")
@each(("kafka", "version"), [key for key in recorded_bodies() if key[1] in feature_messages.DESCRIBE_VERSIONS])
def test_features_of_recorded_brokers_and_sidecars(kafka: str, version: int) -> None:
    of_broker, of_sidecar = (
        feature_messages.decode_described(version, body) for body in recorded_bodies()[kafka, version]
    )
    assert of_broker.epoch == of_sidecar.epoch >= 0
    assert of_sidecar.supported == of_broker.supported | catalog.SUPPORTED
    assert of_sidecar.finalized == of_broker.finalized | VIEW.finalized
    assert of_sidecar.apis == of_broker.apis | {30000: (0, 0)}
    assert ("kraft.version" in of_broker.supported) == (version == 4)  # its minimum is 0


def test_an_unsupported_version_is_answered_in_the_form_of_version_0_and_another_error_is_raised() -> None:
    assert feature_messages.decode_described(4, bytes.fromhex("0023 00000001 0012 0000 0002")) is None
    with pytest.raises(RequestRefused, match=r"ApiVersions: invalid request \(error 42\)"):
        feature_messages.decode_described(4, bytes.fromhex("002a 01 00000000 00"))


@each(
    ("update", "dry_run", "body"),
    [
        (FeatureUpdate(AUDIT, 2), False, "0002 01 00 00 00"),
        (FeatureUpdate(AUDIT, 2), True, "0002 01 00 01 00"),
        (FeatureUpdate(AUDIT, 1, SAFE_DOWNGRADE), False, "0001 02 00 00 00"),
        (FeatureUpdate(AUDIT, 0, 3), False, "0000 03 00 00 00"),
    ],
)
def test_a_request_for_an_update(update: FeatureUpdate, dry_run: bool, body: str) -> None:
    frame = encode_frame(feature_messages.update_request([update], 60_000, dry_run=dry_run), 5, "c")
    begin = bytes.fromhex("00000035 0039 0001 00000005 0001 63 00 0000ea60 02 1e")
    assert frame == begin + AUDIT.encode() + bytes.fromhex(body)


def test_the_results_of_an_update() -> None:
    assert feature_messages.decode_updated(KAFKA_4_3_1) == (UpdateResult(0), {"group.version": UpdateResult(0)})
    assert feature_messages.decode_updated(UPDATED) == (UpdateResult(0), {AUDIT: UpdateResult(0)})
    assert feature_messages.decode_updated(FAILED) == (UpdateResult(0), {AUDIT: UpdateResult(95, "no")})
    assert feature_messages.decode_updated(REFUSED) == (UpdateResult(96, "wait"), {})


def test_answers_that_are_cut_anywhere_are_malformed() -> None:
    for answer in (UPDATED, FAILED, REFUSED, b"\x01\x05\x01x" + UPDATED[1:]):
        feature_messages.decode_updated(answer)
        for length in range(len(answer)):
            with pytest.raises(MalformedBody):
                feature_messages.decode_updated(answer[:length])
    for length in range(len(DESCRIBED)):
        with pytest.raises(MalformedBody):
            feature_messages.decode_described(4, DESCRIBED[:length])
