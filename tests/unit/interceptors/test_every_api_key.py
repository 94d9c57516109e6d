"""All 65,536 api keys in versions −1, 0, the last and the one after it, under every policy, in a session."""

from __future__ import annotations

import pytest

from proxy.core.apis import APIS
from proxy.core.exchange import Connection
from proxy.core.intercept import Rules
from proxy.core.session import Session
from proxy.core.tally import Tally
from proxy.interceptors.supported_versions import SupportedVersions
from proxy.interceptors.unsupported_requests import UnsupportedPolicy, UnsupportedRequests
from tests.frames import API_VERSIONS, METADATA, request, response

ANYBODY = Connection("c-1", "CLIENT", "127.0.0.1", 5, 0.0, "User:ANONYMOUS")
TOLD = {key: (4 if key == 1 else 0, api.max_version - (key not in (0, 1, API_VERSIONS))) for key, api in APIS.items()}
SOME_ACKS = b"\0\1" * 2


def every() -> list[tuple[int, int]]:
    keys = ((key, TOLD[key][1] if key in TOLD else 0) for key in range(-32768, 32768))
    pairs = [(key, version) for key, last in keys for version in sorted({-1, 0, last, last + 1})]
    return [
        (key, version)
        for key, version in pairs
        if key != API_VERSIONS
        and not (3 if key == 0 else TOLD.get(key, (0, -1))[0]) <= version <= TOLD.get(key, (0, -1))[1]
    ]


@pytest.mark.parametrize("policy", ["empty", "close", "forward"])
def test_the_configured_answer(policy: UnsupportedPolicy) -> None:
    supported = SupportedVersions({})
    supported.update(TOLD)
    refused: list[object] = []
    asked = every()
    rules = Rules([UnsupportedRequests(supported, policy, len(asked), refused.append)])
    tally = Tally()

    def connected() -> Session:
        return Session(ANYBODY, tally, None, 1 << 20, None, rules)

    assert len(asked) > 3 * 65_536 - 500
    session = connected()
    for number, (key, version) in enumerate(asked):
        frame = request(key, version, number, SOME_ACKS)
        session.client_data(frame, 0.0)
        answers = session.answers
        assert answers is not None
        if policy == "forward":
            assert not session.diverted, (key, version)
            session.broker_data(response(number), 0.0)
            assert not session.diverted
            continue
        assert session.diverted
        assert answers.edited == b"", (key, version)
        if policy == "empty":
            assert (answers.replies, answers.ending) == (response(number), False), (key, version)
            assert session.quiet
        else:
            assert (answers.replies, answers.ending) == (b"", True), (key, version)
            session = connected()
    verdict = {"empty": "replied", "close": "closed"}.get(policy, "")
    assert sum(tally.intercepted.values()) == len(refused) == (0 if policy == "forward" else len(asked))
    assert {each for _, each in tally.intercepted} <= {verdict}
    session.client_data(request(METADATA, 1, 7, bytes(4)), 0.0)
    assert not session.diverted
    assert tally.intercept_errors == 0
