"""How a command shows something that changes, once or again and again."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable


def show(text: Callable[[], str], watch: bool, output: str) -> None:
    """Print ``text()``; with ``watch`` once a second until Ctrl-C, also while the sidecar restarts."""
    from proxy.errors import LocalError

    redraw = "\x1b[H\x1b[2J" if watch and output == "table" and sys.stdout.isatty() else ""
    seen = False
    while True:
        try:
            found = text()
        except LocalError as error:
            if not (watch and seen):
                raise
            print(redraw, end="", flush=True)
            print(f"brokerside: {error}", file=sys.stderr)  # it restarts
        else:
            seen = True
            print(redraw + found, flush=True)
        if not watch:
            return
        time.sleep(1)
