"""Requests about many groups at a time to Kafka's own group coordinators, and their responses (pure).

For brokers since 3.0. Answers are by group: Kafka's error code, 0 for none, and what there is without an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from proxy.config.values import Endpoint
from proxy.core.wire import Buffer
from proxy.rpc.messages import RpcRequest, flexible_request, flexible_response

OFFSET_FETCH, FIND_COORDINATOR = 9, 10
OFFSET_FETCH_VERSION, FIND_COORDINATOR_VERSION = 8, 4
"""The first ones with many groups in one request. Later ones of OffsetFetch have no names of topics."""

DEAD = "Dead"
"""State of a group that Kafka does not know, or not as one of this type."""

WITHOUT_MEMBERS = ("Empty", DEAD)
"""States of a group without members."""

NOT_OF_THIS_TYPE = (35, 69)
"""UNSUPPORTED_VERSION, where the type is not enabled, and GROUP_ID_NOT_FOUND."""


class GroupType(NamedTuple):
    """How groups of one type are described. ``version``: the first one that is not experimental and flexible."""

    key: int
    version: int
    field: str


CLASSIC_GROUPS = GroupType(15, 5, "Groups")
CONSUMER_GROUPS = GroupType(69, 0, "GroupIds")
SHARE_GROUPS = GroupType(77, 1, "GroupIds")
STREAMS_GROUPS = GroupType(89, 0, "GroupIds")


def coordinators_request(groups: Sequence[str]) -> RpcRequest:
    """Ask for the coordinators of groups."""
    return flexible_request(FIND_COORDINATOR, FIND_COORDINATOR_VERSION, {"CoordinatorKeys": groups})


def decode_coordinators(answer: Buffer) -> dict[str, tuple[int, Endpoint]]:
    """Return the address of each group's coordinator, on the listener that was asked."""
    found = flexible_response(FIND_COORDINATOR, FIND_COORDINATOR_VERSION, answer).get("Coordinators")
    return {one.get("Key"): (one.get("ErrorCode"), Endpoint(one.get("Host"), one.get("Port"))) for one in found}


def stable_offsets_request(groups: Sequence[str]) -> RpcRequest:
    """Ask for all committed offsets of groups; an error for those that a transaction may change, which is not over."""
    values = {"Groups": [{"GroupId": group} for group in groups], "RequireStable": True}
    return flexible_request(OFFSET_FETCH, OFFSET_FETCH_VERSION, values)


def decode_offsets(answer: Buffer) -> dict[str, tuple[int, Mapping[tuple[str, int], int]]]:
    """Return the offsets by topic and partition. An error of one partition is one of its group."""
    found: dict[str, tuple[int, Mapping[tuple[str, int], int]]] = {}
    for group in flexible_response(OFFSET_FETCH, OFFSET_FETCH_VERSION, answer).get("Groups"):
        code: int = group.get("ErrorCode")
        offsets: dict[tuple[str, int], int] = {}
        for topic in group.get("Topics"):
            name = topic.get("Name")
            for one in topic.get("Partitions"):
                code = code or one.get("ErrorCode")
                if (offset := one.get("CommittedOffset")) >= 0:
                    offsets[name, one.get("PartitionIndex")] = offset
        found[group.get("GroupId")] = code, offsets
    return found


def groups_request(kind: GroupType, groups: Sequence[str]) -> RpcRequest:
    """Ask for descriptions of groups, as of groups of this type."""
    return flexible_request(kind.key, kind.version, {kind.field: groups})


def decode_states(kind: GroupType, answer: Buffer) -> dict[str, tuple[int, str]]:
    """Return the state of each group; ``DEAD`` for one that is not of this type."""
    found = {}
    for one in flexible_response(kind.key, kind.version, answer).get("Groups"):
        code = one.get("ErrorCode")
        found[one.get("GroupId")] = (0, DEAD) if code in NOT_OF_THIS_TYPE else (code, one.get("GroupState"))
    return found
