"""Members of groups that read nothing: they speak the protocol over a socket each, and note what they own and when.

``CoordinatedMember`` is one of a sidecar's groups (``proxy.coordinator.wire``), ``KafkaMember`` one of a broker's
(ConsumerGroupHeartbeat, KIP-848). All members of a group run in one event loop and share its ``Ownership``.
"""

from __future__ import annotations

import asyncio
import base64
import random
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from itertools import count
from typing import NamedTuple

from proxy.client.consumer.backoff import LEASE_BACKOFF_MS
from proxy.coordinator import wire
from proxy.core.encode import encode
from proxy.core.schema import layout
from proxy.core.struct import view
from proxy.errors import LocalError
from proxy.local.ports import HOST

CONSUMER_GROUP_HEARTBEAT = 68
RETRIABLE = (14, 15, 16, 27, 92)
"""The coordinator loads, is not there, is another one, has rebalanced without this member, which was too slow, or has
not seen yet that a connection has ended."""

FENCED = (25, 110)
"""UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH: a member of Kafka's joins again."""

RETRY = 0.1
LEASE = 0.95
"""Share of its session timeout for which a coordinated member owns what it has without hearing anything."""

JOINS, LEAVES = 0, -1
"""Epochs of a member of Kafka's that is not in the group yet, and that leaves it."""

REBALANCE_TIMEOUT_MS = 60_000
OFFSETS_CONSUMED = 10
"""By how much the offset of each partition grows from one answer to the next, so that there is something to commit."""


class Transition(NamedTuple):
    """``owner``: from now on; None: nobody."""

    time: float
    partition: int
    owner: str | None


