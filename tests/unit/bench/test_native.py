"""The stub broker and the load generator, against each other."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.errors import LocalError
from proxy.local.ports import free_ports
from tests.bench import native
from tests.bench.frames import write_frames
from tests.frames import request
from tests.tools import fetched


@pytest.fixture(scope="module")
def programs() -> native.Native:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler here")
    return native.build()


@pytest.fixture(scope="module")
def stub(programs: native.Native, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    folder = tmp_path_factory.mktemp("frames")
    (port,) = free_ports(1)
    write_frames(folder, fetched=200_000, produced=100_000, record=100, stub_port=port)
    with subprocess.Popen([programs.stub, str(port), folder], stderr=subprocess.DEVNULL) as process:
        while not listens(port):
            assert process.poll() is None
            time.sleep(0.01)
        yield port, folder
        process.kill()


def listens(port: int) -> bool:
    """Unlike ``is_free``, this never takes the port from whoever is about to listen."""
    try:
        socket.create_connection(("127.0.0.1", port), 60).close()
    except ConnectionRefusedError:
        return False
    return True


def load(programs: native.Native, stub: tuple[int, Path], mode: str, frame: str, *options: str) -> dict[str, Any]:
    port, folder = stub
    command = [str(programs.load), mode, str(port), str(folder / f"{frame}.req"), "warm=0.02", "secs=0.5", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("frame", "options"),
    [("small", ["conns=4"]), ("small", ["conns=2", "depth=60"]), ("produce", ["conns=2", "depth=5"]), ("fetch", [])],
)
def test_every_request_is_answered(
    programs: native.Native, stub: tuple[int, Path], frame: str, options: list[str]
) -> None:
    said = load(programs, stub, "requests", frame, *options)
    while not said["per_s"]:  # all answers came late: one of the two stood still while it was measured
        said = load(programs, stub, "requests", frame, *options)
    sizes = [(stub[1] / name).stat().st_size for name in (f"{frame}.req", f"{int(frame == 'fetch')}-12.resp")]
    assert said["errors"] == 0
    assert said["requests"] > 0
    assert said["bytes"] == said["requests"] * sum(sizes)
    assert said["seconds"] >= 0.1
    assert 0 < said["p50_us"] <= said["p99_us"] <= said["p999_us"]


def test_a_paced_load_asks_as_often_as_configured(programs: native.Native, stub: tuple[int, Path]) -> None:
    begun = time.monotonic()
    said = load(programs, stub, "requests", "small", "conns=8", "rate=1000")
    assert said["errors"] == 0
    assert 1 <= said["requests"] <= 1000 * (time.monotonic() - begun)


def test_a_storm_gets_an_answer_on_each_connection(programs: native.Native, stub: tuple[int, Path]) -> None:
    said = load(programs, stub, "storm", "hello", "conns=4")
    assert said["errors"] == 0
    assert said["requests"] > 0


def test_idle_connections_stay_open_until_stdin_ends(programs: native.Native, stub: tuple[int, Path]) -> None:
    port, folder = stub
    command = [str(programs.load), "idle", str(port), str(folder / "hello.req"), "conns=10"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert json.loads(holder.stdout.readline()) == {"open": 10}
        assert holder.poll() is None
        holder.communicate()
    assert holder.returncode == 0


def test_the_answer_has_the_correlation_id_of_its_request(stub: tuple[int, Path]) -> None:
    with socket.create_connection(("127.0.0.1", stub[0]), 60) as sock:
        sock.sendall(request(18, 0, 7) + request(3, 1, 8))
        with sock.makefile("rb") as answers:
            for correlation_id in (7, 8):
                size, found = struct.unpack(">ii", answers.read(8))
                assert found == correlation_id
                answers.read(size - 4)


def test_an_api_without_an_answer_ends_the_connection(stub: tuple[int, Path]) -> None:
    with socket.create_connection(("127.0.0.1", stub[0]), 60) as sock:
        sock.sendall(request(10, 0, 1))
        assert sock.recv(1) == b""


def test_an_option_there_is_not_is_refused(programs: native.Native, stub: tuple[int, Path]) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        load(programs, stub, "requests", "small", "speed=3")
    assert "no option speed=3" in refused.value.stderr


def test_a_missing_compiler_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("BROKERSIDE_CACHE", str(tmp_path))
    with pytest.raises(LocalError, match="needs a C compiler"):
        native.build()


def test_a_peer_that_cannot_be_had_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    monkeypatch.setenv("BROKERSIDE_CACHE", str(tmp_path))
    with pytest.raises(fetched.MissingError, match="apt-get install haproxy"):
        fetched.debian("haproxy", ["haproxy"])
    with pytest.raises(fetched.MissingError, match="apt-get install mmdebstrap"):
        fetched.newer_debian("haproxy", ["haproxy"])
    with pytest.raises(fetched.MissingError, match="needs Go: go install"):
        fetched.go("kafka-proxy", "example.org/kafka-proxy")
