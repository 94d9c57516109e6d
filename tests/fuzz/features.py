"""What the sidecar reads about features: UpdateFeatures of clients and brokers, and the tags of ApiVersions."""

from __future__ import annotations

from random import Random

from proxy.core.exchange import Connection
from proxy.core.interceptor import Deferred, Disposition, Request, Verdict
from proxy.core.wire import TRUNCATED, DecodeError, skip_tags
from proxy.errors import MalformedBody
from proxy.features.catalog import AUDIT_EVENT_SCHEMA, PREFIX, QUOTA_IP, SUPPORTED, LevelRange
from proxy.features.records import MAX_NAME, FeatureUpdate
from proxy.features.updates import UpdateRefused, UpdateRequest, UpdateResult
from proxy.features.view import FeaturesDirectory, FeaturesView
from proxy.interceptors.api_versions import read_entries
from proxy.interceptors.feature_tags import add_features
from proxy.interceptors.supported_versions import SupportedVersions
from proxy.interceptors.update_features import (
    UPDATE_FEATURES,
    UpdateFeaturesInterceptor,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from proxy.net.feature_update_calls import fail_update
from proxy.rpc.feature_messages import (
    DESCRIBE_VERSIONS,
    UPDATE_VERSION,
    DescribedFeatures,
    decode_described,
    decode_updated,
)
from proxy.rpc.messages import RequestRefused
from tests.fuzz.targets import Target
from tests.tools.record_ranges import recorded_bodies

CLIENT = Connection("c-1", "CLIENT", "127.0.0.1", 5, 0.0, "User:philip", principal_source="sasl")
VIEW = FeaturesView(SUPPORTED, {AUDIT_EVENT_SCHEMA: LevelRange(1, 2)}, 7)
VERSIONS = 3
RESPONSE = 3
"""Added to the version of a message that is a response."""

# ---- UpdateFeatures -------------------------------------------------------------------------------------------------

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
            found.append(bytes([version]) + encode_request(request))
            results = UpdateResult(0), UpdateResult(31, "Cluster authorization failed.")
            found += [bytes([version + RESPONSE]) + encode_response(request, result) for result in results]
    return found


def update_once(data: bytes) -> UpdateResult | Verdict | None:
    """The result of a response, or the verdict about a request; None for a response that cannot be read."""
    version, body = (data + b"\0")[0] % (VERSIONS + RESPONSE), data[1:]
    if version >= RESPONSE:
        try:
            return decode_response(version - RESPONSE, body)
        except MalformedBody:
            return None
    features = FeaturesDirectory()
    features.view = VIEW
    interceptor = UpdateFeaturesInterceptor(features, SupportedVersions({}), fail_update)
    return interceptor.on_body(Request(CLIENT, UPDATE_FEATURES, version, None, 1, 0), body)


def check_update(data: bytes, rng: Random) -> None:
    """A request is deferred if it can be read and names features of the fleet alone. It is read as it is written."""
    found = update_once(data)
    version, body = (data + b"\0")[0] % (VERSIONS + RESPONSE), data[1:]
    if version >= RESPONSE:
        assert found is None or isinstance(found, UpdateResult)
        return
    try:
        request = decode_request(version, body)
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
        assert decode_response(version, found[1:]).error_code == 95
    if all(len(one.feature.encode()) <= MAX_NAME for one in request.updates):
        assert decode_request(version, encode_request(request)) == request


# ---- the tags of ApiVersions ----------------------------------------------------------------------------------------

NO_ERROR = b"\0\0"
EMPTY_TAGS = bytes(5)


def tag_seeds() -> list[bytes]:
    """The ends of responses of real brokers, and of sidecars."""
    recorded = recorded_bodies().items()
    bodies = [(version, body) for (_, version), both in recorded for body in both if body.startswith(NO_ERROR)]
    return [EMPTY_TAGS, *(body[read_entries(body, version)[1] :] for version, body in bodies)]


def tags_once(data: bytes) -> bytes | None:
    try:
        return add_features(data, VIEW)
    except (DecodeError, *TRUNCATED):
        return None


def check_tags(data: bytes, rng: Random) -> None:
    """What is not of the fleet stays, and to add it again changes nothing."""
    once = tags_once(data)
    if once is None:
        return
    assert once[:4] == data[:4]
    assert tags_once(once) == once
    assert once[skip_tags(once, 4) :] == data[skip_tags(data, 4) :]
    if AUDIT_EVENT_SCHEMA.encode() not in data:
        assert once.count(AUDIT_EVENT_SCHEMA.encode()) == 2


# ---- what a client reads of a sidecar or a broker ------------------------------------------------------------------


def client_seeds() -> list[bytes]:
    bodies = [(version, body) for (_, version), both in recorded_bodies().items() for body in both]
    described = [bytes([version]) + body for version, body in bodies if version in DESCRIBE_VERSIONS]
    request = UpdateRequest(UPDATE_VERSION, 60_000, UPDATES[2])
    results = UpdateResult(0), UpdateResult(95, "no")
    return described + [b"\0\0" + encode_response(request, result) for result in results]


def client_once(data: bytes) -> object:
    """What FeaturesClient makes of a response; None for one that it refuses."""
    version, body = (data + b"\0")[0], data[1:]
    try:
        return decode_described(version, body) if version in DESCRIBE_VERSIONS else decode_updated(body)
    except (MalformedBody, RequestRefused):
        return None


def check_client(data: bytes, rng: Random) -> None:
    """A response is decoded or refused, and levels count only with an epoch."""
    found = client_once(data)
    if isinstance(found, DescribedFeatures):
        assert found.epoch >= 0 or not found.finalized


TARGETS = [
    Target("features_client", client_seeds, check_client, client_once, share=20),
    Target("update_features", update_seeds, check_update, update_once, share=60),
    Target("api_versions_tags", tag_seeds, check_tags, tags_once, share=20),
]
