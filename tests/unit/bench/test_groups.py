"""What the members of groups note, what they say, and what is made of it."""

from __future__ import annotations

import asyncio
import base64
from types import SimpleNamespace
from typing import Any

import pytest

from proxy.coordinator import wire
from proxy.coordinator.records import partition_of
from proxy.core.struct import view
from proxy.errors import LocalError
from tests.bench.group_members import CoordinatedMember, Ownership, Transition, heartbeat_request
from tests.bench.group_scale import lateness_p99
from tests.bench.group_spread import spread
from tests.bench.group_tables import GRIDS, GROUP_GOALS
from tests.bench.group_takeover import Counts
from tests.bench.groups import Event, alter_config_body
from tests.bench.report import goal_rows, grid_rows
from tests.unit.bench.samples import results

TOPIC_ID = base64.urlsafe_b64encode(bytes(range(16))).decode().rstrip("=")


def owned(**members: list[int]) -> Ownership:
    found = Ownership(5, "g")
    for member, partitions in members.items():
        found.assign(member, partitions)
    return found


def test_a_group_is_at_rest_when_all_its_members_have_their_share() -> None:
    assert owned(a=[0, 1, 2], b=[3, 4]).settled({"a", "b"})
    assert not owned(a=[0, 1, 2], b=[3]).settled({"a", "b"})
    assert not owned(a=[0, 1, 2, 3], b=[4]).settled({"a", "b"})
    assert not owned(a=[0, 1, 2], b=[3, 4]).settled({"a", "b", "c"})
    assert not owned(a=[0, 1, 2], b=[3, 4]).settled({"a"})


def test_a_partition_that_is_taken_before_it_is_let_go_is_an_overlap() -> None:
    found = owned(a=[0, 1], b=[1, 2])
    found.assign("a", [0])
    assert found.owners == ["a", "b", "b", None, None]
    assert found.overlaps == 1


def test_gaps_are_the_longest_times_without_an_owner_since_the_event() -> None:
    found = Ownership(4, "g")
    found.transitions = [
        Transition(1.0, 0, "a"),
        Transition(11.0, 1, None),
        Transition(12.0, 0, "b"),
        Transition(13.5, 1, "b"),
        Transition(14.0, 1, None),
        Transition(14.5, 1, "a"),
    ]
    assert found.gaps(10.0, [None, "a", "a", "b"]) == [2.0, 2.5, 0.0, 0.0]


async def test_waiting_for_rest_ends_with_the_error_of_a_member_and_after_its_time() -> None:
    found = owned(a=[0, 1, 2])
    with pytest.raises(
        LocalError, match=r"group g: waited .* each of 1 members has its share of 5 partitions; 2 have no owner"
    ):
        await found.until_settled({"a"}, 0.01)
    found.fail("a is refused with 30")
    with pytest.raises(LocalError, match="refused with 30"):
        await found.until_settled({"a"}, 5)


def test_a_heartbeat_is_as_kafka_defines_it() -> None:
    joining = view(68, 1, heartbeat_request("g", "m", 0, ["t"], {}), response=False)
    assert [joining.get(name) for name in ("GroupId", "MemberId", "MemberEpoch")] == ["g", "m", 0]
    assert list(joining.get("SubscribedTopicNames")) == ["t"]
    assert list(joining.get("TopicPartitions")) == []
    telling = view(68, 1, heartbeat_request("g", "m", 3, None, {TOPIC_ID: [4, 5]}), response=False)
    (one,) = telling.get("TopicPartitions")
    assert (one.get("TopicId"), list(one.get("Partitions"))) == (TOPIC_ID, [4, 5])
    waiting = view(68, 1, heartbeat_request("g", "m", 3, None, None), response=False)
    assert waiting.get("TopicPartitions") is None
    assert waiting.get("SubscribedTopicNames") is None


def test_the_settings_of_a_group_are_as_kafka_defines_them() -> None:
    asked = view(44, 0, alter_config_body("g", {"k": "v"}), response=False)
    (resource,) = asked.get("Resources")
    (config,) = resource.get("Configs")
    assert (resource.get("ResourceType"), resource.get("ResourceName")) == (32, "g")
    assert (config.get("Name"), config.get("ConfigOperation"), asked.get("ValidateOnly")) == ("k", 0, False)


def accepted() -> bytes:
    """The body of a response to RegisterConsumer."""
    return wire.encode_register_consumer_response(2, wire.RegisterConsumerResponse(0, 1, 7))


