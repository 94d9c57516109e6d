"""Both halves of a takeover against a peer that refuses, hangs, dies or says something else."""

import asyncio
import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy.config import Config, load
from proxy.errors import LocalError
from proxy.local.ports import HOST, free_ports
from proxy.net import takeover_client, takeover_server
from proxy.net.data_plane import DataPlane
from proxy.net.listener_manager import ListenerManager
from proxy.net.listening_sockets import close_all
from proxy.net.takeover_client import Takeover
from proxy.net.takeover_ipc import (
    PROTOCOL,
    LimitsPassed,
    ListeningSocketsPassed,
    PredecessorConnectionsEnded,
    RequestSockets,
    SuccessorAccepting,
    SuccessorReady,
    TakeoverCancelled,
    TakeoverRefused,
    ToPredecessor,
    ToSuccessor,
)
from proxy.net.takeover_server import TakeoverServer
from proxy.net.ticker import Ticker
from proxy.net.worker_ipc import IpcChannel
from tests.frames import API_VERSIONS, request, response
from tests.integration.peer import answer_in_order, read_frame, upstream
from tests.integration.sidecars import until_async

PATIENCE = 60.0


class Predecessor:
    """The part of a sidecar that a takeover changes, inside the test's own loop."""

    def __init__(self, config: Config, path: Path) -> None:
        self.config = config
        self.handler = DataPlane(config, Ticker())
        self.listeners = ListenerManager(config, self.handler, Ticker())
        self.taken_over = asyncio.Event()
        self.server = TakeoverServer(
            path, 1, self.listeners, lambda: self.listeners.listening_sockets, lambda pid: self.taken_over.set()
        )
        self.path = path

    async def start(self) -> None:
        await self.server.bind()
        self.listeners.start()
        await self.server.start()

    async def close(self) -> None:
        self.listeners.close()
        now = asyncio.Event()
        now.set()
        await self.handler.stop(now)

    async def serves(self, seconds: float = PATIENCE) -> bool:
        reader, writer = await asyncio.open_connection(HOST, self.config.listeners[0].bind.port)
        writer.write(request(API_VERSIONS, 0, 1))
        try:
            async with asyncio.timeout(seconds):
                return await read_frame(reader) == response(1)
        except TimeoutError:
            return False
        finally:
            writer.close()


class Scripted:
    """A successor that says what the test wants. ``descriptors``: those that it has got."""

    def __init__(self, path: Path) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(str(path))
        self.heard: list[ToSuccessor] = []
        self.descriptors: list[int] = []
        self.gone = False
        self.channel: IpcChannel[ToSuccessor] = IpcChannel(sock, ToSuccessor, self._hear, on_peer_gone=self._end)

    def _hear(self, message: ToSuccessor, descriptor: int | None) -> None:
        self.heard.append(message)
        if descriptor is not None:
            self.descriptors.append(descriptor)

    def _end(self) -> None:
        self.gone = True

    async def begin(self, *, ready: bool) -> None:
        self.channel.send(RequestSockets(PROTOCOL, 1, os.getpid()))
        await self.hears(ListeningSocketsPassed)
        if ready:
            self.channel.send(SuccessorReady())
            await self.hears(LimitsPassed)

    async def hears(self, kind: type[Any]) -> Any:
        await until_async(lambda: any(isinstance(one, kind) for one in self.heard))
        return next(one for one in self.heard if isinstance(one, kind))

    def close(self) -> None:
        self.channel.abandon()
        for descriptor in self.descriptors:
            os.close(descriptor)


@pytest.fixture
async def old(tmp_path):
    async with upstream(answer_in_order) as port:
        path = tmp_path / "sidecar.yaml"
        bind, admin = free_ports(2)
        path.write_text(
            f"broker.id: 1\nadmin: {{bind: '{HOST}:{admin}'}}\n"
            f"listeners: [{{name: CLIENT, bind: '{HOST}:{bind}', upstream: '{HOST}:{port}'}}]\n"
        )
        made = Predecessor(load(path, {}), tmp_path / "takeover.sock")
        await made.start()
        with capture_logs():
            yield made
            await made.server.close()
            made.server.finish()
            await made.close()


@pytest.mark.promise(
    "restart.md", "A successor that hangs once nobody accepts is given up, and the running sidecar accepts again."
)
async def test_a_successor_that_hangs_once_nobody_accepts_is_given_up(old, tmp_path, monkeypatch):
    monkeypatch.setattr(takeover_server, "ACCEPT_TIMEOUT", 6.0)
    successor = Scripted(old.path)
    await successor.begin(ready=False)
    assert len(successor.descriptors) == 1
    assert await old.serves()
    successor.channel.send(SuccessorReady())
    await successor.hears(LimitsPassed)
    assert not await old.serves(0.3), "nobody accepts meanwhile"
    await successor.hears(TakeoverCancelled)
    assert await old.serves()
    successor.channel.send(SuccessorAccepting())
    await successor.hears(TakeoverRefused)
    assert await old.serves()
    assert not old.taken_over.is_set()
    successor.close()
    path = tmp_path / "other.sock"
    impatient = ScriptedPredecessor(path)
    takeover = await impatient.begun(path)
    for message in (LimitsPassed(7), TakeoverCancelled()):
        impatient.channel.send(message)
    with pytest.raises(LocalError, match="it accepts again"):
        await asyncio.wait_for(takeover.complete(old.listeners, old.listeners.resume), PATIENCE)
    impatient.close()