class Ownership:
    """Who owns each partition of one group, as its members know it, and since when."""

    def __init__(self, partitions: int, group: str) -> None:
        self._group = group
        self.owners: list[str | None] = [None] * partitions
        self.transitions: list[Transition] = []
        self.overlaps = 0
        """How often a partition had a new owner before the last one had let it go."""
        self.error: str | None = None
        self._changed = asyncio.Event()

    def assign(self, member: str, partitions: Collection[int]) -> None:
        """From now on the member owns these partitions and no other ones."""
        now = time.monotonic()
        for partition, owner in enumerate(self.owners):
            owns = partition in partitions
            if owns == (owner == member):
                continue
            self.overlaps += owns and owner is not None
            self.owners[partition] = member if owns else None
            self.transitions.append(Transition(now, partition, self.owners[partition]))
        self._changed.set()

    def fail(self, error: str) -> None:
        self.error = error
        self._changed.set()

    def settled(self, members: Collection[str]) -> bool:
        """Whether each of the members, and nobody else, has its share of all partitions."""
        shares = Counter(self.owners)
        return shares.keys() == set(members) and max(shares.values()) - min(shares.values()) <= 1

    async def until_settled(self, members: Collection[str], seconds: float) -> float:
        """Wait until it is; return the time of the last transition. Raises LocalError."""
        what = f"each of {len(members)} members has its share of {len(self.owners)} partitions"
        await self.until(lambda: self.settled(members), seconds, what)
        return self.transitions[-1].time

    async def until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait for ``what``, which is true after an assignment, if ever. Raises LocalError."""
        deadline = time.monotonic() + seconds
        while not condition():
            if self.error:
                raise LocalError(self.error)
            self._changed.clear()
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    await self._changed.wait()
            except TimeoutError:
                free = self.owners.count(None)
                raise LocalError(
                    f"group {self._group}: waited {seconds:.0f} s until {what}; {free} have no owner"
                ) from None

    def gaps(self, begin: float, before: Collection[str | None]) -> list[float]:
        """Longest time since ``begin`` in which each partition had no owner. ``before``: the owners at ``begin``."""
        longest = [0.0] * len(self.owners)
        free_since = [begin if owner is None else None for owner in before]
        for at, partition, owner in self.transitions:
            if at < begin:
                continue
            since = free_since[partition]
            if since is not None:
                longest[partition] = max(longest[partition], at - since)
            free_since[partition] = at if owner is None else None
        return longest


class Member(asyncio.Protocol, ABC):
    """One connection of one member. ``name``: unique in the group."""

    def __init__(self, port: int, group: str, name: str, topic: str, ownership: Ownership) -> None:
        self.name = name
        self._port = port
        self._group = group
        self._topic = topic
        self._ownership = ownership
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._correlation_ids = count()
        self._loop = asyncio.get_running_loop()
        self._gone = False

    async def start(self) -> None:
        """Connect; it joins by itself. Raises OSError."""
        await self._loop.create_connection(lambda: self, HOST, self._port)

    def kill(self) -> None:
        """End as a killed process does: the kernel closes the connection."""
        self._gone = True
        self._cancel()
        self._ownership.assign(self.name, ())
        if self._transport is not None:
            self._transport.abort()

    def freeze(self) -> None:
        """Answer nothing any more, and send nothing. The connection stays."""
        self._gone = True
        self._cancel()
        self._ownership.assign(self.name, ())
        if self._transport is not None:
            self._transport.pause_reading()

    @abstractmethod
    def _cancel(self) -> None:
        """Cancel what it would do by itself."""

    @abstractmethod
    def leave(self) -> None:
        """Leave the group, in order."""

    @abstractmethod
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._received.clear()

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4 and not self._gone:
            end = 4 + int.from_bytes(self._received[:4], "big")
            if len(self._received) < end:
                return
            frame = bytes(self._received[4:end])
            del self._received[:end]
            self._on_frame(frame)

    @abstractmethod
    def _on_frame(self, frame: bytes) -> None: ...

    def _write(self, frame: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)


class CoordinatedMember(Member):
    """As ``proxy.client.consumer`` does: it stops what it is asked to before it answers, owns what it has on its lease,
    and comes back when its coordinator is gone. ``pings``: when they came; ``stops``: StopFetcher requests;
    ``ends``: connections that ended without its doing; ``registered_at``, ``started_at``: the last time it was.
    ``consumes``: its offsets grow with each answer."""

    def __init__(
        self,
        port: int,
        group: str,
        name: str,
        topic: str,
        ownership: Ownership,
        *,
        session_timeout_ms: int = 6000,
        consumes: bool = True,
    ) -> None:
        super().__init__(port, group, name, topic, ownership)
        self.registered = False
        self.pings: list[float] = []
        self.stops = self.ends = 0
        self.registered_at = self.started_at = 0.0
        self._consumes = consumes
        self._session_timeout_ms = session_timeout_ms
        self._lease_length = LEASE * session_timeout_ms / 1000
        self._lease_end = 0.0
        self._lease_timer: asyncio.TimerHandle | None = None
        self._assigned: dict[int, wire.ConsumedOffset] = {}
        self._pings_to_answer = 0
        self._last_response = b""
        self._attempts: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._register()

    def _register(self) -> None:
        topics = f'{{"{self._topic}":1}}'
        asked = wire.RegisterConsumerRequest(
            self._group, self.name, topics, True, "smallest", self._session_timeout_ms, protocol_level=2
        )
        body = wire.encode_register_consumer_request(2, asked)
        self._write(wire.request_frame(wire.REGISTER_CONSUMER, 2, next(self._correlation_ids), "bench", body))

    def leave(self) -> None:
        """As a consumer whose offsets the coordinator has: it closes the connection."""
        self.kill()

    def leave_with_offsets(self) -> None:
        """As a consumer with offsets to report: a response that is repeated asks for a ping, whose response has them,
        and the ping after it shows that the response has arrived."""
        self._ownership.assign(self.name, ())
        self._pings_to_answer = 2
        self._write(self._last_response)

    def _cancel(self) -> None:
        if self._lease_timer is not None:
            self._lease_timer.cancel()
        if self._attempts is not None:
            self._attempts.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._gone:
            return
        self.ends += 1
        self.registered = False
        self._ownership.assign(self.name, ())  # its coordinator may live; it is held until that is known
        self._attempts = asyncio.create_task(self._come_back())

    async def _come_back(self) -> None:
        wait = RETRY
        while True:
            try:
                return await self.start()
            except ConnectionRefusedError:  # nobody lives there: it goes on while its lease lasts
                if time.monotonic() < self._lease_end:
                    self._ownership.assign(self.name, self._assigned.keys())
            except (ConnectionError, TimeoutError):  # killed before it accepted, or too busy: the next attempt shows it
                pass
            except OSError as error:
                return self._ownership.fail(f"{self.name}: {error}")
            await asyncio.sleep(wait * random.uniform(0.8, 1.2))
            wait = min(2 * wait, LEASE_BACKOFF_MS / 1000, self._session_timeout_ms / 4000)

    def _on_frame(self, frame: bytes) -> None:
        if self.registered:
            self._on_pushed(wire.decode_pushed(frame))
            return
        code = wire.decode_register_consumer_response(2, frame[4:]).error_code
        if code in RETRIABLE:
            self._loop.call_later(RETRY, self._register)
        elif code:
            self._ownership.fail(f"{self.name} is refused with {code}")
        else:
            self.registered, self.registered_at = True, time.monotonic()

    def _on_pushed(self, pushed: wire.PushedFrame) -> None:
        now = time.monotonic()
        self._lease_end = now + self._lease_length
        if self._lease_timer is None:
            self._lease_timer = self._loop.call_later(self._lease_length, self._check_lease)
        offsets: Iterable[wire.ConsumedOffset] | None = None
        match pushed.request:
            case wire.PingRequest():
                self.pings.append(now)
                offsets = self._consumed(self._assigned)
            case wire.StopFetcherRequest(partitions=partitions):
                self.stops += 1
                stopped = list(self._assigned) if partitions is None else [number for _, number in partitions]
                offsets = self._consumed(stopped)
                for partition in stopped:
                    self._assigned.pop(partition, None)
                self._ownership.assign(self.name, self._assigned.keys())
            case wire.StartFetcherRequest(threads=threads):
                self.started_at = now
                started = {one.partition: one for thread in threads for one in thread.partitions}
                self._assigned = {number: self._assigned.get(number, one) for number, one in started.items()}
                self._ownership.assign(self.name, self._assigned.keys())
        reported = None if offsets is None else tuple(offsets)
        self._last_response = wire.encode_response(
            wire.ConsumerResponse(pushed.correlation_id, pushed.api_key, 0, self.name, reported)
        )
        self._write(self._last_response)
        if self._pings_to_answer and pushed.api_key == wire.PING:
            self._pings_to_answer -= 1
            if self._pings_to_answer:
                self._write(self._last_response)
            else:
                self.leave()

    def _consumed(self, partitions: Iterable[int]) -> list[wire.ConsumedOffset]:
        if self._consumes:
            for partition in partitions:
                before = self._assigned[partition]
                self._assigned[partition] = before._replace(offset=max(0, before.offset) + OFFSETS_CONSUMED)
        return [self._assigned[partition] for partition in partitions]

    def _check_lease(self) -> None:
        left = self._lease_end - time.monotonic()
        self._lease_timer = None
        if left > 0:
            self._lease_timer = self._loop.call_later(left, self._check_lease)
        else:
            self._ownership.assign(self.name, ())


class KafkaMember(Member):
    """As Kafka's clients do: what it loses it lets go at once, and says so with a heartbeat that does not wait."""

    def __init__(self, port: int, group: str, name: str, topic: str, ownership: Ownership) -> None:
        super().__init__(port, group, name, topic, ownership)
        self._epoch = JOINS
        self._owned: dict[str, list[int]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._heartbeat(tell_owned=True)

    def leave(self) -> None:
        self._cancel()
        self._gone = True
        self._ownership.assign(self.name, ())
        self._epoch = LEAVES
        self._heartbeat(tell_owned=False)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._gone:
            self._ownership.fail(f"{self.name}: the broker has closed the connection")

    def _heartbeat(self, *, tell_owned: bool) -> None:
        topics = [self._topic] if self._epoch == JOINS else None
        held = [
            {"TopicId": base64.urlsafe_b64decode(topic_id + "=="), "Partitions": partitions}
            for topic_id, partitions in self._owned.items()
        ]
        values = {
            "GroupId": self._group, "MemberId": self.name, "MemberEpoch": self._epoch, "SubscribedTopicNames": topics,
            "RebalanceTimeoutMs": REBALANCE_TIMEOUT_MS if topics else -1,
            "TopicPartitions": held if tell_owned else None,
        }  # fmt: skip
        body = encode(layout(CONSUMER_GROUP_HEARTBEAT, 1, response=False), values)
        self._write(wire.request_frame(CONSUMER_GROUP_HEARTBEAT, 1, next(self._correlation_ids), "bench", b"\0" + body))

    def _on_frame(self, frame: bytes) -> None:
        response = view(CONSUMER_GROUP_HEARTBEAT, 1, frame[5:], response=True)
        code = response.get("ErrorCode")
        if code in FENCED:
            self._epoch, self._owned = JOINS, {}
            self._ownership.assign(self.name, ())
            self._heartbeat(tell_owned=True)
        elif code in RETRIABLE:
            self._timer = self._loop.call_later(RETRY, lambda: self._heartbeat(tell_owned=True))
        elif code:
            self._ownership.fail(f"{self.name} is refused with {code}: {response.get('ErrorMessage')}")
        else:
            self._epoch = response.get("MemberEpoch")
            if not self._takes(response.get("Assignment")):
                interval = response.get("HeartbeatIntervalMs") / 1000
                self._timer = self._loop.call_later(interval, lambda: self._heartbeat(tell_owned=False))

    def _takes(self, assignment: object) -> bool:
        """Take an assignment, and say so; returns whether it is another one."""
        if assignment is None:
            return False
        found = {one.get("TopicId"): list(one.get("Partitions")) for one in assignment.get("TopicPartitions")}  # type: ignore[attr-defined]
        if found == self._owned:
            return False
        self._owned = found
        self._ownership.assign(self.name, {number for numbers in found.values() for number in numbers})
        self._heartbeat(tell_owned=True)
        return True
