"""Which connections are closed because they are idle or old, by a clock of the test's own."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from proxy.net.connection_lifetime import AGE_SPREAD, PATIENCE, RESPONSE_READ_TIME, SPREAD_STEPS, ConnectionLifetime
from proxy.net.ticker import TICK_INTERVAL


class Client:
    """What is known of a connection, opened at 0."""

    def __init__(self, *, unread: bool = False, busy: bool = False, attached: bool = True) -> None:
        self.connection = SimpleNamespace(opened_at=0.0)
        self.last_byte_at = 0.0
        self.unread = unread
        self.is_drained = not busy
        self.causes: list[str] = []
        self.stopped = False
        self._attached = attached

    @property
    def closed(self) -> bool:
        return bool(self.causes)

    def descriptor(self, side: str) -> int:
        return 7 if self._attached else -1

    def stop_reading_requests(self) -> None:
        self.stopped = True

    def close(self, cause: str) -> None:
        self.causes.append(cause)
        raise OSError


class Site:
    def __init__(self, *clients: Client, idle: float | None = None, age: float | None = None) -> None:
        self.now = 0.0
        relays = {client: number * SPREAD_STEPS for number, client in enumerate(clients)}
        self.limits = ConnectionLifetime(
            cast(Any, relays),
            None if idle is None else round(idle * 1000),
            None if age is None else round(age * 1000),
            lambda: self.now,
            lambda relay: cast(Any, relay).unread,
        )

    def run(self, until: float) -> None:
        while self.now < until:
            self.now = min(until, self.now + TICK_INTERVAL)
            self.limits.on_tick()


@pytest.mark.promise(
    "limits.md",
    "`connections.max.idle.ms` closes connections on which no byte has passed for so long, but none with an "
    "open request.",
)
def test_the_idle_are_closed_and_others_are_not() -> None:
    idle, active, asking, unread, connecting = (
        Client(), Client(), Client(busy=True), Client(unread=True), Client(attached=False),
    )  # fmt: skip
    site = Site(idle, active, asking, unread, connecting, idle=60)
    site.run(59.9)
    assert idle.causes == []
    active.last_byte_at = 59.0
    site.run(70)
    assert idle.causes == ["connection_max_idle"]
    assert [client.causes for client in (active, asking, unread, connecting)] == [[]] * 4


def test_an_old_one_is_closed_between_two_requests() -> None:
    client = Client(busy=True)
    site = Site(client, age=60)
    site.run(60 + PATIENCE / 2)
    assert client.causes == []
    client.is_drained = True
    site.run(site.now + 2 * TICK_INTERVAL)
    assert (client.causes, client.stopped) == (["connection_max_age"], False)


@pytest.mark.promise("limits.md", "An old connection that never pauses gets all of its responses before it is closed.")
def test_one_that_never_pauses_is_not_read_any_more_and_may_take_its_responses() -> None:
    client = Client(busy=True)
    site = Site(client, age=60)
    site.run(60 + PATIENCE - 1)
    assert not client.stopped
    site.run(60 + PATIENCE + 1)
    assert client.stopped
    client.is_drained, client.unread, client.last_byte_at = True, True, site.now
    site.run(site.now + RESPONSE_READ_TIME * 0.9)
    assert client.causes == []
    site.run(site.now + RESPONSE_READ_TIME * 0.2)
    assert client.causes == ["connection_max_age"]


@pytest.mark.promise(
    "limits.md", "Connections that were opened together do not reach `connections.max.age.ms` together."
)
def test_those_opened_together_do_not_end_together() -> None:
    clients = [Client() for _ in range(SPREAD_STEPS)]
    site = Site(age=1000)
    site.limits._relays = cast(Any, {client: number for number, client in enumerate(clients)})
    ended: list[int] = []
    for at in range(880, 1002):
        site.run(at)
        ended.append(sum(map(len, (client.causes for client in clients))))
    assert ended[0] == 0
    assert ended[-1] == len(clients)
    assert max(after - before for before, after in pairwise(ended)) < 10
    assert 0.85 < 1 - AGE_SPREAD < 1
