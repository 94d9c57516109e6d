"""A worker, in this process, as its main process sees it."""

import asyncio
import socket
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from proxy.config import Config
from proxy.config.serialization import pack
from proxy.errors import LocalError
from proxy.net import worker as worker_module
from proxy.net.data_plane import DataPlane
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
