"""Whether consumers still may read their group and their topics, as the broker says.

Of a client that has logged in, it is asked on the client's own connection to the broker, which is kept for that
(``ClientRights``). Where the broker authenticates nobody, all clients of a listener have the same rights, and are asked
about on one connection (``ListenerRights``).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import OrderedDict
from collections.abc import Callable, Collection
from time import monotonic

from proxy import __version__
from proxy.interceptors.consumer_rights import Rights, ask_rights
from proxy.net.upstream import Upstream
from proxy.net.upstream_call import SocketPeer
from proxy.rpc.call import call
from proxy.rpc.messages import RpcRequest

QUESTION_SECONDS = 5.0
"""Within which the broker answers one question."""

MAX_ANSWER = 4_194_304
"""Bytes of an answer."""

ANSWER_LASTS = 10.0
"""Seconds in which an answer of ``ListenerRights`` is used again."""


class BrokerQuestions:
    """One connection to the broker, on which one request after the other is made. It owns ``sock``. For one caller at a
    time.

    After an error it is of no use: what the broker would send next is not known.
    """

    def __init__(self, sock: socket.socket, client_id: str | None) -> None:
        self._sock = sock
        self._peer = SocketPeer(sock)
        self._client_id = client_id
        self._is_calling = self._is_closed = False

    async def call(self, api_key: int, api_version: int, body: bytes) -> bytes:
        """As ``BrokerCall``. Raises OSError (TimeoutError among them), EOFError and PeerError."""
        if self._is_closed:
            raise EOFError
        self._is_calling = True
        try:
            async with asyncio.timeout(QUESTION_SECONDS):
                request = RpcRequest(api_key, api_version, body)
                return await call(
                    self._peer, self._peer, request, correlation_id=0, client_id=self._client_id, max_size=MAX_ANSWER
                )
        finally:
            self._end_call()

    def _end_call(self) -> None:
        self._is_calling = False
        if self._is_closed:
            self._sock.close()

    def close(self) -> None:
        """Close the connection. A call under way fails; it closes the descriptor, which the loop still watches."""
        self._is_closed = True
        if self._is_calling:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
        else:
            self._sock.close()


class ClientRights:
    """The rights of one client. ``broker``: its connection to the broker, on which it has logged in; owned."""

    def __init__(self, broker: socket.socket, client_id: str) -> None:
        self._questions = BrokerQuestions(broker, client_id)
        self._turn = asyncio.Lock()

    def known(self, group_id: str, topics: Collection[str]) -> Rights | None:
        """Return what was answered lately; always None."""
        return None

    async def ask(self, group_id: str, topics: Collection[str]) -> Rights:
        """Ask the broker. Raises OSError, EOFError and PeerError: then it cannot be asked any more."""
        async with self._turn:
            return await ask_rights(self._questions.call, group_id, topics)

    def close(self) -> None:
        """Close the connection."""
        self._questions.close()


class ListenerRights:
    """The rights of all clients of a listener whose broker authenticates nobody. ``upstream``: of the listener."""

    def __init__(self, upstream: Upstream, now: Callable[[], float] = monotonic) -> None:
        self._upstream = upstream
        self._now = now
        self._questions: BrokerQuestions | None = None
        self._turn = asyncio.Lock()
        self._groups = Answers()
        self._topics = Answers()

    def known(self, group_id: str, topics: Collection[str]) -> Rights | None:
        """Return what was answered within ``ANSWER_LASTS``; None where something of it was not."""
        since = self._now() - ANSWER_LASTS
        if not (may_read := self._groups.get(group_id, since)):
            return None if may_read is None else Rights(False)
        unreadable = set()
        for topic in topics:
            if (may_read := self._topics.get(topic, since)) is None:
                return None
            if not may_read:
                unreadable.add(topic)
        return Rights(True, frozenset(unreadable))

    async def ask(self, group_id: str, topics: Collection[str]) -> Rights:
        """Ask the broker what is not known. Raises OSError, EOFError and PeerError; the next question may succeed."""
        async with self._turn:
            if (known := self.known(group_id, topics)) is not None:  # somebody else has asked meanwhile
                return known
            since = self._now() - ANSWER_LASTS
            wanted = [topic for topic in topics if self._topics.get(topic, since) is None]
            asked = await self._ask(group_id, wanted)
            now = self._now()
            self._groups.add(group_id, asked.may_read_group, now)
            if not asked.may_read_group:
                return asked
            for topic in wanted:
                self._topics.add(topic, topic not in asked.unreadable, now)
            denied = {topic for topic in topics if self._topics.get(topic, since) is False}
            return Rights(True, asked.unreadable | denied)

    async def _ask(self, group_id: str, topics: Collection[str]) -> Rights:
        """Ask on the connection that there is, or on a new one: brokers close idle ones."""
        while True:
            is_new = self._questions is None
            if self._questions is None:
                async with asyncio.timeout(QUESTION_SECONDS):
                    self._questions = BrokerQuestions(await self._upstream.connect(), f"brokerside-{__version__}")
            try:
                return await ask_rights(self._questions.call, group_id, topics)
            except BaseException as error:
                self.close()
                if is_new or not isinstance(error, OSError | EOFError):
                    raise

    def close(self) -> None:
        """Close the connection. A later question opens another one."""
        if self._questions is not None:
            self._questions.close()
            self._questions = None


class Answers:
    """What may be read by name, and when the broker has said so. Those that are too old are forgotten."""

    def __init__(self) -> None:
        self._by_name: OrderedDict[str, tuple[bool, float]] = OrderedDict()  # the oldest first

    def get(self, name: str, since: float) -> bool | None:
        """Return the answer about ``name``; None if there is none, or none after ``since``."""
        answer = self._by_name.get(name)
        return None if answer is None or answer[1] < since else answer[0]

    def add(self, name: str, may_read: bool, now: float) -> None:
        """Take an answer."""
        self._by_name.pop(name, None)
        self._by_name[name] = may_read, now
        while next(iter(self._by_name.values()))[1] < now - ANSWER_LASTS:
            self._by_name.popitem(last=False)
