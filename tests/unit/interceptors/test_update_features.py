"""UpdateFeatures on the wire, and who answers it: the broker, the sidecar at once, or the controller."""

import asyncio
from collections.abc import Mapping

import pytest

from proxy.core.exchange import Connection
from proxy.core.interceptor import ON_BODY, Deferred, Disposition, Request, Verdict
from proxy.core.wire import uvarint_bytes
from proxy.features.catalog import AUDIT_EVENT_SCHEMA, QUOTA_IP, LevelRange
from proxy.features.records import MAX_NAME, MAX_UPDATES, SAFE_DOWNGRADE, FeatureUpdate
from proxy.features.updates import (
    CLUSTER_AUTHORIZATION_FAILED,
    FAILED,
    FEATURE_UPDATE_FAILED,
    INVALID_UPDATE_VERSION,
    MAX_TAGGED_FIELDS,
    NONE,
    NOT_CONTROLLER,
    UpdateRequest,
    UpdateResult,
)
from proxy.features.view import FeaturesDirectory, FeaturesView
from proxy.interceptors.supported_versions import SupportedVersions, VersionRange
from proxy.interceptors.update_features import (
    UPDATE_FEATURES,
    UpdateFeaturesInterceptor,
    decode_response,
    encode_request,
    encode_response,
)
from tests.cases import each

VERSIONS = range(3)
CLIENT = Connection("c-1", "CLIENT", "10.0.0.7", 5, 0.0, "User:philip", principal_source="sasl")
STRANGER = Connection("c-2", "CLIENT", "10.0.0.7", 6, 0.0, "User:ANONYMOUS", principal_source="unauthenticated")
RAISE = FeatureUpdate(AUDIT_EVENT_SCHEMA, 2)
OF_THE_BROKER = FeatureUpdate("metadata.version", 25)


class Bench:
    """An interceptor, and what reaches the broker and the controller."""

    def __init__(
        self,
        view: FeaturesView | None = None,
        *,
        upstream: Mapping[int, VersionRange] | None = None,
        result: UpdateResult | None = None,
    ) -> None:
        self.asked: list[UpdateRequest] = []
        self.called: list[tuple[int, int, bytes]] = []
        self.result = result or UpdateResult(NONE)
        self.directory = FeaturesDirectory()
        self.directory.view = view or FeaturesView({AUDIT_EVENT_SCHEMA: LevelRange(1, 2)})
        supported = SupportedVersions({})
        supported.update(upstream or {UPDATE_FEATURES: (0, 2)})
        self.interceptor = UpdateFeaturesInterceptor(self.directory, supported, self.update)

    async def update(self, request: UpdateRequest) -> UpdateResult:
        self.asked.append(request)
        return self.result

    def verdict(self, asked: UpdateRequest, connection: Connection = CLIENT) -> Verdict:
        return self.verdict_of(asked.api_version, encode_request(asked), connection)

    def verdict_of(self, version: int, body: bytes, connection: Connection = CLIENT) -> Verdict:
        return self.interceptor.on_body(Request(connection, UPDATE_FEATURES, version, "c", 1, 0), body)

    def serve(self, asked: UpdateRequest, broker: bytes) -> bytes | None:
        """The response to a request that is deferred, where the broker answers the question with ``broker``."""

        async def call(api_key: int, api_version: int, body: bytes) -> bytes:
            self.called.append((api_key, api_version, body))
            return broker

        verdict = self.verdict(asked)
        assert isinstance(verdict, Deferred)
        return asyncio.run(verdict.serve(call))


def allowed(version: int) -> bytes:
    """The broker's answer to a client that may update features."""
    return encode_response(UpdateRequest(version, 0, ()), UpdateResult(NONE))


def test_which_requests_are_held() -> None:
    def held(bench: Bench) -> list[int]:
        return [version for version in range(-1, 9) if bench.interceptor.flags(UPDATE_FEATURES, version) == ON_BODY]

    assert held(Bench()) == [0, 1, 2]
    assert held(Bench(upstream={UPDATE_FEATURES: (0, 1)})) == [0, 1]
    assert held(Bench(upstream={UPDATE_FEATURES: (0, 9)})) == [0, 1, 2]
    assert held(Bench(upstream={3: (0, 13)})) == []
    assert held(Bench(FeaturesView())) == []
    assert not any(Bench().interceptor.flags(key, version) for key in range(120) if key != 57 for version in VERSIONS)


@each("version", VERSIONS)
@each(
    "updates",
    [(), (OF_THE_BROKER,), (FeatureUpdate("x.brokerside.y", 1),), (FeatureUpdate("brokerside", 1), OF_THE_BROKER)],
)
def test_without_a_feature_of_the_fleet_it_is_forwarded(version: int, updates: tuple[FeatureUpdate, ...]) -> None:
    assert Bench().verdict(UpdateRequest(version, 1, updates)) is Disposition.FORWARD
    for before_login in ((RAISE,), (RAISE, OF_THE_BROKER), (RAISE,) * (MAX_UPDATES + 1)):
        assert Bench().verdict(UpdateRequest(version, 1, before_login), STRANGER) is Disposition.FORWARD