@pytest.mark.promise(
    "restart.md", "A successor that fails before it accepts changes nothing: the running sidecar continues."
)
async def test_a_successor_that_dies_before_it_accepts_changes_nothing(old):
    for ready in (False, True, True):
        successor = Scripted(old.path)
        await successor.begin(ready=ready)
        successor.close()
        await until_async(lambda: not old.server.is_busy)
        assert await old.serves()


async def test_a_reload_that_moves_the_socket_in_vain_does_not_disturb_a_takeover(old, tmp_path):
    reader, writer = await asyncio.open_connection(HOST, old.config.listeners[0].bind.port)
    writer.write(request(API_VERSIONS, 0, 1))
    await read_frame(reader)
    successor = Scripted(old.path)
    await successor.begin(ready=True)
    moved = TakeoverServer(tmp_path / "moved.sock", 1, old.listeners, list, lambda pid: None)
    await moved.bind()
    await moved.close()
    writer.close()
    assert (await successor.hears(PredecessorConnectionsEnded)).numbers == [1]
    successor.close()


@pytest.mark.promise("restart.md", "One successor at a time takes over, by the same version of the protocol.")
async def test_another_version_and_a_second_successor_are_refused(old):
    other, first, second = (Scripted(old.path) for _ in range(3))
    other.channel.send(RequestSockets(PROTOCOL + 1, 1, os.getpid()))
    assert "takeover protocol" in (await other.hears(TakeoverRefused)).reason
    first.channel.send(RequestSockets(PROTOCOL, 1, os.getpid()))
    await first.hears(ListeningSocketsPassed)
    second.channel.send(RequestSockets(PROTOCOL, 1, os.getpid()))
    assert (await second.hears(TakeoverRefused)).reason == "another successor takes over already"
    for one in (other, first, second):
        one.close()
    assert await old.serves()


@pytest.mark.promise("restart.md", "Both sides of a takeover check that the other runs as the same user, or as root.")
async def test_only_the_same_user_and_root_may_connect(old, monkeypatch):
    monkeypatch.setattr(takeover_server, "is_trusted", lambda sock: False)
    stranger = Scripted(old.path)
    await until_async(lambda: stranger.gone)
    assert stranger.heard == []
    stranger.close()
    monkeypatch.setattr(takeover_client, "is_trusted", lambda sock: False)
    with pytest.raises(LocalError, match="runs as another user"):
        await Takeover.begin(str(old.path), 1)
    monkeypatch.undo()  # nor is there a successor in the container whose first process the sidecar is
    monkeypatch.setattr(takeover_server.os, "getpid", lambda: 1)
    with pytest.raises(LocalError, match=re.escape(takeover_server.IS_PID_1)):
        await Takeover.begin(str(old.path), 1)
    monkeypatch.setattr(takeover_server, "peer_pid", lambda sock: 0)  # one of another container
    takeover = await Takeover.begin(str(old.path), 1)
    takeover.finish()
    close_all(passed.sock for passed in takeover.sockets)


class ScriptedPredecessor:
    def __init__(self, path: Path) -> None:
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(str(path))
        self._listening.listen(1)
        self._listening.setblocking(False)
        self.channel: IpcChannel[ToPredecessor]

    async def begun(self, path: Path) -> Takeover:
        beginning = asyncio.create_task(Takeover.begin(str(path), 1))
        sock, _ = await asyncio.get_running_loop().sock_accept(self._listening)
        self.channel = IpcChannel(sock, ToPredecessor, lambda message, descriptor: None)
        self.channel.send(ListeningSocketsPassed(1, "0.1.0"))
        return await beginning

    def close(self) -> None:
        self._listening.close()
        self.channel.abandon()


@pytest.mark.promise("restart.md", "A successor exits if the running sidecar was stopped before it accepts.")
async def test_a_successor_ends_if_its_predecessor_was_stopped(old, tmp_path):
    """Also where it reads this only after the predecessor has exited, or begins after that."""
    for number, ready in enumerate((False, True)):
        path = tmp_path / f"other-{number}.sock"
        stopped = ScriptedPredecessor(path)
        takeover = await stopped.begun(path)
        if ready:
            stopped.channel.send(LimitsPassed(7))
        stopped.channel.send(TakeoverRefused("the sidecar drains"))
        stopped.close()
        await asyncio.sleep(0.05)
        with pytest.raises(LocalError, match="the sidecar drains"):
            takeover.raise_if_refused()
        accepting, ended = asyncio.Event(), asyncio.Event()
        takeover.on_ended = ended.set
        with pytest.raises(LocalError, match="the sidecar drains"):
            await takeover.complete(old.listeners, accepting.set)
        await asyncio.sleep(0.05)
        assert not accepting.is_set(), ready
        assert not ended.is_set(), ready
        old.listeners.resume()
    successor = Scripted(old.path)
    await successor.begin(ready=True)
    await old.server.close()
    successor.channel.send(SuccessorAccepting())
    assert (await successor.hears(TakeoverRefused)).reason == "the sidecar drains"
    assert not old.taken_over.is_set()
    successor.close()
    with pytest.raises(LocalError, match="which started this process, has ended"):
        await Takeover.begin(str(old.path), 1, required=True)


@pytest.mark.promise("restart.md", "A successor continues if the running sidecar dies after it has passed its sockets.")
async def test_a_successor_goes_on_if_its_predecessor_dies(old, tmp_path):
    path = tmp_path / "other.sock"
    dying = ScriptedPredecessor(path)
    takeover = await dying.begun(path)
    completing = asyncio.create_task(takeover.complete(old.listeners, old.listeners.resume))
    await asyncio.sleep(0.05)
    assert not await old.serves(0.3), "it waits for the state of the limits"
    dying.close()
    await asyncio.wait_for(completing, PATIENCE)
    assert await old.serves()
    takeover.finish()
