"""Notifies the service manager of this process's state, in the protocol of systemd's ``sd_notify(3)``.

A state is one datagram to the Unix socket that ``NOTIFY_SOCKET`` names. Sending never blocks.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable, MutableMapping

import structlog

MAX_UNSENT = 8
"""States that wait while the socket takes nothing. Beyond it the oldest is dropped."""

MAX_STATUS_LENGTH = 200
"""Characters of a status, which is one line in ``systemctl status``."""

log = structlog.get_logger(__name__)


class ServiceNotifier:
    """Sends states to the service manager; does nothing if there is none."""

    def __init__(
        self, environment: MutableMapping[str, str] = os.environ, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Takes ``NOTIFY_SOCKET``, ``WATCHDOG_USEC`` and ``WATCHDOG_PID`` out of ``environment``, so that no process
        that is started later speaks for this one."""
        address = environment.pop("NOTIFY_SOCKET", "")
        interval, pid = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
        watched = interval.isdecimal() and pid in ("", str(os.getpid()))
        given = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": interval if watched else ""}
        self.environment = {name: value for name, value in given.items() if value}
        """The variables with which a successor of this process notifies the same service manager."""
        self._clock = clock
        self._ping_interval = int(interval) / 2e6 if watched else None
        self._next_ping = clock()
        self._unsent: deque[bytes] = deque(maxlen=MAX_UNSENT)
        self._failed = False
        self._replaced = False
        self._address = "\0" + address[1:] if address.startswith("@") else address  # of the abstract namespace
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) if address else None

    def ready(self, status: str = "Running") -> None:
        """The process serves, or has ended a reload."""
        self._send(f"READY=1\n{_status(status)}")

    def status(self, text: str) -> None:
        """The first line of ``text`` is what ``systemctl status`` shows. Nothing else changes."""
        self._send(_status(text))

    def reloading(self) -> None:
        """The process begins to reload its configuration. ``ready`` follows."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self, seconds: float) -> None:
        """The process shuts down, which takes this many seconds at most."""
        self._send(f"STOPPING=1\nSTATUS=Draining connections\nEXTEND_TIMEOUT_USEC={seconds * 1e6:.0f}")

    def replaced(self, pid: int) -> None:
        """The process ``pid`` is the service from now on; nothing more is sent for this one.

        A service manager accepts this only from the main process, so the successor cannot send it.
        """
        self._send(f"MAINPID={pid}")
        self._replaced = True

    def ping(self) -> None:
        """Send what could not be sent before, and what the watchdog waits for, if it is due. Call it often."""
        self._flush()
        if self._ping_interval is None or self._unsent:
            return
        if (now := self._clock()) >= self._next_ping:
            self._next_ping = now + self._ping_interval
            self._send("WATCHDOG=1")

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, state: str) -> None:
        if self._socket is not None and not self._replaced:
            self._unsent.append(state.encode())
            self._flush()

    def _flush(self) -> None:
        while self._socket is not None and self._unsent:
            try:
                self._socket.sendto(self._unsent[0], self._address)
            except OSError as error:
                if not self._failed:
                    log.warning("service_manager_unreachable", error=str(error))
                self._failed = True
                return
            self._unsent.popleft()
            self._failed = False


def _status(text: str) -> str:
    return f"STATUS={text.splitlines()[0][:MAX_STATUS_LENGTH]}"