class Sent(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[bytes] = []

    def write(self, data: Any) -> None:
        self.frames.append(bytes(data[4:]))

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        pass


async def test_a_coordinated_member_lets_go_before_it_answers() -> None:
    ownership = Ownership(4, "g")
    member = CoordinatedMember(0, "g", "c", "t", ownership)
    sent = Sent()
    member.connection_made(sent)
    member.data_received(wire.response_frame(0, accepted()))
    partitions = tuple(wire.ConsumedOffset("t", 1, number, wire.SMALLEST) for number in range(3))
    start = wire.StartFetcherRequest("c", (wire.AssignedThread("c-0", partitions),), ())
    member.data_received(wire.encode_start_fetcher(1, start))
    assert ownership.owners == ["c", "c", "c", None]
    stop = wire.encode_stop_fetcher(2, wire.StopFetcherRequest("c", (("t", 1),)))
    member.data_received(stop[:9])
    assert ownership.owners == ["c", "c", "c", None]
    member.data_received(stop[9:])
    assert ownership.owners == ["c", None, "c", None]
    _, started, stopped = [sent.frames[0], *map(wire.decode_response, sent.frames[1:])]
    assert (started.api_key, started.offsets) == (wire.START_FETCHER, None)
    assert [one.partition for one in stopped.offsets or ()] == [1]
    member.data_received(wire.encode_ping(3, wire.PingRequest("c", 0)))
    assert [one.partition for one in wire.decode_response(sent.frames[-1]).offsets or ()] == [0, 2]
    member.kill()
    assert ownership.owners == [None] * 4


def test_pings_are_late_against_the_one_that_came_soonest() -> None:
    on_time = [[10.0 + 2 * number for number in range(50)] for _ in range(2)]
    assert lateness_p99(on_time, 2.0) == 0
    late = [*on_time[0][:48], on_time[0][48] + 0.5, on_time[0][49] + 0.5]
    assert lateness_p99([late, on_time[1]], 2.0) == pytest.approx(0.5)
    assert lateness_p99([[], [1.0]], 2.0) is None


def test_a_grid_has_a_row_for_each_figure_and_a_column_for_each_side_that_was_measured() -> None:
    figures = Event(1.5, 0.25, 0.0).figures("join_ours") | {"join_tuned_s": 3.0}
    made = results({("groups", "brokerside"): {name: [value] for name, value in figures.items()}})
    assert grid_rows(made, GRIDS[0]) == [
        ["2 CPUs", "coordinated", "KIP-848, tuned"],
        ["one joins: until all is owned as computed, s", "1.50", "3.00"],
        ["one joins: longest time without an owner, moved partitions, ms", "250", "–"],
        ["one joins: … other partitions, ms", "0", "–"],
    ]
    assert [row[-1] for row in goal_rows(made)] == ["", "not reached", "reached", "reached"]


def test_every_goal_of_groups_is_a_row_of_a_table() -> None:
    named = {row.figure.format(column) for grid in GRIDS for row in grid.rows for column in grid.columns}
    goals = {figure for bounds in GROUP_GOALS.values() for _, figure, _ in bounds}
    assert goals <= named


async def test_a_lease_that_has_ended_is_counted() -> None:
    ownership = Ownership(1, "g")
    member = CoordinatedMember(0, "g", "c", "t", ownership, session_timeout_ms=1)
    member.connection_made(Sent())
    member.data_received(wire.response_frame(0, accepted()))
    one = wire.ConsumedOffset("t", 1, 0, wire.SMALLEST)
    member.data_received(
        wire.encode_start_fetcher(1, wire.StartFetcherRequest("c", (wire.AssignedThread("c-0", (one,)),), ()))
    )
    await ownership.until(lambda: ownership.owners == [None], 60, "the lease has ended")
    assert member.leases_ended == 1
    member.kill()


def test_groups_are_with_the_sidecar_that_holds_their_partition() -> None:
    held = {1: {0, 3}, 2: {1}, 3: {2}}
    found = spread([f"g{number}" for number in range(40)], held)
    assert sorted(group for own in found.values() for group in own) == sorted(f"g{number}" for number in range(40))
    assert all(partition_of(group, 4) in held[sidecar] for sidecar, own in found.items() for group in own)
    assert spread([], held) == {1: [], 2: [], 3: []}


def test_counts_are_of_all_members_together() -> None:
    members: list[Any] = [SimpleNamespace(stops=1, leases_ended=0), SimpleNamespace(stops=2, leases_ended=1)]
    assert Counts.of(members) == Counts(stops=3, leases_ended=1)
