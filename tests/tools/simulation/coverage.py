"""Which cells of the coordinator's tables of states are visited."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any

from proxy.coordinator import states

Cell = tuple[str, str, str]
"""The name of a table, a state and an event."""

TABLES: Mapping[str, Any] = {
    "partition": states.PARTITIONS,
    "group": states.GROUPS,
    "member": states.MEMBERS,
}


class _Row(dict[Enum, Enum]):
    """A row of a table that notes what is looked up."""

    def __init__(self, row: Mapping[Enum, Enum], table: str, state: Enum, visited: set[Cell]) -> None:
        super().__init__(row)
        self._cells = {event: (table, state.value, event.value) for event in row}
        self._visited = visited

    def __getitem__(self, event: Enum) -> Enum:
        self._visited.add(self._cells[event])
        return super().__getitem__(event)


@contextmanager
def visited_cells() -> Iterator[set[Cell]]:
    """Gather the cells that are visited within the block."""
    visited: set[Cell] = set()
    before = {name: dict(table) for name, table in TABLES.items()}
    try:
        for name, table in TABLES.items():
            for state, row in before[name].items():
                table[state] = _Row(row, name, state, visited)
        yield visited
    finally:
        for name, table in TABLES.items():
            table.update(before[name])


def all_cells() -> set[Cell]:
    return {
        (name, state.value, event.value)
        for name, table in TABLES.items()
        for state, row in table.items()
        for event in row
    }
