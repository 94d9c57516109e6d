"""A running sidecar whose memory is measured."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from proxy.local.sidecars import SidecarProcess
from tests.integration.metrics import sample

KIB, MIB = 1024, 1024 * 1024


class Weighed:
    """A sidecar process, its metrics and its resident memory."""

    def __init__(self, process: SidecarProcess, address: tuple[str, int]) -> None:
        self._process = process
        self.address = address

    async def metric(self, name: str, **labels: str) -> float:
        return sample(await asyncio.to_thread(self._process.metrics), f"brokerside_{name}", **labels)

    async def until(self, name: str, least: float, **labels: str) -> None:
        """Wait until a metric has reached ``least``."""
        async with asyncio.timeout(60):
            while await self.metric(name, **labels) < least:  # noqa: ASYNC110  # only asking shows it
                await asyncio.sleep(0.05)

    def start_measuring(self) -> int:
        """Return the resident bytes of now, and forget those of before in ``peak``."""
        (self._proc / "clear_refs").write_text("5")
        return self._kib("VmRSS") * KIB

    def peak(self) -> int:
        """Most resident bytes since ``start_measuring``."""
        return self._kib("VmHWM") * KIB

    @property
    def _proc(self) -> Path:
        return Path(f"/proc/{self._process.process.pid}")

    def _kib(self, name: str) -> int:
        found = re.search(rf"^{name}:\s+(\d+) kB$", (self._proc / "status").read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1])
