"""What the coordinator of groups asks of Kafka's own group coordinators, and of the topic of groups.

librdkafka's admin client does not ask it: a request to a coordinator that fails may abort the process (2.16,
https://github.com/confluentinc/librdkafka/issues/4605).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import structlog

from proxy.config import Config, Endpoint
from proxy.coordinator.effects import ReadCommittedOffsets
from proxy.coordinator.events import CommittedOffsetsRead, Event, OrdinaryMembersFound
from proxy.core.wire import TRUNCATED
from proxy.errors import BrokersideError
from proxy.fleet.broker_queries import Answer, BrokerQueries, Found, Key, Query
from proxy.fleet.client import ClusterClient
from proxy.fleet.connection import BrokerConnection, ConnectionClosed
from proxy.fleet.internal_security import InternalSecurity
from proxy.fleet.topic_spec import GROUPS_TOPIC
from proxy.interceptors.api_versions import decode_api_versions
from proxy.interceptors.supported_versions import VersionRange
from proxy.rpc import group_messages, topic_messages
from proxy.rpc.group_messages import (
    CLASSIC_GROUPS,
    CONSUMER_GROUPS,
    DEAD,
    SHARE_GROUPS,
    STREAMS_GROUPS,
    WITHOUT_MEMBERS,
    GroupType,
)
from proxy.rpc.messages import RequestRefused, api_versions_request
from proxy.rpc.topic_messages import LEADER_NOT_AVAILABLE

RETRY, RETRY_TIMEOUT = 0.05, 5.0
"""Seconds until something is asked again that may be answered soon, and for how long. Kafka acknowledges a transaction
before the group's coordinator has its end."""

MAX_LOCATED = 20_000
"""Groups and partitions whose brokers are remembered."""

UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER, COORDINATOR_LOAD_IN_PROGRESS = 3, 6, 14
COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, UNSTABLE_OFFSET_COMMIT = 15, 16, 88

MOVED = (UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR)
"""Errors of a broker that is not the one to ask: not yet, as of a topic that is new, or not any more."""

RETRIABLE = (*MOVED, COORDINATOR_LOAD_IN_PROGRESS, UNSTABLE_OFFSET_COMMIT, LEADER_NOT_AVAILABLE)

NO_VERSIONS = 0, -1

Result = TypeVar("Result")

log = structlog.get_logger(__name__)


def _states(kind: GroupType) -> Query[str, str]:
    return Query(
        partial(group_messages.groups_request, kind), lambda answer, _: group_messages.decode_states(kind, answer)
    )


COORDINATORS = Query(group_messages.coordinators_request, lambda answer, _: group_messages.decode_coordinators(answer))
OFFSETS = Query(group_messages.stable_offsets_request, lambda answer, _: group_messages.decode_offsets(answer))
CLASSIC_STATES = _states(CLASSIC_GROUPS)
OTHER_STATES = tuple((kind, _states(kind)) for kind in (CONSUMER_GROUPS, SHARE_GROUPS, STREAMS_GROUPS))
API_VERSIONS: Query[str, Mapping[int, VersionRange]] = Query(
    lambda _: api_versions_request(), lambda answer, groups: dict.fromkeys(groups, (0, decode_api_versions(answer)))
)
"""The versions that a group's coordinator supports."""

LEADERS: Query[int, Endpoint] = Query(
    lambda _: topic_messages.describe_topics_request([GROUPS_TOPIC.name]),
    lambda answer, partitions: topic_messages.decode_leaders(answer, GROUPS_TOPIC.name, partitions),
)
END_OFFSETS: Query[int, int] = Query(
    partial(topic_messages.end_offsets_request, GROUPS_TOPIC.name),
    lambda answer, _: topic_messages.decode_end_offsets(answer),
)


