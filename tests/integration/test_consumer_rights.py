"""What consumers may read, asked of the broker as them: when they register, again and again, and for new topics."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import uuid
from pathlib import Path
from time import monotonic

import pytest
from confluent_kafka.admin import AclOperation, ResourceType  # type: ignore[attr-defined]  # untyped

from proxy.coordinator.events import ConsumerRegistered, RightsChanged
from proxy.core.exchange import Connection
from proxy.core.principal_tracker import SASL_AUTHENTICATE, SASL_HANDSHAKE
from proxy.interceptors.consumer_groups import Registration
from proxy.net import consumer_rights, consumers
from proxy.net.consumer_handover import HandedConnection
from tests.brokers import Acl, SharedBroker
from tests.frames import METADATA, request, response
from tests.integration import recorder
from tests.integration.consumers import ASKED, Coordinating, Rights, coordinating, registration
from tests.integration.peer import Behaviour, Reader, Writer, read_frame
from tests.sasl import authenticate, handshake, plain

WITH_LOGIN = ", security.protocol: SASL_PLAINTEXT"

PATTERN = ASKED._replace(topic_count="*1*t.*")


@pytest.fixture(autouse=True)
def _recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(recorder.FILE, str(tmp_path / "recorded"))


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask ten times a second."""
    monkeypatch.setattr(consumers, "RIGHTS_INTERVAL", (0.05, 0.1))
    monkeypatch.setattr(consumer_rights, "ANSWER_LASTS", 0.05)


# ---- where nobody logs in -------------------------------------------------------------------------------------------


@pytest.mark.promise(
    "architecture.md", "Rights to topics of a pattern are asked once for all clients of a listener without logins."
)
async def test_of_a_pattern_only_what_may_be_read_is_told_and_all_clients_share_the_answers(tmp_path: Path) -> None:
    broker = Rights("tb")
    async with coordinating(tmp_path, broker) as running:
        await running.consumers.set_topics(["ta", "tb", "x", "__t"])
        for n in range(3):
            assert (await running.register(PATTERN._replace(consumer_id=f"c{n}")))[2] == 0
        assert [event.unreadable for event in running.of(ConsumerRegistered)] == [{"tb"}] * 3
        asked = [name for names in broker.asked for name in names]
        assert sorted(asked) == ["g"] * 4 + ["ta", "tb"], "once by each client itself, and once for all of them"


async def test_the_rights_to_a_new_topic_are_known_before_it_is_told(tmp_path: Path) -> None:
    async with coordinating(tmp_path, broker := Rights("tc", "td")) as running:
        await running.register(PATTERN)
        await running.register(ASKED._replace(consumer_id="named", topic_count='{"x":1}'))
        first = running.of(ConsumerRegistered)[0].connection
        await running.consumers.set_topics(["ta", "tc", "x"])
        assert running.of(RightsChanged) == [RightsChanged(first, True, frozenset({"tc"}))]
        await running.consumers.set_topics(["ta", "tc", "td", "x"])
        assert running.of(RightsChanged)[1:] == [RightsChanged(first, True, frozenset({"tc", "td"}))]
        broker.denied.clear()
        await running.consumers.set_topics(["ta", "x"])
        assert len(running.of(RightsChanged)) == 2, "what is gone is of no interest"


@pytest.mark.usefixtures("often")
async def test_a_broker_that_is_away_changes_nothing_but_no_pattern_is_accepted(tmp_path: Path) -> None:
    async with coordinating(tmp_path, broker := Rights()) as running:
        await running.consumers.set_topics(["ta"])
        assert (await running.register())[2] == 0
        running.consumers._listener_rights["CLIENT"] = consumer_rights.ListenerRights(Unreachable())
        assert (await running.register(PATTERN._replace(consumer_id="c2")))[2] == 14
        assert not running.ends
        assert not running.of(RightsChanged)
        assert len(broker.asked) > 1


class Unreachable:
    async def connect(self) -> None:
        raise OSError("nobody listens")


async def test_a_connection_that_the_broker_has_closed_meanwhile_is_opened_again(tmp_path: Path) -> None:
    closing: list[Writer] = []

    async def behave(reader: Reader, writer: Writer) -> None:
        closing.append(writer)
        await broker(reader, writer)

    broker = Rights()
    async with coordinating(tmp_path, behave) as running:
        await running.consumers.set_topics(["ta"])
        await running.register(PATTERN)
        for writer in closing:
            writer.close()
        await running.consumers.set_topics(["ta", "tb"])
        assert broker.asked[-1] == ["g", "tb"]
        assert not running.ends


# ---- where clients log in -------------------------------------------------------------------------------------------


async def log_in(running: Coordinating) -> tuple[Reader, Writer]:
    """A client, ``alice``."""
    reader, writer = await running.dial()
    token = authenticate(plain("alice", "alice-secret"), 1)
    for frame in (request(SASL_HANDSHAKE, 1, 1, handshake("PLAIN")), request(SASL_AUTHENTICATE, 1, 2, token)):
        writer.write(frame)
        assert (await asyncio.wait_for(read_frame(reader), 60))[8:10] == b"\0\0"
    return reader, writer


