"""A worker as its main process sees it, reloads that a process refuses, and an end that something holds up."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from proxy.config import Config
from proxy.config.serialization import pack
from proxy.errors import LocalError
from proxy.net import worker as worker_module
from proxy.net.data_plane import DataPlane
from proxy.net.ticker import Ticker
from proxy.net.tls_contexts import TlsContexts
from proxy.net.worker import Worker
from proxy.net.worker_ipc import (
    ConnectionsClosed,
    IpcChannel,
    SnapshotReply,
    StartWorker,
    TakeConnection,
    ToMain,
    UpdateConfig,
    WorkerReady,
)


@pytest.fixture(autouse=True)
def shared_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker must not end the process of the tests, nor configure its log."""
    monkeypatch.setattr(worker_module, "force_exit_after", lambda seconds: None)
    monkeypatch.setattr(worker_module, "configure_logging", lambda *_, **__: None)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.mark.promise(
    "restart.md", "A worker that cannot apply a reload serves no client with the old configuration; it ends."
)
async def test_it_serves_no_client_where_it_cannot_apply_a_configuration(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither those that it had, nor those that come before the main process knows, of known and new listeners."""
    broker = socket.create_server(("127.0.0.1", 0))
    broker.setblocking(False)
    listener = {"name": "CLIENT", "bind": "127.0.0.1:1", "upstream": f"127.0.0.1:{broker.getsockname()[1]}"}
    config = Config.model_validate({"broker.id": 1, "listeners": [listener], "drain.timeout.ms": 600_000})
    clients: list[socket.socket] = []
    ended: list[int] = []
    last: list[SnapshotReply] = []

    def fail(self: DataPlane, config: Config) -> None:
        raise LocalError("TLS: Too many open files")

    def take(name: str) -> None:
        client, accepted = socket.socketpair()
        client.setblocking(False)
        clients.append(client)
        main.send(TakeConnection(name, "127.0.0.1", 1, len(clients)), accepted)

    def on_message(message: ToMain, _: int | None) -> None:
        match message:
            case WorkerReady():
                take("CLIENT")
                main.send(UpdateConfig(pack(config)))
                take("CLIENT")
                take("NEW")
            case ConnectionsClosed():
                ended.extend(message.numbers)
            case SnapshotReply():
                last.append(message)

    monkeypatch.setattr(DataPlane, "update_config", fail)
    main: IpcChannel[ToMain] = IpcChannel(pair[0], ToMain, on_message)
    main.send(StartWorker(1, pack(config)))
    async with asyncio.timeout(60):  # less than drain.timeout.ms
        with capture_logs() as lines:
            assert await Worker(pair[1]).run() == 0
        for client in clients:
            assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
            client.close()
        while not last:  # noqa: ASYNC110  # messages of another task
            await asyncio.sleep(0)
    assert sorted(ended) == [1, 2, 3]
    assert [line["error"] for line in lines if line["event"] == "config_not_applied"] == ["TLS: Too many open files"]
    counters = last[0].snapshot.listener_counters
    assert sum(counters["CLIENT"].closed.values()) == 2
    assert counters["CLIENT"].closed["drain_completed"] >= 1
    assert counters["NEW"].closed == {"drain_completed": 1}
    broker.close()
    main.abandon()


LISTENER = {"name": "CLIENT", "bind": "127.0.0.1:1", "upstream": "127.0.0.1:2"}
CONFIG = Config.model_validate({"broker.id": 1, "listeners": [LISTENER]})


@pytest.mark.promise("restart.md", "A reload whose TLS contexts cannot be built applies nothing.")
async def test_nothing_is_applied_where_contexts_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    plane = DataPlane(CONFIG, Ticker())
    plane._dispatcher = SimpleNamespace()  # type: ignore[assignment]  # which nobody may ask for anything

    def fail(self: TlsContexts, *_: object) -> None:
        raise LocalError("TLS: Too many open files")

    monkeypatch.setattr(TlsContexts, "update_config", fail)
    wanted = CONFIG.model_copy(update={"observers": {"one:Two": {}}})
    with pytest.raises(LocalError, match="Too many open files"):
        plane.update_config(wanted)
    assert plane._config is CONFIG
    plane._connections.listeners.stop_probes()


HUNG = """
import threading
from proxy.net.forced_exit import force_exit_after
from proxy.telemetry import configure_logging

configure_logging("info")
force_exit_after({seconds})
threading.Thread(target=threading.Event().wait, args=({hangs},)).start()  # not a daemon: the interpreter joins it
"""


@pytest.mark.promise(
    "restart.md", "A process that something holds up at its end exits all the same, with a line in the log."
)
def test_what_is_held_up_ends_with_a_line_that_says_so() -> None:
    code = HUNG.format(seconds=0.1, hangs=3600)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1
    assert '"event": "exit_forced", "after_s": 0.1' in done.stderr