@pytest.mark.promise(
    "features.md", "An update of features of brokers and of sidecars together is refused before the broker is asked."
)
@each("version", VERSIONS)
@each("updates", [(RAISE, OF_THE_BROKER), (OF_THE_BROKER, RAISE)])
def test_a_mixed_list_is_refused_before_the_broker_is_asked(version: int, updates: tuple[FeatureUpdate, ...]) -> None:
    answer = Bench().verdict(UpdateRequest(version, 1, updates))
    assert isinstance(answer, bytes)
    assert answer[:1] == b"\0"
    assert decode_response(version, answer[1:]) == UpdateResult(
        INVALID_UPDATE_VERSION,
        "The update failed for all features since the following feature had an error: FEATURE_UPDATES_FAILED: "
        "features of brokers and of sidecars cannot be updated in one request: metadata.version",
    )


def declared(version: int, name_size: int = 30, in_update: int = 0, at_end: int = 0, *, whole: bool = True) -> bytes:
    """A request of two features of the fleet, the second one with a name of so many bytes, and with tagged fields in
    the second one and at the end; or all of it up to the last number that is above its bound."""
    name = b"brokerside.".ljust(name_size, b"x")
    body = encode_request(UpdateRequest(version, 60_000, (RAISE,)))
    body = body[:4] + b"\3" + body[5 : -1 - (version > 0)] + uvarint_bytes(name_size + 1)
    if not whole and name_size > MAX_NAME:
        return body
    body += name + b"\0\1\1" + uvarint_bytes(in_update)
    if not whole and in_update > MAX_TAGGED_FIELDS:
        return body
    body += b"\7\0" * in_update + b"\0" * (version > 0) + uvarint_bytes(at_end)
    return body + b"\7\0" * at_end if whole else body


@pytest.mark.promise("security.md", "An update of more features than any client sends is refused before it is read.")
@each("version", VERSIONS)
@each(
    ("bounds", "said"),
    [
        ({"name_size": MAX_NAME + 1}, "the name of a feature has 250 bytes (allowed: 249)"),
        ({"name_size": 32_000}, "the name of a feature has 32000 bytes (allowed: 249)"),
        ({"in_update": MAX_TAGGED_FIELDS + 1}, "201 tagged fields in one request (allowed: 200)"),
        ({"at_end": 30_000}, "30000 tagged fields in one request (allowed: 200)"),
        ({"in_update": 150, "at_end": 51}, "201 tagged fields in one request (allowed: 200)"),
    ],
)
def test_more_than_any_client_sends_is_refused_before_it_is_read(
    version: int, bounds: dict[str, int], said: str
) -> None:
    for whole in (True, False):
        answer = Bench().verdict_of(version, declared(version, **bounds, whole=whole))
        assert isinstance(answer, bytes)
        assert decode_response(version, answer[1:]) == UpdateResult(INVALID_UPDATE_VERSION, FAILED + said)


@pytest.mark.promise(
    "features.md",
    "Whether a client may update the fleet's features, the broker is asked on the client's own connection.",
)
@each("version", VERSIONS)
def test_the_broker_is_asked_as_this_client_and_then_the_controller(version: int) -> None:
    bench = Bench()
    updates = (RAISE, FeatureUpdate(QUOTA_IP, 1, SAFE_DOWNGRADE))
    asked = UpdateRequest(version, 60_000, updates, validate_only=version > 0)
    assert bench.serve(asked, allowed(version)) == b"\0" + encode_response(asked, UpdateResult(NONE))
    question = encode_request(UpdateRequest(version, 5000, (), validate_only=True))
    assert bench.called == [(UPDATE_FEATURES, version, question)]
    assert bench.asked == [
        UpdateRequest(version, 60_000, updates, version > 0, CLIENT.principal, CLIENT.client_ip, CLIENT.listener)
    ]
    bench = Bench(result=UpdateResult(FEATURE_UPDATE_FAILED, "not applied yet by sidecar 2"))
    answer = bench.serve(asked, allowed(version))
    assert answer == b"\0" + encode_response(asked, bench.result), "the error of the controller"


@pytest.mark.promise("features.md", "Whoever may not alter features at the broker gets the broker's own refusal.")
@each("version", VERSIONS)
def test_the_error_of_the_broker_is_the_answer_byte_for_byte(version: int) -> None:
    bench = Bench()
    refused = UpdateResult(CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")
    body = b"\0\0\0\7" + encode_response(UpdateRequest(version, 1, ()), refused)[4:]
    assert bench.serve(UpdateRequest(version, 1, (RAISE,)), body) == b"\0" + body
    assert bench.asked == []


@each("version", VERSIONS)
@each(("is_controller", "code"), [(True, NONE), (False, NOT_CONTROLLER)])
def test_an_update_that_is_not_passed_on(version: int, is_controller: bool, code: int) -> None:
    view = FeaturesView({AUDIT_EVENT_SCHEMA: LevelRange(1, 2)}, forward=False, is_controller=is_controller)
    bench = Bench(view)
    answer = bench.serve(UpdateRequest(version, 1, (RAISE,)), allowed(version))
    assert decode_response(version, answer[1:]).error_code == code
    assert len(bench.asked) == is_controller
