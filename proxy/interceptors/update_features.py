"""Answers UpdateFeatures for the features of the fleet. Those of the brokers are updated by the brokers.

Whether a client may update features is the broker's decision: it is asked on the client's own connection, by a request
that updates nothing. Source: KIP-584, UpdateFeaturesRequest.json and UpdateFeaturesResponse.json, versions 0 to 2.
"""

from __future__ import annotations

import struct
from functools import partial

from msgspec import structs

from proxy.core.apis import is_known
from proxy.core.encode import encode
from proxy.core.interceptor import ON_BODY, BrokerCall, Deferred, Disposition, Interceptor, Request, Verdict
from proxy.core.schema import layout
from proxy.core.struct import view
from proxy.core.wire import MAX_STRING, TRUNCATED, DecodeError, compact_length, compact_string, skip_tags, uvarint
from proxy.errors import MalformedBody
from proxy.features.catalog import PREFIX
from proxy.features.records import SAFE_DOWNGRADE, UPGRADE, FeatureUpdate
from proxy.features.updates import (
    INVALID_UPDATE_VERSION,
    NONE,
    NOT_CONTROLLER,
    UpdateFeatures,
    UpdateRefused,
    UpdateRequest,
    UpdateResult,
    check_count,
    check_name_size,
    check_names,
    check_tagged_fields,
)
from proxy.features.view import FeaturesDirectory
from proxy.interceptors.supported_versions import SupportedVersions

UPDATE_FEATURES = 57

QUESTION_TIMEOUT_MS = 5000
"""``timeoutMs`` of the request to the broker."""

NO_HEADER_TAGS = b"\0"
"""The tagged fields in the header of every response."""

CONTROLLER_ELSEWHERE = UpdateResult(
    NOT_CONTROLLER, "this sidecar is not the feature controller, and forwards no updates (features.forward)"
)

_int32 = struct.Struct(">i")
_update = struct.Struct(">hb")
"""Level, and ``UpgradeType`` or ``AllowDowngrade``."""


class UpdateFeaturesInterceptor(Interceptor):
    """Answers UpdateFeatures on one listener, while the sidecar supports features and the upstream the request.

    ``update``: asks the controller. After ``features`` have begun or ended to be supported, the chain has to be
    updated.
    """

    def __init__(self, features: FeaturesDirectory, supported: SupportedVersions, update: UpdateFeatures) -> None:
        self._features = features
        self._supported = supported
        self._update = update

    def flags(self, api_key: int, api_version: int) -> int:
        """All known versions of UpdateFeatures that the upstream supports."""
        if api_key != UPDATE_FEATURES or not is_known(api_key, api_version) or not self._features.view.supported:
            return 0
        return ON_BODY if self._supported.supports(api_key, api_version) else 0

    def on_body(self, request: Request, body: bytes) -> Verdict:
        """Answer a request that names features of the fleet; one that names features of brokers, too, is refused.

        All others are forwarded: also those that cannot be read, and those of unauthenticated clients. With
        ``PREFIX`` in it, a request beyond the bounds of ``decode_request`` is refused, whatever it names.
        """
        if request.connection.principal_source == "unauthenticated" or PREFIX.encode() not in body:
            return Disposition.FORWARD
        try:
            decoded = decode_request(request.api_version, body)
            names = [one.feature for one in decoded.updates]
            if not any(name.startswith(PREFIX) for name in names):
                return Disposition.FORWARD
            check_names(names)
        except (*TRUNCATED, MalformedBody):
            return Disposition.FORWARD
        except UpdateRefused as error:
            refused = UpdateResult(INVALID_UPDATE_VERSION, str(error))
            return NO_HEADER_TAGS + encode_response(UpdateRequest(request.api_version, 0, ()), refused)
        return Deferred(partial(self._serve, request, decoded))

    async def _serve(self, request: Request, decoded: UpdateRequest, call: BrokerCall) -> bytes:
        """Return the response to ``decoded``: the broker's error, or the controller's result."""
        question = encode_request(UpdateRequest(decoded.api_version, QUESTION_TIMEOUT_MS, (), validate_only=True))
        answer = await call(UPDATE_FEATURES, decoded.api_version, question)
        if decode_response(decoded.api_version, answer).error_code != NONE:
            return NO_HEADER_TAGS + answer
        if self._features.view.forward or self._features.view.is_controller:
            client = request.connection
            result = await self._update(
                structs.replace(
                    decoded, principal=client.principal, client_ip=client.client_ip, listener=client.listener
                )
            )
        else:
            result = CONTROLLER_ELSEWHERE
        return NO_HEADER_TAGS + encode_response(decoded, result)


