"""Connections of consumers, from their registration on a listener to their end, with a coordinator that is scripted."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from proxy.coordinator.events import (
    ConnectionBuffered,
    ConnectionDrained,
    ConsumerConnectionEnded,
    ConsumerRegistered,
)
from proxy.core.causes import Cause
from proxy.net import consumers
from proxy.net.consumer_handover import HandedConnection
from proxy.net.consumer_socket import FRAMES, MAX_CONSUMER_FRAME, ConsumerSocket, PartialFrames
from proxy.net.worker_pool import WorkerPool
from tests.frames import METADATA, request, response, sized
from tests.integration import recorder
from tests.integration.consumers import ASKED, Coordinating, Rights, coordinating, registration, reset
from tests.integration.peer import read_frame


@pytest.fixture(autouse=True)
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "recorded"
    monkeypatch.setenv(recorder.FILE, str(path))
    return path


@pytest.mark.promise(
    "architecture.md", "A connection that registers is the coordinator's until it ends, and counts as active, once."
)
async def test_a_registered_connection_is_the_coordinator_s_and_every_count_is_exact(
    tmp_path: Path, recorded: Path
) -> None:
    broker = Rights()
    async with coordinating(tmp_path, broker) as running:
        await is_the_coordinators(running, broker)
    requests = sorted((one.what, one.api_key, one.answered) for one in recorder.read(recorded))
    assert requests == [
        ("closed", -1, False),
        ("exchange", METADATA, True),
        ("exchange", 30_002, False),
        ("opened", -1, False),
    ]


async def is_the_coordinators(running: Coordinating, broker: Rights) -> None:
    reader, writer = await running.dial()
    writer.write(request(METADATA, 1, 1) + registration() + sized(b"pipelined") + b"\0\0\0\7in")
    assert await asyncio.wait_for(read_frame(reader), 60) == response(1)
    answered = await asyncio.wait_for(read_frame(reader), 60)
    assert answered.hex() == "0000000e0000000300000000000100000007"
    await running.until(lambda: running.frames == [b"pipelined"])
    writer.write(b" parts")
    await running.until(lambda: running.frames == [b"pipelined", b"in parts"[:7]])
    (registered,) = running.of(ConsumerRegistered)
    assert registered == ConsumerRegistered(
        registered.connection, 3, 1, ASKED, "c", "User:ANONYMOUS", "127.0.0.1", "CLIENT", frozenset()
    )
    running.consumers.send(registered.connection, sized(b"a ping"))
    assert await asyncio.wait_for(read_frame(reader), 60) == sized(b"a ping")
    await running.until(lambda: ["g", "t"] in broker.ended)  # nobody needs it any more
    await running.counted(1, {})
    assert running.limited == 1
    writer.close()
    await running.until(lambda: running.ends == [("client_closed", True)])
    await running.counted(0, {"client_closed": 1})
    assert running.limited == 0


@pytest.mark.parametrize("workers", [1, 2], ids=["data_plane", "workers"])
async def test_consumers_are_refused_end_and_are_closed_in_every_way(
    tmp_path: Path, workers: int, recorded: Path
) -> None:
    ways = (
        *(is_refused_by_the_coordinator, is_closed_after_what_was_sent),
        *(is_closed_by_an_operator, is_closed_while_it_registers, come_in_a_crowd),
    )
    broker = Rights("forbidden", "secret")
    async with coordinating(tmp_path, broker, workers) as running:
        await is_the_coordinators(running, broker)
        for way in ways:
            await running.begin_anew()
            await way(running)
        await running.begin_anew()
        gone, _, _ = await running.register(listener="EXTRA")
        stays, _, _ = await running.register(ASKED._replace(consumer_id="c2"))
        running.remove_listener("EXTRA")
        assert await asyncio.wait_for(gone.read(), 60) == b""
        assert running.ends == [("drain_completed", False)]
        await running.counted(1, {"drain_completed": 1})
        running.consumers.send(running.of(ConsumerRegistered)[1].connection, sized(b"still here"))
        assert await asyncio.wait_for(read_frame(stays), 60) == sized(b"still here")
        ordinary, _ = await running.dial()
        await running.counted(2, {"drain_completed": 1})
        running.sidecar.close()
        await running.handler.stop(asyncio.Event())
        for reader in (stays, ordinary):
            assert await asyncio.wait_for(reader.read(), 60) == b"", "a stop closes what is left"
    assert (await running.counts())[1] == {"coordinator_moved": 1, "drain_completed": 2}
    changes = Counter(one.what for one in recorder.read(recorded))
    assert changes["closed"] == changes["opened"] > 100


async def is_refused_by_the_coordinator(running: Coordinating) -> None:
    """It may register again."""
    for number, code in enumerate((14, 24, 92), start=1):
        answers = iter([code, code, 0])
        running.decide = lambda event, answers=answers: next(answers)
        running.events.clear()
        again = registration(ASKED._replace(consumer_id="c2"), 0, 4)
        denied = registration(ASKED._replace(group_id="forbidden"), 2, 5)
        last = registration(ASKED._replace(consumer_id="c3"), 1, 6)
        reader, writer, first = await running.register(behind=again + denied + last + sized(b"an answer"))
        frames = [await asyncio.wait_for(read_frame(reader), 60) for _ in range(3)]
        assert first == code
        assert frames[0] == response(4, code.to_bytes(2, "big"))
        assert frames[1] == response(5, bytes.fromhex("001e" + "ffffffff" * 2))
        assert frames[2] == response(6, bytes.fromhex("0000" + "00000001" + "00000007"))
        await running.until(lambda: running.frames == [b"an answer"])
        registered = running.of(ConsumerRegistered)
        assert [event.request.consumer_id for event in registered] == ["c1", "c2", "c3"]
        assert [(event.api_version, event.correlation_id) for event in registered] == [(1, 3), (0, 4), (1, 6)]
        assert len({event.connection for event in registered}) == 1
        writer.close()
        await running.counted(0, {"client_closed": number})


async def is_closed_after_what_was_sent(running: Coordinating) -> None:
    running.decide = lambda event: None
    reader, writer = await running.dial()
    writer.write(registration())
    await running.until(lambda: running.of(ConsumerRegistered))
    (registered,) = running.of(ConsumerRegistered)
    running.consumers.send(registered.connection, sized(b"x" * 1_000_000))
    running.consumers.close(registered.connection, "consumer_failed")
    await running.counted(0, {"consumer_failed": 1})
    assert await asyncio.wait_for(reader.read(), 60) == sized(b"x" * 1_000_000)
    assert running.ends == []


async def loses_descriptor(running: Coordinating) -> None:
    """There is no descriptor left for it."""

    def lose(handed: HandedConnection, client: socket.socket, broker: socket.socket | None) -> None:
        client.close()
        running.consumers.take(handed, None, broker)

    running.inner.on_consumer(lose)
    reader, writer = await running.dial()
    writer.write(registration())
    assert await asyncio.wait_for(reader.read(), 60) == b""
    await running.counted(0, {"worker_lost": 1})
    assert not running.events
    running.inner.on_consumer(running.handler._take_consumer)


async def is_closed_by_an_operator(running: Coordinating) -> None:
    reader, _, _ = await running.register()
    ordinary = await running.dial()
    await running.counted(2, {})
    (found,) = [one for one in (await running.handler.list_connections()).connections if one.group_id]
    assert (found.group_id, found.group_member_id, found.client_id) == ("g", "c1", "c")
    is_pool = isinstance(running.inner, WorkerPool)
    assert (found.worker, found.state, found.request_count) == (0 if is_pool else 1, "open", 1)
    assert (found.received_bytes, found.sent_bytes) == (len(registration()), 18)
    number = running.of(ConsumerRegistered)[0].connection
    assert (await running.handler.find_connection(number)).id == found.id
    assert running.sidecar.close_connection(number)
    assert await asyncio.wait_for(reader.read(), 60) == b""
    assert running.ends == [("closed_by_operator", False)]
    assert not running.sidecar.close_connection(number)
    assert await running.handler.find_connection(number) is None
    ordinary[1].close()
    await running.counted(0, {"closed_by_operator": 1, "client_closed": 1})


async def is_closed_while_it_registers(running: Coordinating) -> None:
    """As if the order came to the worker after it has handed the connection over."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running.inner, "close_connection", lambda number, cause: True)
        reader, writer = await running.dial()
        await running.until(lambda: running.limited == 1)
        (number,) = running.sidecar.admission.open_numbers()
        assert running.handler.close_connection(number, "principal_quota_exceeded")
        writer.write(registration())
        accepted = sized(bytes.fromhex("00000003000000000001" + "00000007"))
        assert await asyncio.wait_for(reader.read(), 60) in (b"", accepted)
        await running.counted(0, {"principal_quota_exceeded": 1})


