"""What the service manager receives, on a real socket."""

import asyncio
import os
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from proxy.sd_notify import MAX_UNSENT, ServiceNotifier
from proxy.successor import IGNORED_AT_START, SuccessorStarter

CREDENTIALS = struct.Struct("iii")
"""``struct ucred``: process, user, group."""


class Manager:
    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.setblocking(False)

    def received(self) -> list[dict[str, str]]:
        """Every message so far that was not returned before."""
        return [message for _, message in self.received_from()]

    def received_from(self) -> list[tuple[int, dict[str, str]]]:
        """The same, each with the process that has sent it, as the kernel says."""
        found = []
        while True:
            try:
                message, ancillary, _, _ = self._socket.recvmsg(4096, socket.CMSG_SPACE(CREDENTIALS.size))
            except BlockingIOError:
                return found
            pid, _, _ = CREDENTIALS.unpack(ancillary[0][2])
            found.append((pid, dict(line.split("=", 1) for line in message.decode().splitlines())))

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(str(tmp_path / "notify"))
    yield made
    made.close()


def notifier_of(manager: Manager, **more: str) -> ServiceNotifier:
    return ServiceNotifier({"NOTIFY_SOCKET": manager.address, **more})


@pytest.mark.promise("install.md", "Under systemd the sidecar says when it is ready, reloads and stops.")
def test_it_says_ready_reloading_and_stopping(manager: Manager) -> None:
    notifier = notifier_of(manager)
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notifier.ready()
    notifier.reloading()
    notifier.ready("The last reload was rejected: log.level: 'loud'\nREADY=0")
    notifier.stopping(15)
    notifier.close()
    ready, reloading, again, stopping = manager.received()
    assert ready == {"READY": "1", "STATUS": "Running"}
    assert before <= int(reloading.pop("MONOTONIC_USEC")) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    assert reloading == {"RELOADING": "1"}
    assert again == {"READY": "1", "STATUS": "The last reload was rejected: log.level: 'loud'"}
    assert stopping == {"STOPPING": "1", "STATUS": "Draining connections", "EXTEND_TIMEOUT_USEC": "15000000"}

    abstract = Manager(f"@brokerside-test-{os.getpid()}")
    notifier = notifier_of(abstract)
    notifier.ready()
    notifier.close()
    assert [message["READY"] for message in abstract.received()] == ["1"]
    abstract.close()

    alone = ServiceNotifier({})  # without a manager nothing happens
    for say in (alone.ready, alone.reloading, lambda: alone.stopping(1), alone.ping, alone.close):
        say()


@pytest.mark.promise("install.md", "The sidecar gives systemd's watchdog a sign of life twice in its time.")
def test_its_own_watchdog_gets_a_sign_twice_in_its_time(manager: Manager) -> None:
    now = [100.0]
    environment = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}
    notifier = ServiceNotifier(environment, clock=lambda: now[0])
    for _ in range(620):
        notifier.ping()
        now[0] += 0.05
    notifier.close()
    assert manager.received() == [{"WATCHDOG": "1"}] * 3, "at 0, 15 and 30 s"
    watchdogs: list[dict[str, str]] = [{}, {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "soon"}]
    for watchdog in watchdogs:
        notifier = notifier_of(manager, **watchdog)
        notifier.ping()
        notifier.close()
        assert manager.received() == [], watchdog


@pytest.mark.promise("architecture.md", "A service manager that does not read blocks nothing, and is told later.")
def test_a_manager_that_does_not_read_blocks_nothing_and_gets_the_last_states_later(
    manager: Manager, tmp_path: Path
) -> None:
    notifier = notifier_of(manager)
    for number in range(1000):
        notifier.ready(str(number))
    taken = len(manager.received())
    assert 0 < taken < 1000
    notifier.ping()
    assert [message["STATUS"] for message in manager.received()] == [str(n) for n in range(1000 - MAX_UNSENT, 1000)]
    notifier.close()

    address = str(tmp_path / "later")
    notifier = ServiceNotifier({"NOTIFY_SOCKET": address})
    notifier.ready()
    late = Manager(address)
    notifier.ping()
    assert [message["READY"] for message in late.received()] == ["1"]
    notifier.close()
    late.close()


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
