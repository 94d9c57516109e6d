"""Notices a later run of this sidecar that is no successor: two sidecars have one ``broker.id``.

Both would write one record of the registry in turns, and each would lose what it holds whenever the other one has
written. So the one that was started first does not register while the other one runs. It is the same where records are
signed: those of the first one are dropped there (``Membership``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from proxy.fleet.membership import MEMBER_DEAD_AFTER_MS, Member, started_ms
from proxy.fleet.sidecar_record import SidecarRecord

log = structlog.get_logger(__name__)


class LaterRun:
    """``own``: the record of this run. ``on_end``: called on the loop when no later run has written for some time."""

    def __init__(self, own: Callable[[], SidecarRecord], on_end: Callable[[], None]) -> None:
        self._own, self._on_end = own, on_end
        self._logged = ""
        self._found: SidecarRecord | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def runs(self) -> bool:
        """Whether one runs."""
        return self._timer is not None

    @property
    def description(self) -> str:
        """Which one runs, for people; empty if none does."""
        if not self.runs or self._found is None:
            return ""
        at = next((f" at {host}:{port}" for host, port in self._found.addresses.values()), "")
        return f"another sidecar{at}, started later, has the same broker.id; this one does not register"

    def read(self, member: Member | None) -> None:
        """Take what the registry has now under this sidecar's ``broker.id``."""
        own = self._own()
        if member is None or not member.alive or _order(member.record) <= _order(own):
            if self._timer is not None:
                self._end()
            return
        self.close()
        self._timer = asyncio.get_running_loop().call_later(MEMBER_DEAD_AFTER_MS / 1000, self._end)
        self._found = member.record
        if self._logged != member.record.boot_id:
            self._logged = member.record.boot_id
            log.error(
                "broker_id_taken", boot_id=own.boot_id, by=self._logged, endpoints=[*own.endpoints],
                by_endpoints=[*member.record.endpoints],
            )  # fmt: skip

    def close(self) -> None:
        """Call nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self.close()
        self._on_end()


def _order(record: SidecarRecord) -> tuple[int, str]:
    """Of two runs that write at the same time, both find the same one to be the later one."""
    return started_ms(record), record.boot_id
