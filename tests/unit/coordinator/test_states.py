"""The tables of states: every cell, and every pair that is not there."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import pytest

from proxy.coordinator.states import (
    GROUPS,
    MEMBERS,
    PARTITIONS,
    GroupState,
    GroupStateEvent,
    ImpossibleTransitionError,
    MemberEvent,
    MemberState,
    PartitionEvent,
    PartitionState,
    next_state,
)

TABLES: list[tuple[Mapping[Any, Mapping[Any, Any]], type[Enum], type[Enum]]] = [
    (PARTITIONS, PartitionState, PartitionEvent),
    (GROUPS, GroupState, GroupStateEvent),
    (MEMBERS, MemberState, MemberEvent),
]
NAMES = ["partitions", "groups", "members"]

PATHS = {
    "a partition nobody asks for": (PARTITIONS, "nominal lost", "away"),
    "a partition's life": (PARTITIONS, "nominal asked opened unconfirmed confirmed lost", "away"),
    "a group's life": (GROUPS, "empty registered commit committed started emptied", "empty"),
    "a joiner": (GROUPS, "stable registered stop commit committed started not_necessary", "stable"),
    "a takeover": (GROUPS, "empty loaded registered resume started", "stable"),
    "a failed attempt": (GROUPS, "stable stop attempt_failed stop attempt_failed given_up emptied", "empty"),
    "a member goes meanwhile": (GROUPS, "stable stop member_gone", "stable"),
    "a member goes in the back-off": (GROUPS, "stable stop attempt_failed member_gone", "backoff"),
    "a member's life": (MEMBERS, "registering accepted start started stop stopped start stop stop end", "gone"),
    "a member that returns": (MEMBERS, "registering return stop stopped start started end", "gone"),
    "an absent one": (MEMBERS, "absent end", "gone"),
}


@pytest.mark.parametrize(("table", "states", "events"), TABLES, ids=NAMES)
def test_every_pair(table: Mapping[Any, Mapping[Any, Any]], states: type[Enum], events: type[Enum]) -> None:
    assert set(table) == set(states)
    for state in states:
        for event in events:
            if event in table[state]:
                assert next_state(table, state, event) is table[state][event]
            else:
                with pytest.raises(ImpossibleTransitionError, match=f"{state.value}: {event.value}"):
                    next_state(table, state, event)


@pytest.mark.parametrize(("table", "states", "events"), TABLES, ids=NAMES)
def test_every_event_happens_and_every_state_is_reached(
    table: Mapping[Any, Mapping[Any, Any]], states: type[Enum], events: type[Enum]
) -> None:
    assert {event for row in table.values() for event in row} == set(events)
    begins = {PartitionState.NOMINAL, GroupState.EMPTY, MemberState.REGISTERING, MemberState.ABSENT}
    assert {state for row in table.values() for state in row.values()} | (begins & set(states)) == set(states)


@pytest.mark.parametrize("path", PATHS)
def test_paths(path: str) -> None:
    table, steps, end = PATHS[path]
    first, *events = steps.split()
    state: Any = next(state for state in table if state.value == first)  # type: ignore[attr-defined]
    for name in events:
        state = next_state(table, state, next(event for event in table[state] if event.value == name))  # type: ignore
    assert state.value == end
