"""The states of a consumer's membership."""

from __future__ import annotations

from enum import Enum


class LinkState(Enum):
    """Of the link to the coordinator."""

    SEEK = "seek"
    """Asks one sidecar after the other who it is."""
    REGISTER = "register"
    JOINED = "joined"
    LEAVING = "leaving"
    """Waits for pings, to report its last offsets."""
    CLOSED = "closed"


class FetchingState(Enum):
    """Of fetching."""

    STOPPED = "stopped"
    FETCHING = "fetching"
    HELD = "held"
    """It is fetched as before, and nothing is handed out."""


class LinkStep(Enum):
    """Where an attempt of SEEK or REGISTER is."""

    WAIT = "wait"
    """For the time of the next attempt; there is no connection."""
    CONNECT = "connect"
    ASK = "ask"
    PAUSE = "pause"
    """Before the same is asked again over the same connection."""
