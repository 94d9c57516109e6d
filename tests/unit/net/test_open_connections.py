"""Which open connections are described, page by page, and which of them are chosen."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from proxy.core.exchange import Connection
from proxy.net.open_connections import PAGE, OpenConnections, choose
from tests.unit.test_top import connection


class Relays(dict[int, Any]):
    """Counts how often all of them are walked over."""

    walks = 0

    def __iter__(self) -> Iterator[int]:
        self.walks += 1
        return super().__iter__()


def relay(number: int) -> Any:
    known = Connection(f"c-{number}", "CLIENT", "127.0.0.1", number, 0.0, "User:a")
    return SimpleNamespace(
        connection=known,
        session=None,
        client_id=None,
        first_eof=None,
        last_byte_at=0.0,
        requests=0,
        received_bytes=0,
        sent_bytes=0,
        descriptor=lambda end: 5,
    )


def opened(count: int) -> tuple[Relays, OpenConnections]:
    relays = Relays({number: relay(number) for number in range(1, count + 1)})
    return relays, OpenConnections(cast(Any, relays), 1)


def listed(found: OpenConnections, after: int = 0) -> list[int]:
    numbers: list[int] = []
    while page := found.describe_page(after):
        numbers += [number for number, _ in page]
        after = numbers[-1]
    return numbers


def test_all_are_described_and_walked_over_once_but_for_those_that_end_meanwhile() -> None:
    relays, found = opened(20 * PAGE + 3)
    assert listed(found) == list(range(1, 20 * PAGE + 4))
    assert relays.walks == 1
    assert len(found.describe_page(0)) == len(found.describe_page(PAGE)) == PAGE
    one = found.find(2)
    assert one.id == "c-2"
    del relays[2]
    assert found.find(2) is None
    # Those that end meanwhile are left out and the listing goes on.
    relays, found = opened(5 * PAGE)
    first = [number for number, _ in found.describe_page(0)]
    for number in range(PAGE + 1, 4 * PAGE + 1):
        del relays[number]
    assert [*first, *listed(found, first[-1])] == [*range(1, PAGE + 1), *range(4 * PAGE + 1, 5 * PAGE + 1)]


@pytest.mark.promise(
    "limits.md", "Of more connections than `limit` allows, those that are idle for the shortest time are listed."
)
def test_the_least_idle_are_chosen_first() -> None:
    open_ones = [connection(number, idle_duration_ms=100 - number % 10) for number in range(30)]
    open_ones[7] = connection(7, principal="User:web")
    chosen = choose(open_ones, {"principal": "User:billing"}, 4)
    assert chosen.number == 29
    assert [(one.id, one.idle_duration_ms) for one in chosen.least_idle] == [
        ("c-19", 91),
        ("c-29", 91),
        ("c-9", 91),
        ("c-18", 92),
    ]
