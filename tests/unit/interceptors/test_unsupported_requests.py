"""Which requests are refused, and how."""

import pytest

from proxy.core.exchange import Connection
from proxy.core.interceptor import Disposition, Request
from proxy.interceptors.supported_versions import SupportedVersions
from proxy.interceptors.unsupported_requests import UnsupportedPolicy, UnsupportedRequests

ANYBODY = Connection("c-1", "CLIENT", "127.0.0.1", 5, 0.0, "User:ANONYMOUS")
NO_SINK = Connection("c-1", "CLIENT", "127.0.0.1", 5, 0.0, "User:ANONYMOUS", principal_source="unauthenticated")
ALICE = Connection("c-1", "CLIENT", "127.0.0.1", 5, 0.0, "User:alice", principal_source="sasl")
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
