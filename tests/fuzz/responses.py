"""What the sidecar answers from and edits: requests for BrokerMetadata, records of the registry, lists of apis with the
features behind them, and updates of features."""

import struct
from random import Random

from proxy.core.apis import API_VERSIONS
from proxy.core.exchange import Connection
from proxy.core.interceptor import Deferred, Disposition, Request, Verdict
from proxy.core.wire import TRUNCATED, DecodeError
from proxy.errors import MalformedBody
from proxy.features.catalog import AUDIT_EVENT_SCHEMA, PREFIX, QUOTA_IP, SUPPORTED, LevelRange
from proxy.features.records import MAX_NAME, FeatureUpdate, SupportedRange
from proxy.features.updates import UpdateRefused, UpdateRequest, UpdateResult
from proxy.features.view import FeaturesDirectory, FeaturesView
from proxy.fleet import sidecar_record
from proxy.fleet.membership import Member
from proxy.fleet.view import build_fleet_view
from proxy.interceptors import update_features
from proxy.interceptors.api_versions import MAX_KNOWN_VERSION, ApiVersionsInterceptor
from proxy.interceptors.broker_metadata import (
    BrokerEntry,
    BrokerView,
    FleetDirectory,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from proxy.interceptors.supported_versions import SupportedVersions, VersionRange
from proxy.net.feature_update_calls import fail_update
from tests.fuzz.targets import Target
from tests.tools.record_ranges import recorded_bodies

VIEW = FeaturesView(SUPPORTED, {AUDIT_EVENT_SCHEMA: LevelRange(1, 2)}, 7)
OURS, THEIRS = 1, 2
PRIVATE = 30_000
NULL = b"\xff\xff\xff\xff"

# ---- BrokerMetadata -------------------------------------------------------------------------------------------------

ENTRIES = [
    BrokerEntry(1, "kafka-1.example", 9092, 265, 304, {"broker.id": "1", "rack": "a"}),
    BrokerEntry(2, "", -1, -1, -1, {"sidecar": "absent", "ä": "\N{SNOWMAN}"}),
]


def metadata_seeds() -> list[bytes]:
    requests = [encode_request(ids) for ids in ([], [-1], [1, 2, 2, 7])] + [NULL]
    return [b"\0" + body for body in requests] + [b"\1" + encode_response(some) for some in ([], ENTRIES)]


def metadata_once(data: bytes) -> bytes | None:
    """The body, written again from what was read of it."""
    try:
        if data[:1] == b"\1":
            return encode_response(decode_response(data[1:]))
        return encode_request(decode_request(data[1:]))
    except MalformedBody:
        return None


def check_metadata(data: bytes, rng: Random) -> None:
    again = metadata_once(data)
    if again is None:
        return
    if data[:1] == b"\1":
        assert decode_response(again) == decode_response(data[1:])
    else:
        assert data[1:] in (NULL, again)


# ---- the registry ---------------------------------------------------------------------------------------------------


def registry_seeds() -> list[bytes]:
    plain = sidecar_record.SidecarRecord({}, (), None, -1, "0")
    full = sidecar_record.SidecarRecord(
        {"CLIENT": "PLAINTEXT"},
        ("CLIENT://kafka-2.example:9092", "PUBLIC://[fd00::7]:9093"),
        "kafka-2.example",
        9092,
        "1795260000000",
        rack="a",
        features={"group_coordinator": SupportedRange(1, 2)},
        protocol_version_min=265,
        protocol_version_max=304,
        tags={"broker.id": "2", "team": "\N{SNOWMAN}", "protocol.version.source": "sidecar"},
    )
    return [
        sidecar_record.encode(plain),
        sidecar_record.encode(full),
        sidecar_record.encode(full).replace(b"9092", b"-7"),
    ]


def registry_once(data: bytes) -> bytes | None:
    """What this sidecar would return to clients about the sidecar that wrote it."""
    found = sidecar_record.decode(data)
    if found is None:
        return None
    fleet = FleetDirectory(
        build_fleet_view(BrokerView(OURS, {}), [OURS, THEIRS], {THEIRS: Member(found, alive=True)}, {})
    )
    return encode_response(fleet.select("client", [THEIRS]))


def check_registry(data: bytes, rng: Random) -> None:
    response = registry_once(data)
    if response is None:
        return
    found = sidecar_record.decode(data)
    assert found is not None
    assert sidecar_record.decode(sidecar_record.encode(found)) == found
    [entry] = decode_response(response)
    assert (entry.node_id, entry.tags["broker.id"]) == (THEIRS, str(THEIRS))
    assert (entry.host, entry.port) == found.addresses.get("client", ("", -1))


# ---- lists of apis --------------------------------------------------------------------------------------------------

APIS = [(0, 0, 13), (1, 4, 18), (API_VERSIONS, 0, 4)]


def api_seeds() -> list[bytes]:
    found = []
    for version in range(MAX_KNOWN_VERSION + 1):
        compact = version >= 3
        count = bytes((len(APIS) + 1,)) if compact else struct.pack(">i", len(APIS))
        listed = b"".join(struct.pack(">hhh", *api) + b"\0" * compact for api in APIS)
        rest = (struct.pack(">i", 0) if version else b"") + (b"\0" if compact else b"")
        found.append(bytes((version,)) + struct.pack(">h", 0) + count + listed + rest)
    recorded = [(version, body) for (_, version), bodies in recorded_bodies().items() for body in bodies]
    return [*found, *(bytes((version,)) + body for version, body in recorded), b"\0" + struct.pack(">hi", 35, 0)]


def apis_once(data: bytes) -> tuple[bytes, dict[int, VersionRange]] | None:
    learnt: dict[int, VersionRange] = {}
    features = FeaturesDirectory()
    features.view = VIEW
    interceptor = ApiVersionsInterceptor(SupportedVersions({PRIVATE: (0, 0)}), features, learnt.update)
    try:
        return interceptor.rewrite(API_VERSIONS, (data + b"\0")[0] % (MAX_KNOWN_VERSION + 1), data[1:]), learnt
    except (DecodeError, *TRUNCATED):
        assert not learnt
        return None


def check_apis(data: bytes, rng: Random) -> None:
    """A list is forwarded as it came, with one api more and features; an editor of that learns the same and the api."""
    first = apis_once(data)
    if first is None or not first[1]:
        assert first is None or first[0] == data[1:]
        return
    response, learnt = first
    again = apis_once(data[:1] + response)
    assert again is not None
    assert again[1] == {**learnt, PRIVATE: (0, 0)}
    assert again[0] == response, "an api or a feature that is there already is added again"


# ---- UpdateFeatures -------------------------------------------------------------------------------------------------

CLIENT = Connection("c-1", "CLIENT", "127.0.0.1", 5, 0.0, "User:philip", principal_source="sasl")
VERSIONS = 3
RESPONSE = 3
"""Added to the version of a message that is a response."""

UPDATES = [
    (),
    (FeatureUpdate(AUDIT_EVENT_SCHEMA, 2),),
    (FeatureUpdate(AUDIT_EVENT_SCHEMA, 1, 2), FeatureUpdate(QUOTA_IP, 0, 3)),
    (FeatureUpdate("metadata.version", 25), FeatureUpdate(QUOTA_IP, 1)),
]


def update_seeds() -> list[bytes]:
    found = []
    for version in range(VERSIONS):
        for updates in UPDATES:
            request = UpdateRequest(version, 60_000, updates)
            found.append(bytes([version]) + update_features.encode_request(request))
            results = UpdateResult(0), UpdateResult(31, "Cluster authorization failed.")
            found += [
                bytes([version + RESPONSE]) + update_features.encode_response(request, result) for result in results
            ]
    return found


def update_once(data: bytes) -> UpdateResult | Verdict | None:
    """The result of a response, or the verdict about a request; None for a response that cannot be read."""
    version, body = (data + b"\0")[0] % (VERSIONS + RESPONSE), data[1:]
    if version >= RESPONSE:
        try:
            return update_features.decode_response(version - RESPONSE, body)
        except MalformedBody:
            return None
    features = FeaturesDirectory()
    features.view = VIEW
    interceptor = update_features.UpdateFeaturesInterceptor(features, SupportedVersions({}), fail_update)
    return interceptor.on_body(Request(CLIENT, update_features.UPDATE_FEATURES, version, None, 1, 0), body)


def check_update(data: bytes, rng: Random) -> None:
    """A request is deferred if it can be read and names features of the fleet alone. It is read as it is written."""
    found = update_once(data)
    version, body = (data + b"\0")[0] % (VERSIONS + RESPONSE), data[1:]
    if version >= RESPONSE:
        assert found is None or isinstance(found, UpdateResult)
        return
    try:
        request = update_features.decode_request(version, body)
    except MalformedBody:
        assert found is Disposition.FORWARD
        return
    except UpdateRefused:
        assert isinstance(found, bytes) == (PREFIX.encode() in body)
        return
    of_fleet = [one.feature.startswith(PREFIX) for one in request.updates]
    if not any(of_fleet):
        assert found is Disposition.FORWARD
    elif all(of_fleet):
        assert isinstance(found, Deferred)
    else:
        assert isinstance(found, bytes)
        assert update_features.decode_response(version, found[1:]).error_code == 95
    if all(len(one.feature.encode()) <= MAX_NAME for one in request.updates):
        assert update_features.decode_request(version, update_features.encode_request(request)) == request


TARGETS = [
    Target("broker_metadata", metadata_seeds, check_metadata, metadata_once, share=30),
    Target("registry", registry_seeds, check_registry, registry_once, share=30),
    Target("api_versions", api_seeds, check_apis, apis_once, share=40),
    Target("update_features", update_seeds, check_update, update_once, share=60),
]
