"""Ends a process whose shutdown does not finish, for example because a thread waits for a file system or a resolver."""

from __future__ import annotations

import os
import threading
import time

import structlog

from proxy.telemetry.logs import flush_log

EXIT_MARGIN = 3.0
"""Seconds that a process may take to exit in addition to its drain and to closing its observers."""

log = structlog.get_logger(__name__)


def force_exit_after(seconds: float) -> None:
    """End this process with exit code 1 after this many seconds, unless it has exited before."""

    def wait() -> None:
        time.sleep(seconds)
        log.error("exit_forced", after_s=seconds)
        flush_log()
        os._exit(1)

    threading.Thread(target=wait, name="deadline", daemon=True).start()
