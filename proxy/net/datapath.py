"""Which implementation of the data path runs: the compiled twins where they are installed, else pure Python."""

from __future__ import annotations

from importlib import import_module
from typing import Literal, NamedTuple, cast

from proxy.core.session import Session
from proxy.errors import LocalError
from proxy.net.relay import Relay

Wanted = Literal["auto", "compiled", "python"]


class DataPath(NamedTuple):
    """``name`` is what ``/metrics`` says; both implementations of a class promise the same."""

    name: Literal["compiled", "python"]
    session: type[Session]
    relay: type[Relay]


PYTHON = DataPath("python", Session, Relay)


def choose(wanted: Wanted) -> DataPath:
    """Return the data path for the key ``data.path``. Raises LocalError for a compiled one that is not installed."""
    if wanted == "python":
        return PYTHON
    try:
        session = import_module("proxy.compiled.session").Session
        relay = import_module("proxy.compiled.relay").Relay
    except ImportError as error:
        if wanted == "compiled":
            raise LocalError(
                f"data.path: compiled is not possible, {error}; allowed here: auto, python (installing again with a C "
                "compiler at hand builds what is missing)"
            ) from error
        return PYTHON
    return DataPath("compiled", cast(type[Session], session), cast(type[Relay], relay))
