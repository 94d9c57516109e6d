"""Whether a group takes a consumer: what is checked of RegisterConsumer that depends on the group."""

from __future__ import annotations

from proxy.coordinator.codes import RegistrationCode
from proxy.coordinator.coordinator_state import CoordinatorState
from proxy.coordinator.group import Group
from proxy.coordinator.held_partition import HeldPartition
from proxy.coordinator.member import GroupMember
from proxy.coordinator.registration import refusal

MAX_GROUPS = 10_000
"""Groups of one partition."""

MAX_GROUP_THREADS = 32_767
"""Threads of all members of a group."""


def check_group(
    state: CoordinatorState, consumers: int, partition: HeldPartition, group: Group, member: GroupMember, now: int
) -> None:
    """``consumers``: registered, or about to be. Raises RegistrationRefused: 68, 92, 81, 27 or 14, in this order."""
    if group.has_ordinary_members:
        raise refusal(RegistrationCode.ORDINARY_MEMBERS)
    known = group.members.get(member.consumer_id)
    if member.consumer_id in group.registering or (known is not None and not known.may_be_replaced()):
        raise refusal(RegistrationCode.DUPLICATE_CONSUMER)
    is_new = group.group_id not in state.groups
    if (
        consumers >= state.settings.max_consumers
        or (is_new and len(partition.group_ids) >= MAX_GROUPS)
        or group.threads + member.subscription.streams > MAX_GROUP_THREADS
        or not state.topics.has_room(group.group_id, member.value.topic_count, member.subscription)
    ):
        raise refusal(RegistrationCode.MAX_SIZE_REACHED)
    if group.is_refused(member.consumer_id, now):
        raise refusal(RegistrationCode.REBALANCE_FAILED)
    if group.closing is not None:
        raise refusal(RegistrationCode.LOADING)
