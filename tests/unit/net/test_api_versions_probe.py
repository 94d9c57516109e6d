"""When a broker is asked again for what it supports."""

import pytest

from proxy.config import Endpoint
from proxy.net import api_versions_probe
from proxy.net.api_versions_probe import MAX_ANSWER_AGE, ApiVersionsProbe
from proxy.net.upstream import Upstream


class Counted(ApiVersionsProbe):
    """Counts in place of asking."""

    asked = 0

    def start(self) -> None:
        self.asked += 1


@pytest.mark.promise(
    "architecture.md", "A broker is asked for its ApiVersions again only when the last answer that passed is too old."
)
def test_only_an_answer_that_is_too_old_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(api_versions_probe, "monotonic", lambda: now)
    asking = Counted(Upstream(Endpoint("127.0.0.1", 9), 1.0, None), lambda ranges: None)
    asking.start_if_stale(now)
    assert asking.asked == 1, "nothing was heard yet"
    asking.mark_answered()
    now += MAX_ANSWER_AGE
    asking.start_if_stale(now)
    assert asking.asked == 1
    now += 0.1
    asking.mark_answered()
    now += MAX_ANSWER_AGE
    asking.start_if_stale(now)
    assert asking.asked == 1, "a client has heard it in between"
    now += 0.1
    asking.start_if_stale(now)
    assert asking.asked == 2
