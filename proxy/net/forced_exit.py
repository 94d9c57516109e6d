"""The end of a process that something holds up: a thread in a file system or a resolver that does not answer."""

from __future__ import annotations

import os
import threading
import time

import structlog

from proxy.telemetry.logs import flush_log

EXIT_MARGIN = 3.0
"""Seconds that a process may take to end beyond its drain and its observers' time to close."""

log = structlog.get_logger(__name__)


def force_exit_after(seconds: float) -> None:
    """End this process with exit code 1 after so many seconds, unless it has ended by then."""

    def wait() -> None:
        time.sleep(seconds)
        log.error("exit_forced", after_s=seconds)
        flush_log()
        os._exit(1)

    threading.Thread(target=wait, name="deadline", daemon=True).start()