async def come_in_a_crowd(running: Coordinating) -> None:
    """Some of them stay until the others are counted."""
    running.decide = lambda event: None if event.request.consumer_id == "unanswered" else 0
    ways = ["closes", "resets", "unanswered", "forbidden", "malformed", "stays", "half"]

    async def behave(number: int) -> None:
        way = ways[number % len(ways)]
        reader, writer = await running.dial()
        asked = ASKED._replace(consumer_id=f"c{number}")
        if way == "forbidden":
            asked = asked._replace(group_id="forbidden")
        elif way == "unanswered":
            asked = asked._replace(consumer_id="unanswered")
        frame = registration(asked)
        writer.write(frame[: len(frame) // 2] if way == "half" else frame)
        if way not in ("unanswered", "half"):
            await asyncio.wait_for(read_frame(reader), 60)
        if way == "resets":
            reset(writer)
        elif way == "malformed":
            writer.write(b"\xff\xff\xff\xff")
            await asyncio.wait_for(reader.read(), 60)
        elif way != "stays":
            writer.close()

    crowd = [asyncio.create_task(behave(number)) for number in range(140)]
    while not all(task.done() for task in crowd):
        await running.counts()
        await asyncio.sleep(0.01)
    for task in crowd:
        task.result()
    await running.counted(20, {"client_closed": 80, "client_reset": 20, "consumer_malformed": 20})
    assert running.limited == 20
    assert len(running.consumers) == 20
    for _, writer in running.clients:
        writer.close()
    await running.counted(0, {"client_closed": 100, "client_reset": 20, "consumer_malformed": 20})


async def test_a_consumer_outlives_the_worker_that_has_passed_it_on(tmp_path: Path, recorded: Path) -> None:
    async with coordinating(tmp_path, Rights(), 2) as running:
        reader, writer, _ = await running.register()
        ordinary, _ = await running.dial()
        await running.counted(2, {})
        for worker in list(running.inner._workers.values()):
            worker.kill()
        assert await asyncio.wait_for(ordinary.read(), 60) == b""
        await running.counted(1, {"worker_lost": 1})
        running.consumers.send(running.of(ConsumerRegistered)[0].connection, sized(b"still here"))
        assert await asyncio.wait_for(read_frame(reader), 60) == sized(b"still here")
        await running.until(lambda: len([one for one in running.inner._workers.values() if one.is_ready]) == 2)
        writer.close()
        await running.counted(0, {"worker_lost": 1, "client_closed": 1})
        await running.begin_anew()
        await loses_descriptor(running)
    closed = [one.connection for one in recorder.read(recorded) if one.what == "closed"]
    assert len(closed) == 1, "another worker has announced it"


# ---- registration ---------------------------------------------------------------------------------------------------


async def test_who_is_refused_and_says_nothing_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S1-53"""
    monkeypatch.setattr(consumers, "REGISTRATION_IDLE", 0.3)
    async with coordinating(tmp_path, Rights()) as running:
        answers = iter([26, 0, 26])
        running.decide = lambda event: next(answers)
        silent, _, code = await running.register()
        accepted, writer, _ = await running.register()
        assert code == 26
        assert await asyncio.wait_for(silent.read(), 60) == b""
        assert running.ends == [("registration_idle", False)]
        running.consumers.send(running.of(ConsumerRegistered)[1].connection, sized(b"still here"))
        assert await asyncio.wait_for(read_frame(accepted), 60) == sized(b"still here")
        writer.close()
        await running.counted(0, {"registration_idle": 1, "client_closed": 1})


async def test_who_sends_anything_else_is_closed(tmp_path: Path) -> None:
    async with coordinating(tmp_path, Rights()) as running:
        for frame, cause in (
            (request(METADATA, 1, 4), "consumer_malformed"),
            (request(30_001, 1, 4, b"\0\1g"), "consumer_malformed"),
            (request(30_002, 3, 4), "consumer_malformed"),
            (sized(b"\x75\x32\0\1"), "client_invalid_request"),
            (sized(registration()[4:-1]), "client_invalid_request"),
            (b"\0\0\0\3abc", "consumer_malformed"),
            (b"\x00\x40\x00\x01", "consumer_malformed"),
            (b"\xff\xff\xff\xff", "consumer_malformed"),
        ):
            await running.begin_anew()
            running.decide = lambda event: 26
            reader, writer, _ = await running.register()
            writer.write(frame)
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 60) == b"", frame
            assert running.ends == [(cause, False)], frame
            await running.counted(0, {cause: 1})
        await running.begin_anew()
        running.decide = lambda event: 26
        reader, writer, _ = await running.register()
        writer.write(sized(registration()[4:] + b"\0"))
        assert (await asyncio.wait_for(read_frame(reader), 60))[8:10] == b"\0\x2a", "bytes behind it are error 42"
        writer.close()
        await running.counted(0, {"client_closed": 1})


async def what_comes_before_the_answer_waits_for_it(running: Coordinating) -> None:
    running.decide = lambda event: None
    _, writer = await running.dial()
    writer.write(registration() + b"".join(sized(b"%d" % n) for n in range(1000, 3000)))
    await running.until(lambda: running.of(ConsumerRegistered))
    await asyncio.sleep(0.05)
    assert not running.frames
    running.answer(running.of(ConsumerRegistered)[0], 0)
    await running.until(lambda: len(running.frames) == 2000)
    assert running.frames == [b"%d" % n for n in range(1000, 3000)]
    writer.close()
    await running.counted(0, {"client_closed": 1})


async def test_what_is_sent_arrives_or_the_connection_ends(tmp_path: Path) -> None:
    ways = (
        what_comes_before_the_answer_waits_for_it,
        a_reset_that_a_send_finds_is_no_clean_end,
        a_member_that_is_closed_gets_no_request_later,
        what_waits_for_a_member_is_not_sent_once_the_right_to_send_has_ended,
        who_does_not_read_is_closed_before_too_much_waits,
        a_client_that_reads_late_gets_all_and_that_is_reported,
        the_longest_frame_comes_byte_by_byte_and_a_longer_one_ends_the_connection,
        of_who_does_not_read_refusals_no_further_request_is_taken,
    )
    async with coordinating(tmp_path, Rights()) as running:
        may_send = running.consumers.may_send
        for way in ways:
            await running.begin_anew()
            running.consumers.may_send = may_send
            await way(running)


# ---- ends -----------------------------------------------------------------------------------------------------------


async def a_reset_that_a_send_finds_is_no_clean_end(running: Coordinating) -> None:
    loop = asyncio.get_running_loop()
    client = socket.socket()
    client.setblocking(False)
    await loop.sock_connect(client, ("127.0.0.1", running.config.listeners[0].bind.port))
    await loop.sock_sendall(client, registration())
    assert len(await loop.sock_recv(client, 100)) == 18
    (registered,) = running.of(ConsumerRegistered)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    running.consumers.send(registered.connection, sized(b"a ping"))  # before the loop sees the reset
    await running.until(lambda: running.ends == [("client_reset", False)])
    await running.counted(0, {"client_reset": 1})


async def a_member_that_is_closed_gets_no_request_later(running: Coordinating) -> None:
    reader, _, _ = await running.register()
    (registered,) = running.of(ConsumerRegistered)
    sent = fill(running, registered.connection)
    running.consumers.close(registered.connection, "coordinator_moved")
    await running.counted(0, {"coordinator_moved": 1})
    assert len(await asyncio.wait_for(reader.read(), 60)) < sent
    assert not running.consumers._lingering


async def what_waits_for_a_member_is_not_sent_once_the_right_to_send_has_ended(running: Coordinating) -> None:
    reader, _, _ = await running.register()
    (registered,) = running.of(ConsumerRegistered)
    sent = fill(running, registered.connection)
    running.consumers.may_send = lambda number: number != registered.connection
    assert len(await asyncio.wait_for(reader.read(), 60)) < sent
    assert running.ends == [("consumer_failed", False)]
    await running.counted(0, {"consumer_failed": 1})


def fill(running: Coordinating, connection: int) -> int:
    """Send until the kernel does not take all of it; returns the bytes."""
    sent = 0
    while not running.of(ConnectionBuffered):
        running.consumers.send(connection, sized(bytes(100_000)))
        sent += 100_004
    return sent


# ---- bounds ---------------------------------------------------------------------------------------------------------


async def who_does_not_read_is_closed_before_too_much_waits(running: Coordinating) -> None:
    _, writer, _ = await running.register()
    other, closing, _ = await running.register(ASKED._replace(consumer_id="c2"))
    first, second = (event.connection for event in running.of(ConsumerRegistered))
    sent = 0
    while not running.ends:
        running.consumers.send(first, sized(b"p" * 65_000))
        sent += 65_004
        assert sent < 64_000_000
        await asyncio.sleep(0)
    assert running.ends == [("consumer_failed", False)]
    assert [type(event) for event in running.events if event.connection == first] == [
        ConsumerRegistered,
        ConnectionBuffered,
        ConsumerConnectionEnded,
    ]
    running.consumers.send(second, sized(b"on time"))
    assert await asyncio.wait_for(read_frame(other), 60) == sized(b"on time")
    writer.transport.abort()
    closing.close()
    await running.counted(0, {"consumer_failed": 1, "client_closed": 1})


async def a_client_that_reads_late_gets_all_and_that_is_reported(running: Coordinating) -> None:
    reader, writer, _ = await running.register()
    (registered,) = running.of(ConsumerRegistered)
    sent = 0
    while running.consumers.send(registered.connection, sized(b"%06d" % sent * 10_000)):
        assert not running.of(ConnectionBuffered)
        sent += 1
    sent += 1
    assert not running.consumers.send(registered.connection, sized(b"the last"))
    for n in range(sent):
        assert await asyncio.wait_for(read_frame(reader), 60) == sized(b"%06d" % n * 10_000)
    assert await asyncio.wait_for(read_frame(reader), 60) == sized(b"the last")
    await running.until(lambda: running.of(ConnectionDrained))
    assert len(running.of(ConnectionBuffered)) == len(running.of(ConnectionDrained)) == 1
    writer.close()
    await running.counted(0, {"client_closed": 1})


async def the_longest_frame_comes_byte_by_byte_and_a_longer_one_ends_the_connection(running: Coordinating) -> None:
    longest = sized(b"\0" * MAX_CONSUMER_FRAME)
    _, writer, _ = await running.register()
    for at in range(200):
        writer.write(longest[at : at + 1])
        await asyncio.sleep(0)
    writer.write(longest[200:])
    await running.until(lambda: [len(frame) for frame in running.frames] == [MAX_CONSUMER_FRAME])
    writer.write((MAX_CONSUMER_FRAME + 1).to_bytes(4, "big"))
    await running.until(lambda: running.ends == [("consumer_malformed", False)])
    await running.counted(0, {"consumer_malformed": 1})


async def test_of_too_many_parts_of_frames_the_longest_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "PartialFrames", lambda: PartialFrames(1_000_000))
    async with coordinating(tmp_path, Rights()) as running:
        clients = [await running.register(ASKED._replace(consumer_id=f"c{n}")) for n in range(4)]
        sizes = [300_000, 400_000, 200_000, 150_000]
        partial = running.consumers._partial_frames
        for (_, writer, _), size in zip(clients, sizes, strict=True):
            before = partial.total
            writer.write(sized(bytes(3_000_000))[:size])
            if before + size <= 1_000_000:
                await running.until(lambda most=before + size: partial.total == most)
        await running.until(lambda: running.ends == [("consumer_malformed", False)])
        assert running.of(ConsumerConnectionEnded)[0].connection == running.of(ConsumerRegistered)[1].connection
        await running.until(lambda: partial.total == 650_000)
        for _, writer, _ in clients:
            writer.close()
        await running.counted(0, {"consumer_malformed": 1, "client_closed": 3})
        assert partial.total == 0
        await running.begin_anew()
        reader, writer = await running.dial()
        running.consumers._partial_frames = PartialFrames(1000)
        writer.write(registration() + sized(bytes(2000)))  # what comes behind a registration counts, too
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 60) == b""
        await running.counted(0, {"consumer_malformed": 1})
        assert running.events == []
        assert running.limited == 0


async def of_who_does_not_read_refusals_no_further_request_is_taken(running: Coordinating) -> None:
    requests = 12
    refusal = sized(b"\0\0\0\3\0\x1a" + bytes(1_000_000))  # longer than real ones, to fill buffers soon

    def refuse(event: ConsumerRegistered) -> None:
        running.consumers.send(event.connection, refusal)

    running.decide = refuse
    reader, writer = await running.dial()
    writer.write(registration() * requests)
    await running.until(lambda: running.of(ConnectionBuffered))
    for _ in range(requests):
        assert await asyncio.wait_for(read_frame(reader), 60) == refusal
    assert running.ends == []
    assert len(running.of(ConsumerRegistered)) == requests
    writer.close()
    await running.counted(0, {"client_closed": 1})


# ---- a flood --------------------------------------------------------------------------------------------------------

FLOOD = 1000


class Owner:
    """Counts frames. ``one_by_one``: pauses the socket with each and lets it go on at once, as a refusal does."""

    def __init__(self, one_by_one: bool) -> None:
        self.frames = 0
        self.sock: ConsumerSocket | None = None
        self._one_by_one = one_by_one

    def on_frame(self, frame: bytes) -> None:
        self.frames += 1
        if self._one_by_one and self.sock is not None:
            self.sock.pause()
            self.sock.resume()

    def may_send(self) -> bool:
        return True

    def on_end(self, cause: Cause, *, by_peer: bool) -> None:
        raise AssertionError(cause)

    def on_buffered(self) -> None:
        raise AssertionError

    def on_drained(self) -> None:
        raise AssertionError


@pytest.mark.promise(
    "architecture.md", "A consumer's flood of frames is reported in parts, between which others are served."
)
async def test_a_flood_is_reported_in_parts_and_whole() -> None:
    await _flood(one_by_one=True, most=1)
    await _flood(one_by_one=False, most=FRAMES)


async def _flood(*, one_by_one: bool, most: int) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    owner = Owner(one_by_one)
    owner.sock = ConsumerSocket(ours, owner, PartialFrames(), {"client": 0})
    with contextlib.closing(theirs):
        theirs.sendall(sized(bytes(20)) * FLOOD)
        owner.sock.resume()
        seen = [0]
        while owner.frames < FLOOD:
            await asyncio.sleep(0)
            seen.append(owner.frames)
        assert max(after - before for before, after in pairwise(seen)) <= most
        theirs.sendall(sized(bytes(20)))
        while owner.frames == FLOOD:  # noqa: ASYNC110  # a turn of the loop is what is measured
            await asyncio.sleep(0)
        assert owner.frames == FLOOD + 1
        owner.sock.abort()
