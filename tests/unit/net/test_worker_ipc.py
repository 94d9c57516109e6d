import asyncio
import errno
import gc
import os
import socket
from collections.abc import AsyncIterator

import pytest

from proxy.core.counters import ListenerCounters
from proxy.features.catalog import AUDIT_EVENT_SCHEMA, SUPPORTED, LevelRange
from proxy.features.records import FeatureUpdate
from proxy.features.updates import UpdateRequest, UpdateResult
from proxy.features.view import FeaturesView
from proxy.net.worker_ipc import (
    MAX_PACKET_SIZE,
    ConnectionsClosed,
    Drain,
    FeatureUpdateAnswered,
    FeatureUpdateAsked,
    IpcChannel,
    RequestSnapshot,
    SnapshotReply,
    StartWorker,
    TakeConnection,
    ToMain,
    ToWorker,
    UpdateFeaturesView,
)
from proxy.telemetry.snapshot import Snapshot


class Pair:
    """Both ends in one process: a main end that sends, and a worker's end that notes what comes."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.came: list[tuple[object, int | None]] = []
        self.ended = 0
        self.rooms = 0
        self.reported: list[object] = []
        self.main: IpcChannel[ToMain] = IpcChannel(
            ours, ToMain, lambda m, _: self.reported.append(m), on_all_sent=self._room
        )
        self.worker: IpcChannel[ToWorker] | None = None

    def listen(self) -> None:
        self.worker = IpcChannel(self.theirs, ToWorker, lambda m, fd: self.came.append((m, fd)), on_peer_gone=self._end)

    def _end(self) -> None:
        self.ended += 1

    def _room(self) -> None:
        self.rooms += 1

    async def until(self, condition) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.001)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    pair = Pair()
    yield pair
    for end in (pair.main, pair.worker):
        if end is not None and end._socket.fileno() != -1:
            end.close()
    for _, descriptor in pair.came:
        if descriptor is not None:
            os.close(descriptor)
    pair.theirs.close()


def carry(index: int) -> TakeConnection:
    return TakeConnection("CLIENT", "127.0.0.1", 50_000, index)


@pytest.mark.promise("architecture.md", "Messages between the main process and its workers arrive whole and in order.")
async def test_messages_arrive_whole_and_in_order(pair):
    pair.listen()
    view = FeaturesView(SUPPORTED, {AUDIT_EVENT_SCHEMA: LevelRange(1, 2)}, 7, forward=False, is_controller=True)
    answered = FeatureUpdateAnswered(3, UpdateResult(96, "not now"))
    sent = [StartWorker(1, b"config"), RequestSnapshot(7), UpdateFeaturesView(view), answered, Drain()]
    for message in sent[:2]:
        pair.main.send(message)
    with pytest.raises(OverflowError):
        pair.main.send(RequestSnapshot(2**70))  # what cannot be written is not kept
    for message in sent[2:]:
        pair.main.send(message)
    await pair.until(lambda: len(pair.came) == 5)
    assert pair.came == [(message, None) for message in sent]
    counters = ListenerCounters(requests={0: 3}, invalid_frames={("client", "invalid_size"): 1})
    asked = FeatureUpdateAsked(3, UpdateRequest(1, 9, (FeatureUpdate("n" * 30_000, -1, 3),) * 2, principal="User:a"))
    reported = [ConnectionsClosed([5, 6]), SnapshotReply(7, Snapshot({"CLIENT": counters})), asked]
    for message in reported:
        pair.worker.send(message)
    await pair.until(lambda: len(pair.reported) == 3)
    assert pair.reported == reported
    pair.main.close()
    await pair.until(lambda: pair.ended)
    await asyncio.sleep(0.01)
    assert pair.ended == 1


async def test_a_message_may_be_of_any_size(pair):
    pair.theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    pair.main._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the kernel takes the least that it allows
    pair.listen()
    gc.collect()
    open_before = len(os.listdir("/proc/self/fd"))
    for size in (MAX_PACKET_SIZE - 100, MAX_PACKET_SIZE, 5_000_000):
        pair.main.send(StartWorker(1, b"x" * size))
        pair.main.send(RequestSnapshot(1))
        await pair.until(lambda: len(pair.came) == 2)
        assert pair.came == [(StartWorker(1, b"x" * size), None), (RequestSnapshot(1), None)], size
        assert len(os.listdir("/proc/self/fd")) <= open_before, size  # less, where earlier clients close theirs
        pair.came.clear()


async def test_what_there_is_no_room_for_waits_here_and_goes_on_in_order(pair):
    sent = 0
    while not pair.main.is_full:
        pair.main.send(RequestSnapshot(sent))
        sent += 1
    pair.main.send(RequestSnapshot(sent))
    await asyncio.sleep(0)
    assert pair.rooms == 0
    pair.listen()
    await pair.until(lambda: len(pair.came) == sent + 1)
    assert [message.request_id for message, _ in pair.came] == list(range(sent + 1))
    assert pair.rooms == 1
    assert not pair.main.is_full


async def test_what_could_not_be_sent_to_a_peer_that_is_gone_comes_back(pair):
    pair.theirs.close()
    kept, given = socket.socketpair()
    pair.main.send(carry(1), given)
    pair.main.send(Drain())
    assert pair.main.is_full
    assert pair.main.close() == [(carry(1), given), (Drain(), None)]
    assert given.fileno() != -1
    for sock in (kept, given):
        sock.close()


class Refusing(socket.socket):
    """Says ``problem`` the next time something is sent."""

    problem = 0

    def sendmsg(self, *args):
        if self.problem:
            problem, self.problem = self.problem, 0
            raise OSError(problem, os.strerror(problem))
        return super().sendmsg(*args)


async def test_what_the_kernel_refuses_for_a_moment_is_sent_later():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    refusing = Refusing(fileno=ours.detach())
    main, came = IpcChannel(refusing, ToMain, lambda *_: None), []
    worker = IpcChannel(theirs, ToWorker, lambda message, _: came.append(message))
    for problem in (errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS, errno.EPERM):
        came.clear()
        refusing.problem = problem
        main.send(RequestSnapshot(1))
        main.send(RequestSnapshot(2))
        assert main.is_full, problem
        async with asyncio.timeout(60):
            while len(came) < 2 or main.is_full:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.001)
        assert came == [RequestSnapshot(1), RequestSnapshot(2)], problem
    main.close()
    worker.close()
