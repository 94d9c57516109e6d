"""Which requests are refused, and how; with all 65,536 api keys in some versions, in a session."""

from collections.abc import Iterable

import pytest

from proxy.core.apis import APIS
from proxy.core.counters import ListenerCounters
from proxy.core.exchange import Connection
from proxy.core.interceptor import Disposition, InterceptorChain, Request
from proxy.core.session import Session
from proxy.interceptors.supported_versions import SupportedVersions
from proxy.interceptors.unsupported_requests import UnsupportedPolicy, UnsupportedRequests
from tests.cases import each
from tests.frames import API_VERSIONS, METADATA, request, response

ANYBODY = Connection("c-1", "CLIENT", "127.0.0.1", 5, 0.0, "User:ANONYMOUS")
MODERN = {0: (0, 13), 1: (4, 18), 3: (0, 13), 17: (0, 1), 18: (0, 4), 36: (0, 2)}
OLD = {0: (0, 11), 1: (0, 17), 3: (0, 12), 18: (0, 4)}
PRIVATE = {30000: (0, 0)}
LIMIT = 5


class Bench:
    def __init__(
        self, policy: UnsupportedPolicy = "empty", *, known: bool = True, newest: dict[int, int] | None = None
    ) -> None:
        self.refused: list[Request] = []
        self.supported = SupportedVersions(PRIVATE, (newest or {}).get)
        if known:
            self.supported.update(MODERN)
        self.unsupported = UnsupportedRequests(self.supported, policy, LIMIT, self.refused.append)

    def wanted(self, key: int, *versions: int) -> list[int]:
        return [version for version in versions if self.unsupported.flags(key, version)]


def asked(
    connection: Connection = ANYBODY, key: int = 9999, version: int = 0, acks: int = 1, consecutive: int = 1
) -> Request:
    return Request(connection, key, version, "c", acks, consecutive)


@pytest.mark.promise(
    "unsupported-requests.md",
    "Produce v0 to v2 count as unsupported at brokers of 4.0 and later, though these list them.",
)
def test_produce_versions_that_brokers_since_4_0_report_of_and_refuse() -> None:
    bench = Bench()
    assert bench.wanted(0, 0, 1, 2, 3, 13, 14) == [0, 1, 2, 14]
    bench.supported.update(OLD)
    assert bench.wanted(0, 0, 1, 2, 3, 11, 12) == [12]
    assert bench.supported.ranges == OLD


@pytest.mark.promise("unsupported-requests.md", "Until the broker has answered once, everything is forwarded.")
def test_nothing_is_refused_as_long_as_nothing_is_known() -> None:
    bench = Bench(known=False)
    assert bench.wanted(3, -1, 0, 99) == bench.wanted(9999, 0) == bench.wanted(30000, 0) == []
    for known in (True, False):  # of its own apis the sidecar knows
        assert Bench(known=known).wanted(30000, -1, 0, 1) == [-1, 1]
    supported = bench.supported
    assert [supported.update(new) for new in (MODERN, dict(MODERN), OLD)] == [True, False, True], "what is new"


def test_versions_that_may_not_pass_are_not_supported() -> None:
    assert Bench(newest={3: 11}).wanted(3, 0, 11, 12, 13) == [12, 13]
    assert Bench(newest={1: 2}).wanted(1, 2, 4) == [2, 4]


@pytest.mark.promise(
    "unsupported-requests.md",
    "After `unsupported.request.max.consecutive` unsupported requests in a row the next one ends the connection.",
)
def test_so_many_in_a_row_are_answered_and_the_next_one_ends_the_connection() -> None:
    bench = Bench()
    verdicts = [bench.unsupported.on_header(asked(consecutive=number)) for number in range(1, LIMIT + 3)]
    assert verdicts == [b""] * LIMIT + [Disposition.CLOSE] * 2
    assert len(bench.refused) == LIMIT + 2
    bench.unsupported.limit += 1
    assert bench.unsupported.on_header(asked(consecutive=LIMIT + 1)) == b""


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
