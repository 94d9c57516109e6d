"""The connections of consumers, from their registration to their end. They stand in the main process.

How the runner of the coordinator uses ``ConsumerConnections`` (all of it on the event loop's thread):

* ``on_event`` and ``may_send`` are set before the first listener accepts. ``may_send`` says whether a request may be
  sent to a consumer now: it is asked where the kernel takes one late. ``on_event`` gets ``ConsumerRegistered``,
  ``RightsChanged``, ``ResponseReceived``, ``ConnectionBuffered``, ``ConnectionDrained`` and
  ``ConsumerConnectionEnded``. It may call the methods below. Events of a connection come after its
  ``ConsumerRegistered``, none after its end.
* Effects: ``SendFrame`` is ``send``, ``ConsumerAccepted`` is ``accept``, ``CloseConsumer`` is ``close``. Each may be
  late: for a connection that has ended they do nothing. ``send`` has returned when the kernel has the bytes, or
  after ``ConnectionBuffered``.
* A response to RegisterConsumer with an error lets the client register again, on the same connection; a response
  without one has to be followed by ``ConsumerAccepted``, in any order.
* ``set_topics`` gets the names of all topics before the machine gets ``TopicsChanged``, so that nobody is
  assigned what he may not read.

A client may register again while it is not registered. All else that it sends then ends its connection.

Rights are asked for again every 30 s. Of clients that have logged in, each is asked about on its own connection to the
broker, which is kept for that; where the broker authenticates nobody, all clients of a listener have the same rights,
which are asked for on one connection.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Coroutine
from heapq import heapify, heappop, heappush
from time import monotonic, perf_counter

from proxy.config import Config
from proxy.coordinator.codes import RegistrationCode
from proxy.coordinator.events import (
    ConnectionBuffered,
    ConnectionDrained,
    ConsumerConnectionEnded,
    ConsumerRegistered,
    Event,
    ResponseReceived,
    RightsChanged,
)
from proxy.coordinator.registration import is_group_id
from proxy.coordinator.wire import (
    REGISTER_CONSUMER,
    RegisterConsumerResponse,
    RegistrationRefused,
    decode_register_consumer_request,
    encode_register_consumer_response,
    response_frame,
)
from proxy.core.causes import Cause
from proxy.errors import MalformedBody, PeerError
from proxy.interceptors.consumer_groups import Registration, is_version, read_header, read_topic_count
from proxy.interceptors.consumer_rights import Rights
from proxy.net.connection_handler import ConnectionHandler
from proxy.net.consumer import Consumer, ConsumerState
from proxy.net.consumer_handover import HandedConnection
from proxy.net.consumer_rights import QUESTION_SECONDS, ClientRights, ListenerRights
from proxy.net.consumer_socket import ConsumerSocket, PartialFrames
from proxy.net.open_connections import PAGE, KafkaConnection
from proxy.net.upstream import Upstream
from proxy.protocol.private import BASE

REGISTRATION_IDLE = 60.0
"""Seconds within which a client that was refused registers again, or its connection is closed."""

RIGHTS_INTERVAL = 25.0, 35.0
"""Seconds between two questions about the rights of a client, at random between these."""

LOGIN_SHARE = 0.85, 0.95
"""Part of the lifetime of a login after which its connection is closed, at random between these."""

LINGER = 10.0
"""Seconds that a closed connection has to take the bytes that were sent before."""

MAX_QUESTIONS = 100
"""Clients whose rights are asked for at the same time."""

QUESTIONS_SECONDS = 0.002
"""Longest time that is spent on asking, before clients are served; the next tick goes on."""

MAX_ENDED_LOGINS = 1000
"""Ends of logins that are kept although their connections may have ended."""

MAX_MATCHED = 1000
"""Patterns whose topics are kept. Consumers of a group mostly have the same one."""

NO_ERROR = b"\0\0"


class ConsumerConnections:
    """All connections of consumers.

    ``handler``: has served them before. Its counters of listeners go on, and it reports their ends to observers.
    """

    def __init__(self, config: Config, handler: ConnectionHandler) -> None:
        self.on_event: Callable[[Event], None] = lambda event: None
        """Gets all events, see above."""
        self.may_send: Callable[[int], bool] = lambda number: True
        """See above."""
        self.on_connection_closed: Callable[[int], None] = lambda number: None
        """Is called once with the number of each connection that has ended."""
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._register_key = config.private_api_key_base + REGISTER_CONSUMER - BASE
        self._worker = 1 if config.workers == 1 else 0
        self._consumers: dict[int, Consumer] = {}
        self._refused: OrderedDict[int, float] = OrderedDict()  # since when; the first one first
        self._lingering: OrderedDict[ConsumerSocket, float] = OrderedDict()  # closed, with unsent bytes
        self._rights_due: list[tuple[float, int]] = []  # heaps of times and numbers
        self._login_ends: list[tuple[float, int]] = []
        self._partial_frames = PartialFrames()
        self._topics: frozenset[str] = frozenset()
        self._matched: dict[str, frozenset[str]] = {}  # of all topics, by ``topic_count``
        self._listener_rights: dict[str, ListenerRights] = {}
        self._questions = asyncio.Semaphore(MAX_QUESTIONS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        self._set_config(config)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._consumers)

    # ---- effects ----------------------------------------------------------------------------------------------------

    def send(self, number: int, frame: bytes) -> bool:
        """Effect ``SendFrame``. Returns whether the kernel has taken all that was sent so far."""
        consumer = self._consumers.get(number)
        if consumer is None:
            return False
        is_refusal = consumer.state is ConsumerState.ASKED and frame[8:10] != NO_ERROR
        consumer.sock.send(frame)
        if is_refusal and not consumer.sock.is_closing:
            consumer.state = ConsumerState.REFUSED
            self._refused[number] = monotonic()
            if not consumer.sock.has_unsent:  # who does not read responses is asked for no further requests
                consumer.sock.resume()
        return not consumer.sock.has_unsent

    def accept(self, number: int, user_timeout_ms: int) -> None:
        """Effect ``ConsumerAccepted``."""
        consumer = self._consumers.get(number)
        if consumer is None:
            return
        consumer.state = ConsumerState.REGISTERED
        consumer.sock.set_user_timeout(user_timeout_ms)
        consumer.sock.resume()

    def close(self, number: int, cause: Cause) -> None:
        """Effect ``CloseConsumer``. A member gets no request later than now: the right to send one may end."""
        consumer = self._consumers.get(number)
        if consumer is None:
            return
        if consumer.state is ConsumerState.REGISTERED:
            consumer.sock.abort()
        consumer.sock.close()
        if not consumer.sock.is_closed:
            self._lingering[consumer.sock] = monotonic()
        self._forget(consumer, cause)

    def close_all(self) -> None:
        """Close all connections: the coordinator has begun anew, and knows none of them. Consumers register again."""
        for number in list(self._consumers):
            self.close(number, "coordinator_moved")

    async def set_topics(self, names: Collection[str]) -> None:
        """Set the names of all topics. Returns once the rights to new ones that match patterns were asked for, or
        ``QUESTION_SECONDS`` later. Topics that clients name were asked about before, whether they existed or not."""
        topics = frozenset(names)
        if topics != self._topics:
            self._matched.clear()
        new, self._topics = topics - self._topics, topics
        asking = []
        for at, consumer in enumerate([one for one in self._consumers.values() if one.has_pattern] if new else ()):
            is_first = consumer.registration.request.topic_count not in self._matched
            if not consumer.sock.is_closing and not new.isdisjoint(self._topics_of(consumer)):
                task = self._ask_again(consumer)
                if task is not None:
                    asking.append(task)
            if is_first or at % PAGE == PAGE - 1:  # a pattern takes a microsecond for each topic
                await asyncio.sleep(0)
        if asking:
            await asyncio.wait(asking, timeout=QUESTION_SECONDS)

    # ---- for the connection handler ---------------------------------------------------------------------------------

    def take(self, handed: HandedConnection, client: socket.socket | None, broker: socket.socket | None) -> None:
        """As ``TakeConsumer``."""
        listener = handed.connection.listener
        counters = self._handler.listener_counters[listener]
        if client is None or (broker is None and handed.connection.principal_source != "anonymous"):
            for sock in filter(None, (client, broker)):
                sock.close()
            counters.closed["worker_lost"] += 1
            self.on_connection_closed(handed.number)
            return
        counters.active += 1
        client_rights = None if broker is None else ClientRights(broker, handed.registration.client_id)
        consumer = Consumer(handed, client_rights, self)
        consumer.sock = ConsumerSocket(client, consumer, self._partial_frames, counters.received)
        self._consumers[handed.number] = consumer
        consumer.sock.take_read(handed.rest)
        if consumer.sock.is_closing:
            return
        if handed.login_seconds:
            self._schedule_login_end(handed)
        if self._is_stopping or listener not in self._listeners:  # since it was given up
            self.close(handed.number, "coordinator_moved" if self._is_stopping else "drain_completed")
            return
        self._schedule_rights(consumer)
        if consumer.has_pattern:
            self._ask_to_register(consumer)
        else:  # the interceptor has asked
            self._report_registered(consumer, Rights(True))

    def end(self, number: int, cause: Cause) -> bool:
        """Close the connection with this number for ``cause``, and return whether it was open."""
        consumer = self._consumers.get(number)
        if consumer is not None:
            consumer.sock.end(cause)
        return consumer is not None

    def logins(self) -> list[tuple[int, str]]:
        """Return the numbers of those that have logged in with SASL, with their principals."""
        consumers = self._consumers.items()
        return [(number, one.client.principal) for number, one in consumers if one.client.principal_source == "sasl"]

    def find(self, number: int) -> KafkaConnection | None:
        """Describe the connection with this number; None if it is not open."""
        consumer, now = self._consumers.get(number), monotonic()
        return None if consumer is None else consumer.describe(now, time.time() - now, self._worker)

    async def describe_all(self) -> list[KafkaConnection]:
        """Describe all connections, in steps between which the event loop serves them."""
        described = []
        for at, consumer in enumerate(list(self._consumers.values())):
            now = monotonic()
            described.append(consumer.describe(now, time.time() - now, self._worker))
            if at % PAGE == PAGE - 1:
                await asyncio.sleep(0)
        return described

    def update_config(self, config: Config) -> None:
        """Apply the reloadable keys. Connections of listeners that are no more there end."""
        before = self._listeners
        self._set_config(config)
        for name in list(self._listener_rights):
            if before[name] != self._listeners.get(name):
                self._listener_rights.pop(name).close()
        for consumer in list(self._consumers.values()):
            if consumer.client.listener not in self._listeners:
                consumer.sock.end("drain_completed")

    async def stop(self) -> None:
        """Close all connections that are left, and all that come from now on."""
        self._is_stopping = True
        for task in self._tasks:
            task.cancel()
        for at, number in enumerate(list(self._consumers)):
            self.close(number, "coordinator_moved")
            if at % PAGE == PAGE - 1:
                await asyncio.sleep(0)
        for sock in self._lingering:
            sock.abort()
        self._lingering.clear()
        for rights in self._listener_rights.values():
            rights.close()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def on_tick(self) -> None:
        """Do what is due. Called by the ticker."""
        now = monotonic()
        while self._refused and next(iter(self._refused.values())) <= now - REGISTRATION_IDLE:
            self.end(next(iter(self._refused)), "registration_idle")
        while self._lingering and next(iter(self._lingering.values())) <= now - LINGER:
            self._lingering.popitem(last=False)[0].abort()
        while self._login_ends and self._login_ends[0][0] <= now:
            self.end(heappop(self._login_ends)[1], "login_expired")
        until = perf_counter() + QUESTIONS_SECONDS
        for _ in range(MAX_QUESTIONS):
            if not self._rights_due or self._rights_due[0][0] > now or perf_counter() >= until:
                return
            consumer = self._consumers.get(heappop(self._rights_due)[1])
            if consumer is not None:
                self._schedule_rights(consumer)
                self._ask_again(consumer)

    # ---- for the connections ----------------------------------------------------------------------------------------

    def on_frame(self, consumer: Consumer, frame: bytes) -> None:
        """As ``ConsumerEvents``."""
        if consumer.state is ConsumerState.REGISTERED:
            self.on_event(ResponseReceived(consumer.number, frame))
        else:
            self._register_again(consumer, frame)

    def on_end(self, consumer: Consumer, cause: Cause, by_peer: bool) -> None:
        """As ``ConsumerEvents``."""
        self._forget(consumer, cause)
        if consumer.rights is not None:
            self.on_event(ConsumerConnectionEnded(consumer.number, by_peer, cause))

    def on_buffered(self, consumer: Consumer) -> None:
        """As ``ConsumerEvents``."""
        if consumer.rights is not None:
            self.on_event(ConnectionBuffered(consumer.number))

    def on_drained(self, consumer: Consumer) -> None:
        """As ``ConsumerEvents``."""
        if consumer.state is ConsumerState.REFUSED:
            consumer.sock.resume()
        if consumer.rights is not None:
            self.on_event(ConnectionDrained(consumer.number))

    def may_send_rest(self, consumer: Consumer) -> bool:
        """As ``ConsumerEvents``."""
        return self.may_send(consumer.number)

    def _forget(self, consumer: Consumer, cause: Cause) -> None:
        """Count the end of a connection, and report it to everybody but the coordinator."""
        del self._consumers[consumer.number]
        self._refused.pop(consumer.number, None)
        if consumer.client_rights is not None:
            consumer.client_rights.close()
        counters = self._handler.listener_counters[consumer.client.listener]
        counters.active -= 1
        counters.closed[cause] += 1
        self._handler.report_transition(consumer.closed(cause), consumer.worker)
        self.on_connection_closed(consumer.number)

    # ---- registration -----------------------------------------------------------------------------------------------

    def _register_again(self, consumer: Consumer, frame: bytes) -> None:
        """Take the request of a client that was refused."""
        try:
            header, body = read_header(frame)
            if header.api_key != self._register_key or not is_version(header.api_version):
                consumer.sock.end("consumer_malformed")
                return
            self._handler.listener_counters[consumer.client.listener].requests[header.api_key] += 1
            consumer.requests += 1
            consumer.state = ConsumerState.ASKED
            consumer.sock.pause()
            del self._refused[consumer.number]
            consumer.registration = Registration(*header[1:], consumer.registration.request)
            request = decode_register_consumer_request(header.api_version, body)
        except RegistrationRefused as error:
            self._refuse(consumer, error.code)
        except MalformedBody:
            consumer.sock.end("client_invalid_request")
        else:
            consumer.registration = consumer.registration._replace(request=request)
            self._ask_to_register(consumer)

    def _ask_to_register(self, consumer: Consumer) -> None:
        """Report a registration once its rights are known, or refuse it."""
        if (known := self._known_rights(consumer)) is not None:
            self._decide(consumer, known)
        else:
            self._spawn(self._ask(consumer, self._decide))

    def _decide(self, consumer: Consumer, rights: Rights) -> None:
        if not rights.may_read_group:
            self._refuse(consumer, RegistrationCode.GROUP_DENIED)
        elif rights.unreadable and not consumer.has_pattern:
            self._refuse(consumer, RegistrationCode.TOPIC_DENIED)
        else:
            self._report_registered(consumer, rights)

    def _report_registered(self, consumer: Consumer, rights: Rights) -> None:
        consumer.rights = rights
        registration, client = consumer.registration, consumer.client
        self.on_event(
            ConsumerRegistered(
                consumer.number,
                registration.correlation_id,
                registration.api_version,
                registration.request,
                registration.client_id,
                client.principal,
                client.client_ip,
                client.listener,
                rights.unreadable,
            )
        )

    def _refuse(self, consumer: Consumer, code: int) -> None:
        registration = consumer.registration
        body = encode_register_consumer_response(registration.api_version, RegisterConsumerResponse(code))
        self.send(consumer.number, response_frame(registration.correlation_id, body))

    def _schedule_login_end(self, handed: HandedConnection) -> None:
        ends_at = handed.login_at + handed.login_seconds * random.uniform(*LOGIN_SHARE)  # noqa: S311
        heappush(self._login_ends, (ends_at, handed.number))
        if len(self._login_ends) > 2 * len(self._consumers) + MAX_ENDED_LOGINS:
            self._login_ends = [one for one in self._login_ends if one[1] in self._consumers]
            heapify(self._login_ends)

    # ---- rights -----------------------------------------------------------------------------------------------------

    def _schedule_rights(self, consumer: Consumer) -> None:
        heappush(self._rights_due, (monotonic() + random.uniform(*RIGHTS_INTERVAL), consumer.number))  # noqa: S311

    def _ask_again(self, consumer: Consumer) -> asyncio.Task[None] | None:
        """Ask for the rights of a client that was reported. Returns what is still to be waited for."""
        if consumer.rights is None or consumer.state is ConsumerState.REFUSED:
            return None
        if (known := self._known_rights(consumer)) is not None:
            self._apply(consumer, known)
            return None
        return self._spawn(self._ask(consumer, self._apply))

    def _apply(self, consumer: Consumer, rights: Rights) -> None:
        if consumer.rights != rights:
            consumer.rights = rights
            self.on_event(RightsChanged(consumer.number, *rights))

    def _known_rights(self, consumer: Consumer) -> Rights | None:
        """Return what was answered lately about the rights of a client. What no group can be called is not asked about:
        the coordinator refuses it."""
        if not is_group_id(consumer.registration.request.group_id):
            return Rights(True)
        if consumer.client_rights is not None:
            return None
        return self._rights_of(consumer.client.listener).known(*self._question(consumer))

    async def _ask(self, consumer: Consumer, then: Callable[[Consumer, Rights], None]) -> None:
        """Ask the broker, and call ``then`` unless the client has gone or registered again meanwhile."""
        registration = consumer.registration
        try:
            async with self._questions:
                if consumer.sock.is_closing:
                    return
                source = consumer.client_rights or self._rights_of(consumer.client.listener)
                rights = await source.ask(*self._question(consumer))
        except (OSError, EOFError, PeerError) as error:
            if not consumer.sock.is_closing and consumer.registration is registration:
                self._on_no_answer(consumer, error)
        else:
            if not consumer.sock.is_closing and consumer.registration is registration:
                then(consumer, rights)

    def _on_no_answer(self, consumer: Consumer, error: Exception) -> None:
        """What is known stays, but a login that cannot be asked about any more has ended."""
        if consumer.client_rights is not None:
            consumer.sock.end("broker_timeout" if isinstance(error, TimeoutError) else "broker_closed")
        elif consumer.state is ConsumerState.ASKED:
            self._refuse(consumer, RegistrationCode.LOADING)

    def _question(self, consumer: Consumer) -> tuple[str, frozenset[str]]:
        """Return the group and the topics that a client's rights are about."""
        return consumer.registration.request.group_id, self._topics_of(consumer)

    def _topics_of(self, consumer: Consumer) -> frozenset[str]:
        """Return the topics that a client names, or those that match its pattern."""
        topic_count = consumer.registration.request.topic_count
        matched = self._matched.get(topic_count)
        if matched is not None:
            return matched
        wanted = read_topic_count(consumer.registration.request)
        if wanted is None:  # the coordinator refuses it
            return frozenset()
        if wanted.pattern is None:
            return frozenset(wanted.named)
        if len(self._matched) >= MAX_MATCHED:
            self._matched.clear()
        return self._matched.setdefault(topic_count, frozenset(wanted.select(self._topics)))

    def _rights_of(self, listener: str) -> ListenerRights:
        """Return the rights of all clients of a listener without logins. Its broker's side has no TLS."""
        if listener not in self._listener_rights:
            settings = self._listeners[listener]
            timeout = self._config.upstream_connect_timeout_ms / 1000
            upstream = Upstream(settings.upstream, timeout, settings.upstream_source)
            self._listener_rights[listener] = ListenerRights(upstream)
        return self._listener_rights[listener]

    def _set_config(self, config: Config) -> None:
        self._config = config
        self._listeners = {listener.name: listener for listener in config.listeners}

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