def encode_request(request: UpdateRequest) -> bytes:
    """Return the body of a request. Raises ValueError for a name that is too long for a string of Kafka.

    Version 0 has neither types nor ``validate_only``: any type but ``UPGRADE`` is ``AllowDowngrade``.
    """
    updates = [
        {
            "Feature": one.feature,
            "MaxVersionLevel": one.level,
            "AllowDowngrade": one.upgrade_type != UPGRADE,
            "UpgradeType": one.upgrade_type,
        }
        for one in request.updates
    ]
    values = {"timeoutMs": request.timeout_ms, "FeatureUpdates": updates, "ValidateOnly": request.validate_only}
    return encode(layout(UPDATE_FEATURES, request.api_version, response=False), values)


def decode_request(api_version: int, body: bytes) -> UpdateRequest:
    """Return a request, without its client. Raises MalformedBody.

    Raises UpdateRefused for more features, longer names or more tagged fields than any client has: as soon as they are
    declared, since to read them takes milliseconds of the event loop.
    """
    try:
        timeout_ms = _int32.unpack_from(body)[0]
        count, pos = compact_length(body, _int32.size)
        check_count(count)
        updates = []
        tagged_fields = 0
        for _ in range(count):
            check_name_size(compact_length(body, pos)[0])
            name, pos = compact_string(body, pos)
            level, kind = _update.unpack_from(body, pos)
            pos += _update.size
            tagged_fields += uvarint(body, pos)[0]
            check_tagged_fields(tagged_fields)
            pos = skip_tags(body, pos)
            if name is None:
                raise DecodeError("a feature without a name")
            if not api_version:
                kind = SAFE_DOWNGRADE if kind else UPGRADE
            updates.append(FeatureUpdate(name.decode(errors="replace"), level, kind))
        validate_only = api_version > 0 and body[pos] != 0
        pos += api_version > 0
        check_tagged_fields(tagged_fields + uvarint(body, pos)[0])
        skip_tags(body, pos)
    except TRUNCATED:
        raise MalformedBody("client", "an UpdateFeatures that ends too early") from None
    if count < 0:
        raise MalformedBody("client", "an UpdateFeatures without a list of features")
    return UpdateRequest(api_version, timeout_ms, tuple(updates), validate_only=validate_only)


def encode_response(request: UpdateRequest, result: UpdateResult) -> bytes:
    """Return the body of the response to ``request``. Before version 2 a success names each feature of the request."""
    names = [one.feature for one in request.updates] if result.error_code == NONE else []
    message = result.message and result.message.encode()[:MAX_STRING].decode(errors="ignore")
    values = {
        "ErrorCode": result.error_code,
        "ErrorMessage": message,
        "Results": [{"Feature": name} for name in names],
    }
    return encode(layout(UPDATE_FEATURES, request.api_version, response=True), values)


def decode_response(api_version: int, body: bytes) -> UpdateResult:
    """Return the result in a response. Raises MalformedBody."""
    message = view(UPDATE_FEATURES, api_version, body, response=True)
    message.unknown_tagged_fields()  # they come last: the message is complete
    return UpdateResult(message.get("ErrorCode"), message.get("ErrorMessage"))