async def code(reader: Reader) -> int:
    return int.from_bytes((await asyncio.wait_for(read_frame(reader), 60))[8:10], "big")


@pytest.mark.kafka
@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.promise(
    "coordinator.md", "RegisterConsumer answers 30 to who may not read the group, and 29 where a topic may not be read."
)
async def test_rights_are_those_that_the_broker_says_the_client_has(
    tmp_path: Path, secured: SharedBroker, workers: int
) -> None:
    group, t, ta, tb = (f"{kind}-{uuid.uuid4().hex[:8]}" for kind in ("g", "rights-t", "rights-ta", "rights-tb"))
    read_group, read_t, read_ta = (
        Acl("User:alice", AclOperation.READ, kind, name)
        for kind, name in ((ResourceType.GROUP, group), (ResourceType.TOPIC, t), (ResourceType.TOPIC, ta))
    )
    named = ASKED._replace(group_id=group, topic_count=json.dumps({t: 1}))
    pattern = ASKED._replace(group_id=group, consumer_id="c2", topic_count="*1*rights-t.*")
    address = secured.listeners["SASL"].address
    async with coordinating(tmp_path, address, workers, listener=WITH_LOGIN) as running:
        await running.consumers.set_topics([t, ta, tb])
        reader, writer = await log_in(running)
        writer.write(registration(named))
        assert await code(reader) == 30
        await asyncio.to_thread(secured.allow, read_group)
        writer.write(registration(named))
        assert await code(reader) == 29
        await asyncio.to_thread(secured.allow, read_t, read_ta)
        writer.write(request(METADATA, 1, 9, b"\0\0\0\0") + registration(named))
        assert (await asyncio.wait_for(read_frame(reader), 60))[4:8] == b"\0\0\0\x09"
        assert await code(reader) == 0
        (registered,) = running.of(ConsumerRegistered)
        assert (registered.principal, registered.unreadable) == ("User:alice", frozenset())
        writer.close()
        await running.counted(0, {"client_closed": 1})

        reader, writer = await log_in(running)
        writer.write(registration(pattern))
        assert await code(reader) == 0
        registered = running.of(ConsumerRegistered)[-1]
        assert registered.unreadable == {tb}
        await asyncio.to_thread(secured.revoke, read_ta)  # questions are answered meanwhile
        await running.until(lambda: running.of(RightsChanged))
        assert running.of(RightsChanged)[0] == (registered.connection, True, {ta, tb})
        await asyncio.to_thread(secured.revoke, read_group, read_t)
        await running.until(lambda: not running.of(RightsChanged)[-1].may_read_group)
        running.consumers.close(registered.connection, "consumer_denied")
        assert await asyncio.wait_for(reader.read(), 60) == b""
        await running.counted(0, {"client_closed": 1, "consumer_denied": 1})


@pytest.mark.kafka
@pytest.mark.promise("architecture.md", "A consumer's login ends before the broker ends it.")
async def test_a_login_ends_before_the_broker_ends_it(
    tmp_path: Path, secured: SharedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "LOGIN_SHARE", (0.03, 0.04))  # of 60 s
    group, topic = (f"{kind}-{uuid.uuid4().hex[:8]}" for kind in ("g", "t"))
    acls = [
        Acl("User:alice", AclOperation.READ, kind, name)
        for kind, name in ((ResourceType.GROUP, group), (ResourceType.TOPIC, topic))
    ]
    await asyncio.to_thread(secured.allow, *acls)
    async with coordinating(tmp_path, secured.listeners["ENDING"].address, listener=WITH_LOGIN) as running:
        reader, writer = await log_in(running)
        writer.write(registration(ASKED._replace(group_id=group, topic_count=json.dumps({topic: 1}))))
        assert await code(reader) == 0
        assert await asyncio.wait_for(reader.read(), 60) == b""
        assert running.ends == [("login_expired", False)]
        await running.counted(0, {"login_expired": 1})
    await asyncio.to_thread(secured.revoke, *acls)


class LoggingIn:
    """A broker on which everybody logs in, and that then does as ``rights`` does. ``writers``: its connections."""

    def __init__(self, rights: Behaviour) -> None:
        self.rights = rights
        self.writers: list[Writer] = []

    async def __call__(self, reader: Reader, writer: Writer) -> None:
        self.writers.append(writer)
        for key in (SASL_HANDSHAKE, SASL_AUTHENTICATE):
            frame = await read_frame(reader)
            assert int.from_bytes(frame[4:6], "big") == key
            body = b"\0\0" + (b"\0\0\0\1\0\5PLAIN" if key == SASL_HANDSHAKE else b"\xff\xff\0\0\0\0" + bytes(8))
            writer.write(response(int.from_bytes(frame[8:12], "big"), body))
        await self.rights(reader, writer)

    async def register(self, running: Coordinating) -> tuple[Reader, Writer]:
        reader, writer = await running.dial()
        writer.write(request(SASL_HANDSHAKE, 1, 1, handshake("PLAIN")))
        writer.write(request(SASL_AUTHENTICATE, 1, 2, authenticate(plain("alice", "s"), 1)))
        await read_frame(reader)
        await read_frame(reader)
        writer.write(registration())
        assert await code(reader) == 0
        return reader, writer


