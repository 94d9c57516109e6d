"""The feature controller's states, the events between them, and its effects: what an executor is to do."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple


class ControllerState(Enum):
    """What the controller is doing."""

    AWAY = "away"
    """Another sidecar is the controller, or nobody is."""
    OPENING = "opening"
    """Fences the controller before, reads the topic to its end, claims it."""
    BOOTSTRAP = "bootstrap"
    """Nothing was ever finalized; waits until all sidecars of the new fleet have registered."""
    SERVING = "serving"
    """Answers proposals."""
    CHANGING = "changing"
    """Writes an intent, and reads the registry to its end; or withdraws the intent."""
    APPLYING = "applying"
    """Writes the final record, and waits until all sidecars apply it."""


class ControllerEvent(Enum):
    """What makes the controller change its state."""

    HELD = "held"
    """The election has chosen this sidecar."""
    OPENED = "opened"
    """The own claim was read back; levels are finalized."""
    OPENED_EMPTY = "opened_empty"
    """The own claim was read back; nothing was ever finalized."""
    FITS = "fits"
    """A change is possible: its intent is written."""
    CONFIRMED = "confirmed"
    """The change is still possible after the barrier: the final record is written."""
    WITHDRAWN = "withdrawn"
    """The intent was withdrawn; levels are finalized."""
    WITHDRAWN_EMPTY = "withdrawn_empty"
    """The intent was withdrawn; nothing was ever finalized."""
    APPLIED = "applied"
    """All sidecars that the change waits for apply it, or its time is over."""
    LOST = "lost"
    """Another sidecar is the controller, or this one has let go."""


TRANSITIONS: Mapping[ControllerState, Mapping[ControllerEvent, ControllerState]] = {
    ControllerState.AWAY: {
        ControllerEvent.HELD: ControllerState.OPENING,
    },
    ControllerState.OPENING: {
        ControllerEvent.OPENED: ControllerState.SERVING,
        ControllerEvent.OPENED_EMPTY: ControllerState.BOOTSTRAP,
        ControllerEvent.LOST: ControllerState.AWAY,
    },
    ControllerState.BOOTSTRAP: {
        ControllerEvent.FITS: ControllerState.CHANGING,
        ControllerEvent.LOST: ControllerState.AWAY,
    },
    ControllerState.SERVING: {
        ControllerEvent.FITS: ControllerState.CHANGING,
        ControllerEvent.LOST: ControllerState.AWAY,
    },
    ControllerState.CHANGING: {
        ControllerEvent.CONFIRMED: ControllerState.APPLYING,
        ControllerEvent.WITHDRAWN: ControllerState.SERVING,
        ControllerEvent.WITHDRAWN_EMPTY: ControllerState.BOOTSTRAP,
        ControllerEvent.LOST: ControllerState.AWAY,
    },
    ControllerState.APPLYING: {
        ControllerEvent.APPLIED: ControllerState.SERVING,
        ControllerEvent.LOST: ControllerState.AWAY,
    },
}
"""The next state, by state and event. Any other event does not happen in a state."""


class FencePredecessor(NamedTuple):
    """Open the transactional producer (``init_transactions``), then measure the topic's end and read up to there, all
    records given to ``records``; then ``opened(number)``. Whatever fails: ``lost``."""

    number: int


class WriteTransaction(NamedTuple):
    """Write these records, by key, in this order, in one transaction; then ``written``, ``write_failed`` or ``lost``.

    A value of None is a tombstone. At most one write is under way. ``write_failed`` only once the transaction is over
    (whether committed or aborted) and the same producer can be used again; else ``lost``.
    """

    number: int
    records: Mapping[bytes, bytes | None]


class ReadRegistry(NamedTuple):
    """The barrier: measure the end of the registry's topic from now on, read up to there; then ``barrier_passed``."""

    number: int


class CloseProducer(NamedTuple):
    """Close the producer, without waiting for what is under way, and report ``Election.lost``."""


class LogLine(NamedTuple):
    """Log an event: ``feature_controller``, ``features_finalized`` or ``features_refused``, with these fields."""

    event: str
    fields: Mapping[str, object]


Effect = FencePredecessor | WriteTransaction | ReadRegistry | CloseProducer | LogLine
