"""Requests about feature versions (KIP-584) and their responses, as bytes: ApiVersions and UpdateFeatures.

The layouts are those of ApiVersionsResponse.json and UpdateFeaturesRequest.json. Both are flexible. A decoder raises
MalformedBody for a response that is not as its definition says.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from proxy import __version__
from proxy.core.encode import NO_TAGGED_FIELDS
from proxy.core.struct import ObservableStructImpl, view
from proxy.core.wire import Buffer
from proxy.features.catalog import LevelRange
from proxy.features.records import FeatureUpdate
from proxy.features.updates import UpdateRequest, UpdateResult
from proxy.interceptors.update_features import UPDATE_FEATURES, encode_request
from proxy.rpc.messages import API_VERSIONS, RequestRefused, RpcRequest, flexible_request, flexible_response, whole

DESCRIBE_VERSIONS = (4, 3)
"""Of ApiVersions, the first one first. Version 3 leaves out features whose supported minimum is 0 (KAFKA-17011)."""

UPDATE_VERSION = 1
"""Of UpdateFeatures: the first with dry runs, and the last with a result of each feature."""

CLIENT_SOFTWARE = "brokerside"

UNSUPPORTED_VERSION = 35


class DescribedFeatures(NamedTuple):
    """What a sidecar or a broker says in an ApiVersions response.

    ``apis``: first and last version by api key. ``supported``, ``finalized``: levels by feature. ``epoch``: of the
    brokers' finalized levels. While it is below 0 nothing is known of finalized levels, and ``finalized`` is empty.
    """

    apis: dict[int, tuple[int, int]]
    supported: dict[str, LevelRange]
    finalized: dict[str, LevelRange]
    epoch: int


def describe_request(version: int) -> RpcRequest:
    """Ask for features. ``version``: one of ``DESCRIBE_VERSIONS``."""
    values = {"ClientSoftwareName": CLIENT_SOFTWARE, "ClientSoftwareVersion": __version__}
    return flexible_request(API_VERSIONS, version, values)


def decode_described(version: int, answer: Buffer) -> DescribedFeatures | None:
    """Decode the response to ``describe_request``; None if the version is not supported. Raises RequestRefused."""
    found = whole(view(API_VERSIONS, version, bytes(answer), response=True))  # its header is never flexible
    code = found.get("ErrorCode")
    if code == UNSUPPORTED_VERSION:
        return None
    if code:
        raise RequestRefused("ApiVersions", code)
    epoch = found.get("FinalizedFeaturesEpoch")
    return DescribedFeatures(
        {one.get("ApiKey"): (one.get("MinVersion"), one.get("MaxVersion")) for one in found.get("ApiKeys")},
        _levels(found, "SupportedFeatures", "MinVersion", "MaxVersion"),
        _levels(found, "FinalizedFeatures", "MinVersionLevel", "MaxVersionLevel") if epoch >= 0 else {},
        epoch,
    )


def _levels(found: ObservableStructImpl, features: str, low: str, high: str) -> dict[str, LevelRange]:
    return {one.get("Name"): LevelRange(one.get(low), one.get(high)) for one in found.get(features) or ()}


def update_request(updates: Iterable[FeatureUpdate], timeout_ms: int, *, dry_run: bool) -> RpcRequest:
    """Ask for new finalized maxima: all of them, or none. ``timeout_ms``: how long the update may take."""
    request = UpdateRequest(UPDATE_VERSION, timeout_ms, tuple(updates), validate_only=dry_run)
    return RpcRequest(UPDATE_FEATURES, UPDATE_VERSION, NO_TAGGED_FIELDS + encode_request(request))


def decode_updated(answer: Buffer) -> tuple[UpdateResult, dict[str, UpdateResult]]:
    """Decode the response to ``update_request``: the result of the whole, and, by feature, those that it has."""
    found = flexible_response(UPDATE_FEATURES, UPDATE_VERSION, answer)
    return _result(found), {one.get("Feature"): _result(one) for one in found.get("Results")}


def _result(found: ObservableStructImpl) -> UpdateResult:
    code = found.get("ErrorCode")
    return UpdateResult(code, found.get("ErrorMessage") if code else None)  # a broker of 4.x says NONE without an error
