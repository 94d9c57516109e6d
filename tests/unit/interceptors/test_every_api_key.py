"""All 65,536 api keys in versions −1, 0, the last and the one after it, and some under each policy, in a session."""

from collections.abc import Iterable

import pytest

from proxy.core.apis import APIS
from proxy.core.counters import ListenerCounters
from proxy.core.exchange import Connection
from proxy.core.interceptor import InterceptorChain
from proxy.core.session import Session
from proxy.interceptors.supported_versions import SupportedVersions
from proxy.interceptors.unsupported_requests import UnsupportedPolicy, UnsupportedRequests
from tests.cases import each
from tests.frames import API_VERSIONS, METADATA, request, response

ANYBODY = Connection("c-1", "CLIENT", "127.0.0.1", 5, 0.0, "User:ANONYMOUS")
WANT_EXCHANGE = {
    key: (4 if key == 1 else 0, api.max_version - (key not in (0, 1, API_VERSIONS))) for key, api in APIS.items()
}
ALL = range(-32768, 32768)
SOME = [*range(-200, 200), *range(-32768, 32768, 37)]
SOME_ACKS = b"\0\1" * 2


def every(keys_of: Iterable[int]) -> list[tuple[int, int]]:
    keys = ((key, WANT_EXCHANGE[key][1] if key in WANT_EXCHANGE else 0) for key in keys_of)
    pairs = [(key, version) for key, last in keys for version in sorted({-1, 0, last, last + 1})]
    return [
        (key, version)
        for key, version in pairs
        if key != API_VERSIONS
        and not (3 if key == 0 else WANT_EXCHANGE.get(key, (0, -1))[0]) <= version <= WANT_EXCHANGE.get(key, (0, -1))[1]
    ]


@pytest.mark.promise(
    "unsupported-requests.md",
    "Every api key that the broker does not list gets the configured answer, in every version.",
)
@each(("policy", "keys"), [("empty", ALL), ("close", SOME), ("forward", SOME)])
def test_the_configured_answer(policy: UnsupportedPolicy, keys: Iterable[int]) -> None:
    supported = SupportedVersions({})
    supported.update(WANT_EXCHANGE)
    refused: list[object] = []
    asked = every(keys)
    interceptors = InterceptorChain([UnsupportedRequests(supported, policy, len(asked), refused.append)])
    counters = ListenerCounters()

    def connected() -> Session:
        return Session(ANYBODY, counters, None, 1 << 20, None, interceptors)

    assert len(asked) > 3 * len(set(keys)) - 500
    session = connected()
    for number, (key, version) in enumerate(asked):
        frame = request(key, version, number, SOME_ACKS)
        session.read_client_data(frame, 0.0)
        interception = session.interception
        assert interception is not None
        if policy == "forward":
            assert not session.diverted, (key, version)
            session.read_broker_data(response(number), 0.0)
            assert not session.diverted
            continue
        assert session.diverted
        assert interception.replacement == b"", (key, version)
        if policy == "empty":
            assert (interception.replies, interception.ending) == (response(number), False), (key, version)
            assert session.is_idle
        else:
            assert (interception.replies, interception.ending) == (b"", True), (key, version)
            session = connected()
    verdict = {"empty": "replied", "close": "closed"}.get(policy, "")
    assert sum(counters.intercepted.values()) == len(refused) == (0 if policy == "forward" else len(asked))
    assert {each for _, each in counters.intercepted} <= {verdict}
    session.read_client_data(request(METADATA, 1, 7, bytes(4)), 0.0)
    assert not session.diverted
    assert counters.intercept_errors == 0
