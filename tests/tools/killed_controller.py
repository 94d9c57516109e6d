"""``python -m tests.tools.killed_controller ORDER ARGS``: ``brokerside ARGS`` that kills itself at an instant.

While the file ORDER names one of ``INSTANTS``, the feature controller of this process kills the whole process at that
instant, like ``kill -9``, and removes the file before. With ``STOPPED`` in it, the process is stopped, as by SIGSTOP,
before the next write of its controller; when it continues, it reads neither topic until it has tried to write: it would
let go if it read in the registry that it was silent.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from proxy.cli import main as brokerside
from proxy.features.controller import FeatureController
from proxy.fleet.features_thread import FeaturesThread
from proxy.fleet.fenced_writer import FencedWriter
from proxy.fleet.registry import RegistryThread

STOPPED = "stopped before it writes"

INSTANTS = {
    "opening": ("opened", "before"),
    "claimed": ("_open", "after"),
    "intent to be written": ("_begin", "after"),
    "intent read back": ("barrier_passed", "before"),
    "final record to be written": ("_confirm", "after"),
    "final record read back": ("_read_back", "before"),
}
"""The method of the controller, and whether it dies before or after it. The effects of a call are carried out later."""


def main(order: Path) -> None:
    for instant, (method, when) in INSTANTS.items():
        setattr(FeatureController, method, _deadly(getattr(FeatureController, method), order, instant, when))
    _stop_before_writes(order)
    brokerside()


def _stop_before_writes(order: Path) -> None:
    write = FencedWriter._write
    may_read = threading.Event()
    may_read.set()

    def write_late(self: FencedWriter, *arguments: Any) -> str | None:
        if _is_in(order, STOPPED):
            may_read.clear()
            order.unlink()
            os.kill(os.getpid(), signal.SIGSTOP)
        try:
            return write(self, *arguments)
        finally:
            may_read.set()

    def later(read: Callable[..., None]) -> Callable[..., None]:
        def read_later(*arguments: Any) -> None:
            may_read.wait()
            read(*arguments)

        return read_later

    FencedWriter._write = write_late  # type: ignore[method-assign,assignment]
    for thread in (FeaturesThread, RegistryThread):
        thread._on_read = later(thread._on_read)  # type: ignore[method-assign]


def _deadly(method: Callable[..., Any], order: Path, instant: str, when: str) -> Callable[..., Any]:
    def call(self: FeatureController, *arguments: Any) -> Any:
        if when == "before" and _is_ordered(self, order, instant):
            _die(order)
        result = method(self, *arguments)
        if when == "after" and _is_ordered(self, order, instant):
            _die(order)
        return result

    return call


def _is_ordered(controller: FeatureController, order: Path, instant: str) -> bool:
    """Whether it is to die now. A record that is read back counts where it is the final one of a change."""
    if instant == "claimed" and not controller.claim:
        return False
    if instant == "final record read back" and controller.state.value != "applying":
        return False
    return _is_in(order, instant)


def _is_in(order: Path, instant: str) -> bool:
    try:
        return order.read_text() == instant
    except FileNotFoundError:
        return False


def _die(order: Path) -> None:
    order.unlink()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    file = Path(sys.argv.pop(1))
    main(file)
