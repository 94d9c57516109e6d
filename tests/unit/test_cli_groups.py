"""``brokerside groups`` and the pages behind it: what a person and a program see of the groups of one sidecar."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from proxy.coordinator.status import ConsumerStatus, CoordinatorStatus, GroupsListing, GroupStatus, RebalanceStatus
from proxy.coordinator.view import NO_COORDINATOR
from proxy.groups_view import dump_paths, format_group, format_groups
from proxy.net.group_pages import GroupPages
from proxy.net.http import HttpServer
from tests.unit.terminal import Terminal, brokerside

__all__ = ["brokerside"]

pytestmark = pytest.mark.usefixtures("late_requests")

NOW = 1_000_000.0

ALICE = ConsumerStatus(
    consumer_id="c/1", state="fetching", client_id="app", principal="User:alice", client_ip="10.0.0.7",
    listener="CLIENT", session_timeout_ms=6000, auto_commit=True, topic_count='{"t":1}',
    threads={"c/1-0": {"t": [0, 1]}}, last_heard=NOW - 1.5, offsets={"t": {0: 1234}},
)  # fmt: skip
ORDERS = GroupStatus(
    group_id="orders\x1b", partition=3, state="stable", generation=7, level=1, members=1, owned=2, unowned=1,
    frozen=True, last_rebalance=RebalanceStatus("joined", NOW - 300, 321, 2), consumers=[ALICE],
)  # fmt: skip
EMPTY = GroupStatus("dump", 0, "empty", 0, 1, 0, 0, 0)


class Source:
    broker_id = 2

    def __init__(self) -> None:
        self.groups = {one.group_id: one for one in (ORDERS, EMPTY)}
        self.evacuated = False
        self.coordinators: dict[str, int] = {"nobody": 7, "new": 2}

    @property
    def reason(self) -> str | None:
        return "evacuated" if self.evacuated else None

    def status(self) -> CoordinatorStatus:
        return CoordinatorStatus(level=1, partitions=12, evacuated=self.evacuated)

    async def list_groups(self) -> list[GroupStatus]:
        return list(self.groups.values())

    async def find_group(self, group_id: str) -> GroupStatus | None:
        return self.groups.get(group_id)

    def coordinator_of(self, group_id: str) -> int:
        return self.coordinators.get(group_id, NO_COORDINATOR)

    def evacuate(self) -> None:
        self.evacuated = True

    def return_(self) -> None:
        self.evacuated = False


@asynccontextmanager
async def serving(source: Source | None) -> AsyncIterator[str]:
    pages = GroupPages(source)
    server = HttpServer(pages.gets, pages.posts)
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    server.start(sock)
    try:
        yield f"127.0.0.1:{sock.getsockname()[1]}"
    finally:
        await server.close()


@pytest.mark.promise("coordinator.md", "`brokerside groups` shows each group's state, generation, members and owners.")
def test_all_groups_and_one_of_them_are_tables() -> None:
    assert format_groups(GroupsListing(2, [ORDERS, EMPTY]), NOW).splitlines() == [
        "GROUP       STATE           GENERATION  LEVEL  MEMBERS  PARTITIONS  UNOWNED  LAST REBALANCE",
        "dump        empty                    0      1        0           0        0  -",
        r"orders\x1b  stable, frozen           7      1        1           3        1  joined, 321 ms, 5 min ago",
    ]
    assert format_group(ORDERS, NOW).splitlines()[3:] == [
        "CONSUMER  STATE     PRINCIPAL   ADDRESS    TIMEOUT  THREADS  PARTITIONS  LAST HEARD",
        "c/1       fetching  User:alice  10.0.0.7  6,000 ms        1           2   1.5 s ago",
        "",
        "TOPIC  PARTITION  OFFSET  THREAD",
        "t              0   1,234  c/1-0",
        "t              1       -  c/1-0",
    ]


@pytest.mark.promise(
    "coordinator.md", "For a group of another sidecar `brokerside groups GROUP` fails, and names the broker to ask."
)
async def test_a_group_that_is_not_here_is_a_failure_which_says_where_it_is(brokerside: Terminal) -> None:
    async with serving(Source()) as admin:
        for group, expected in (
            ("nobody", "group 'nobody' is coordinated by the sidecar of broker 7: ask that one (--admin)"),
            ("new", "this sidecar coordinates group 'new', and no consumer has registered with it so far"),
            ("lost", "group 'lost' has no coordinator"),
        ):
            done = await asyncio.to_thread(brokerside, "groups", group, "--admin", admin)
            assert (done.code, done.out, done.err) == (1, "", f"brokerside: {expected}\n")


@pytest.mark.promise("coordinator.md", "`brokerside groups dump` prints consumers and owners as paths of ZooKeeper.")
async def test_a_dump_has_the_paths_of_zookeeper(brokerside: Terminal) -> None:
    async with serving(Source()) as admin:
        done = await asyncio.to_thread(brokerside, "groups", "dump", "--admin", admin)
        of_its_name = await asyncio.to_thread(brokerside, "groups", "--group", "dump", "-o", "json", "--admin", admin)
    assert [one["group_id"] for one in json.loads(of_its_name.out)["groups"]] == ["dump"]
    assert done.code == 0
    assert done.out.splitlines() == [
        "/consumers/coordinator -> 2",
        '/consumers/orders%1B/ids/c%2F1 -> {"t":1}',
        "/consumers/orders%1B/owners/t/0 -> c%2F1-0",
        "/consumers/orders%1B/owners/t/1 -> c%2F1-0",
    ]
    assert list(dump_paths(iter([EMPTY]), 5)) == ["/consumers/coordinator -> 5"]


@pytest.mark.promise(
    "coordinator.md", "`brokerside groups evacuate` and `return` say what follows, and the page shows the state."
)
async def test_a_sidecar_is_evacuated_and_takes_groups_again(brokerside: Terminal) -> None:
    source = Source()
    async with serving(source) as admin:
        for action, evacuated, said in (
            ("evacuate", True, "no group any more: other sidecars take its partitions"),
            ("return", False, "groups again: its partitions come back within a minute"),
        ):
            done = await asyncio.to_thread(brokerside, "groups", action, "--admin", admin)
            assert (done.code, done.out.splitlines()[-1]) == (0, f"this sidecar coordinates {said}")
            assert source.evacuated == evacuated


@pytest.mark.promise("coordinator.md", "A sidecar without `coordinator.enabled` coordinates no group, and says so.")
async def test_without_a_coordinator_it_is_said_why(brokerside: Terminal) -> None:
    none = "no groups are coordinated by this sidecar: coordinator.enabled is false\n"
    async with serving(None) as admin:
        for arguments, code, out, err in (
            ((), 0, none, ""),
            (("evacuate",), 1, "", "brokerside: coordinator.enabled is false\n"),
            (("dump",), 1, "", f"brokerside: {none}"),
        ):
            done = await asyncio.to_thread(brokerside, "groups", *arguments, "--admin", admin)
            assert (done.code, done.out, done.err) == (code, out, err), arguments