class GroupQueries:
    """Asks until ``close``; on the loop. Results come as events, never from within a call of this class."""

    def __init__(self, config: Config, client_id: str, on_event: Callable[[Event], None]) -> None:
        self._on_event = on_event
        self._client_id = client_id
        self._security = InternalSecurity(config.internal_client_settings())
        self._located: dict[tuple[Any, Any], Endpoint] = {}
        self._brokers: dict[Endpoint, BrokerQueries] = {}
        self._tasks: set[asyncio.Task[None]] = set()

        async def cluster() -> ClusterClient:
            return ClusterClient(config, client_id)

        self._cluster = BrokerQueries(cluster)

    async def close(self) -> None:
        """Stop. Nothing is reported any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for one in (self._cluster, *self._brokers.values()):
            await one.close()

    def read_committed_offsets(self, effect: ReadCommittedOffsets) -> None:
        """Read the committed offsets of a group; then CommittedOffsetsRead."""
        self._start(
            partial(self._ask, COORDINATORS, OFFSETS, effect.group),
            lambda offsets: self._on_event(CommittedOffsetsRead(effect.partition, effect.group, effect.read, offsets)),
        )

    def find_ordinary_members(self, group: str) -> None:
        """Find out whether Kafka's own coordinator has members of a group; then OrdinaryMembersFound."""
        self._start(partial(self._has_members, group), lambda found: self._on_event(OrdinaryMembersFound(group, found)))

    def check_empty(self, partition: int, done: Callable[[bool], None]) -> None:
        """Call ``done`` with whether a partition of the topic of groups has no record; False where nobody answers."""
        self._start(partial(self._ask, LEADERS, END_OFFSETS, partition), lambda end: done(end == 0))

    def _start(self, ask: Callable[[], Awaitable[Result]], done: Callable[[Result | None], None]) -> None:
        """``done``: gets the result, or None if there is none."""

        async def run() -> None:
            result = None
            try:
                result = await ask()
            except (BrokersideError, ValueError, *TRUNCATED) as error:
                log.debug("group_query_failed", error=str(error))
            except Exception:
                log.exception("group_queries_failed")  # a mistake of ours must not leave a question open
            done(result)

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _has_members(self, group: str) -> bool:
        state = await self._ask(COORDINATORS, CLASSIC_STATES, group)
        if state != DEAD:
            return state not in WITHOUT_MEMBERS
        versions = await self._ask(COORDINATORS, API_VERSIONS, group)
        for kind, states in OTHER_STATES:
            first, last = versions.get(kind.key, NO_VERSIONS)
            if first <= kind.version <= last:
                state = await self._ask(COORDINATORS, states, group)
                if state != DEAD:
                    return state not in WITHOUT_MEMBERS
        return False

    async def _ask(self, locate: Query[Key, Endpoint], query: Query[Key, Found], key: Key) -> Found:
        """Ask the broker that ``locate`` finds, and again for ``RETRIABLE`` errors. Raises BrokersideError."""
        loop = asyncio.get_running_loop()
        until = loop.time() + RETRY_TIMEOUT
        while True:
            code, found = await self._ask_once(locate, query, key)
            if not code:
                assert found is not None
                return found
            if code not in RETRIABLE or loop.time() >= until:
                raise RequestRefused(f"asking about {key}", code)
            await asyncio.sleep(RETRY)

    async def _ask_once(
        self, locate: Query[Key, Endpoint], query: Query[Key, Found], key: Key
    ) -> Answer[Found] | tuple[int, None]:
        code, broker = await self._locate(locate, key)
        if code:
            return code, None
        try:
            answer = await self._at(broker).ask(query, key)
        except ConnectionClosed:  # the broker has restarted, or ended the connection for a new authentication
            self._located.pop((locate, key), None)
            return NOT_COORDINATOR, None
        except BrokersideError:
            self._located.pop((locate, key), None)
            raise
        if answer[0] in MOVED:
            self._located.pop((locate, key), None)
        return answer

    async def _locate(self, locate: Query[Key, Endpoint], key: Key) -> Answer[Endpoint]:
        known = self._located.get((locate, key))
        if known is not None:
            return 0, known
        code, broker = await self._cluster.ask(locate, key)
        if not code:
            if len(self._located) >= MAX_LOCATED:
                self._located.clear()
            self._located[locate, key] = broker
        return code, broker

    def _at(self, endpoint: Endpoint) -> BrokerQueries:
        if endpoint not in self._brokers:
            self._brokers[endpoint] = BrokerQueries(partial(self._connect, endpoint))
        return self._brokers[endpoint]

    async def _connect(self, endpoint: Endpoint) -> BrokerConnection:
        return await BrokerConnection.open(endpoint, *await self._security.current(), self._client_id)
