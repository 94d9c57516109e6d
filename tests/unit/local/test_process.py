import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.local.process import Process, spawn, stop

SLEEP = ["/bin/sleep", "60"]


def wait_for(file: Path, text: str) -> None:
    deadline = time.monotonic() + 60
    while text not in file.read_text():
        assert time.monotonic() < deadline, f"{text!r} did not come"
        time.sleep(0.01)


@pytest.mark.promise("local-cluster.md", "A local process outlives the command that started it, until it is stopped.")
def test_a_process_lives_in_its_own_session_until_it_is_stopped(tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.write_text("of an earlier run")
    process = spawn(["/bin/sh", "-c", "echo one; echo two >&2; exec sleep 60"], output)
    wait_for(output, "two")
    assert output.read_text() == "one\ntwo\n", "a new file"
    assert process.alive()
    assert os.getsid(process.pid) == process.pid
    assert stop([process], 60)
    assert not process.alive()
    with pytest.raises(FileNotFoundError):
        spawn([str(tmp_path / "nothing")], output)


@pytest.mark.promise("local-cluster.md", "A process that does not end in time is killed.")
def test_one_that_does_not_listen_is_killed_and_reported(tmp_path: Path) -> None:
    stubborn = spawn(["/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"], tmp_path / "out")
    wait_for(tmp_path / "out", "ready")
    assert not stop([stubborn], 1)
    assert not stubborn.alive()


def test_kill_does_not_ask(tmp_path: Path) -> None:
    process = spawn(["/bin/sh", "-c", "trap 'echo asked' TERM; sleep 60 & echo ready; wait"], tmp_path / "out")
    wait_for(tmp_path / "out", "ready")
    stop([process], 10, kill=True)
    assert not process.alive()
    assert "asked" not in (tmp_path / "out").read_text()
    os.killpg(process.pid, signal.SIGKILL)  # the sleep


def test_another_process_or_thread_with_the_same_pid_is_left_alone(tmp_path: Path) -> None:
    process = spawn(SLEEP, tmp_path / "out")
    stranger = replace(process, started=process.started - 1)
    assert not stranger.alive()
    assert stop([stranger], 10)
    assert process.alive()
    stop([process], 10)
    done = threading.Event()
    thread = threading.Thread(target=done.wait, daemon=True)
    thread.start()
    assert thread.native_id is not None
    assert not Process(thread.native_id, 0).alive()
    done.set()


def test_one_that_has_ended_already_is_stopped(tmp_path: Path) -> None:
    process = spawn(["/bin/true"], tmp_path / "out")
    deadline = time.monotonic() + 60
    while process.alive():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert stop([process], 60)
    assert not Process(process.pid, process.started).alive()