@pytest.mark.usefixtures("often")
async def test_a_broker_that_ends_the_login_ends_the_consumer(tmp_path: Path) -> None:
    broker = LoggingIn(rights := Rights())
    async with coordinating(tmp_path, broker, listener=WITH_LOGIN) as running:
        reader, _ = await broker.register(running)
        await running.until(lambda: any(names.count("g") > 1 for names in rights.asked))
        assert running.consumers.logins() == [(running.of(ConsumerRegistered)[0].connection, "User:alice")]
        for writer in broker.writers:
            writer.close()
        assert await asyncio.wait_for(reader.read(), 60) == b""
        assert running.ends == [("broker_closed", False)]
        await running.counted(0, {"broker_closed": 1})


@pytest.mark.usefixtures("often")
async def test_who_goes_while_the_broker_is_asked_leaves_nothing_behind_and_no_answer_ends_the_consumer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stalled, ended = asyncio.Event(), asyncio.Event()

    async def stall_after_two(reader: Reader, writer: Writer) -> None:
        rights = Rights()
        for _ in range(2):
            frame = await read_frame(reader)
            writer.write(response(int.from_bytes(frame[8:12], "big"), rights.answer(frame, [])))
        await read_frame(reader)
        stalled.set()
        await reader.read()
        ended.set()

    broker = LoggingIn(stall_after_two)
    async with coordinating(tmp_path, broker, listener=WITH_LOGIN) as running:
        _, writer = await broker.register(running)
        await asyncio.wait_for(stalled.wait(), 60)
        writer.close()
        await running.counted(0, {"client_closed": 1})
        await asyncio.wait_for(ended.wait(), 60)
        await running.until(lambda: not running.consumers._tasks)
        await running.begin_anew()
        monkeypatch.setattr(consumer_rights, "QUESTION_SECONDS", 1.0)
        reader, _ = await broker.register(running)
        assert await asyncio.wait_for(reader.read(), 60) == b""
        assert running.ends == [("broker_timeout", False)]
        await running.counted(0, {"broker_timeout": 1})


@pytest.mark.usefixtures("often")
async def test_so_many_clients_are_asked_about_at_a_time_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "MAX_QUESTIONS", 2)
    waiting: list[Writer] = []
    answering = asyncio.Event()

    async def behave(reader: Reader, writer: Writer) -> None:
        rights = Rights()
        for number in itertools.count():
            frame = await read_frame(reader)
            if number == 1:  # the first one is part of the registration
                waiting.append(writer)
                await answering.wait()
            writer.write(response(int.from_bytes(frame[8:12], "big"), rights.answer(frame, [])))

    broker = LoggingIn(behave)
    async with coordinating(tmp_path, broker, listener=WITH_LOGIN) as running:
        for _ in range(3):
            await broker.register(running)
        await running.until(lambda: len(running.consumers._tasks) >= 3)
        await running.until(lambda: len(waiting) == 2)
        await asyncio.sleep(0.05)
        assert len(waiting) == 2
        answering.set()
        await running.until(lambda: len(waiting) == 3)
        assert not running.ends


async def test_one_client_s_rights_are_asked_for_one_after_the_other() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=theirs)
    broker = asyncio.create_task(Rights("other", "tb")(reader, writer))
    rights = consumer_rights.ClientRights(ours, "c")
    try:
        async with asyncio.timeout(60):
            found = await asyncio.gather(
                rights.ask("g", ["ta", "tb"]), rights.ask("other", ["ta"]), rights.ask("g", [])
            )
    finally:
        rights.close()
        broker.cancel()
        writer.close()
    assert [(one.may_read_group, set(one.unreadable)) for one in found] == [
        (True, {"tb"}),
        (False, set()),
        (True, set()),
    ]


async def test_ends_of_logins_do_not_gather(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "MAX_ENDED_LOGINS", 10)
    async with coordinating(tmp_path, Rights()) as running:
        await running.register()
        number = running.of(ConsumerRegistered)[0].connection
        for gone in range(100):
            client = Connection("a-1", "CLIENT", "127.0.0.1", 1, 0.0, "User:a")
            asked = Registration(1, 1, "c", ASKED)
            login = HandedConnection(number + gone, client, asked, b"", 1, 1, 1, monotonic(), 3600.0)
            running.consumers._schedule_login_end(login)
        assert len(running.consumers._login_ends) <= 12
        assert number in [one for _, one in running.consumers._login_ends], "it is still open"
