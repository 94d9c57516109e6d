"""How a process starts its successor. What that is, a script says."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from proxy.successor import IGNORED_AT_START, SuccessorStarter

ENDED = "the successor has ended; its log says why"


class Started:
    """What becomes of successors whose program has this text."""

    def __init__(self, folder: Path, text: str, monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
        program = folder / "program"
        program.write_text(text)
        program.chmod(0o700)
        monkeypatch.setattr(sys, "argv", [str(program), "run", *options])
        self._problems: asyncio.Queue[str] = asyncio.Queue()
        self.starter = SuccessorStarter({"SHOWN": "yes"}, self._problems.put_nowait)

    async def problem(self) -> str:
        """Start one, and wait for its end."""
        self.starter.start()
        return await asyncio.wait_for(self._problems.get(), 60)


@pytest.mark.promise("restart.md", "A successor is started by the sidecar's own command, with --takeover.")
async def test_a_successor_takes_over_and_survives_signals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = tmp_path / "shown"
    # No other program: a shell blocks all signals while it starts one.
    text = f"""#!/bin/sh
        exec > {shown}
        echo "$@ $SHOWN $TAKEOVER_REQUIRED" $$
        while read -r line; do echo "$line"; done < /proc/$$/status
    """
    for options in ((), ("--takeover",)):
        assert await Started(tmp_path, text, monkeypatch, *options).problem() == ENDED
        first, _, status = shown.read_text().partition("\n")
        assert first.rpartition(" ")[0] == f"run --takeover yes {os.getpid()}"
        masks = {name: int(mask, 16) for name, mask in re.findall(r"(SigBlk|SigIgn):\s(\w+)", status)}
        for number in IGNORED_AT_START:
            assert masks["SigIgn"] >> (number - 1) & 1
            assert not masks["SigBlk"] >> (number - 1) & 1


async def test_after_any_failure_the_next_one_can_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    started = Started(tmp_path, "#!/no/such/interpreter\n", monkeypatch)
    assert await started.problem() == "the successor could not be started: status 1; the log says why"
    (tmp_path / "program").write_text("#!/bin/sh\n")
    with monkeypatch.context() as broken, capture_logs() as logs:
        broken.setattr(threading.Thread, "start", no_thread)
        assert await started.problem() == "the successor could not be started: RuntimeError"
    assert [line["event"] for line in logs] == ["successor_not_started"]
    assert await started.problem() == ENDED
