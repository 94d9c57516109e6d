"""Keeps an eye on the fleet: which brokers run, what each supports, and which of them have a sidecar.

Tasks on the loop, and the registry's thread where there is a cluster to ask. What they find is told as a ``FleetView``:
at once what the configuration says, and from then on whenever something has changed. No client ever waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

import structlog
from msgspec import structs

from proxy.config import Config, Endpoint, hmac_keys
from proxy.core.protected import REGISTRY
from proxy.core.wire import TRUNCATED
from proxy.errors import BrokersideError
from proxy.fleet import record
from proxy.fleet.client import Asking, Client
from proxy.fleet.connection import Connection, Unreachable
from proxy.fleet.registry import Registry, Told
from proxy.fleet.schedule import Schedule
from proxy.fleet.security import Security
from proxy.fleet.sightings import Sighting
from proxy.fleet.view import Own, fleet_view, lacking, own_record, own_view
from proxy.interceptors.api_versions import decode_api_versions
from proxy.interceptors.broker_metadata import FleetView
from proxy.interceptors.tags import BrokerCapabilities, derive_capabilities
from proxy.rpc import messages
from proxy.rpc.messages import ClusterFacts, Request

MAX_BYTES = "message.max.bytes"

ANSWERING = ("PLAINTEXT", "SASL_PLAINTEXT")
"""Security protocols of listeners whose broker tells what it supports without a login."""

VERSIONS_EVERY = 30.0
"""Seconds between two questions for what a broker supports, where no broker and no sidecar came or went."""

FIRST_RETRY, LAST_RETRY = 1.0, 10.0
"""Seconds until a question is put again: from the first number to the second, twice as many each time it fails."""

log = structlog.get_logger(__name__)


class FleetWatch:
    """``start`` it, ``poke`` it where a broker's configuration may have changed, ``close`` it."""

    def __init__(
        self,
        config: Config,
        tell: Callable[[FleetView], None],
        on_problem: Callable[[str | None], None],
        *,
        asking: Asking | None = None,
        registry: Callable[[Told], Registry] | None = None,
    ) -> None:
        """Both calls come on the loop. ``on_problem``: what keeps it from being ready; None where that has ended.

        Without ``internal.bootstrap.servers`` only the own broker is told of.
        """
        self._config = config
        self._tell = tell
        self._on_problem = on_problem
        self._client_id = f"brokerside-fleet-{config.broker_id}"
        self._boot_id = uuid.uuid4().hex
        self._started_ms = int(time.time() * 1000)
        self._own = Own(config.broker_id)
        readable = [one for one in config.listeners if one.security_protocol in ANSWERING]
        self._readable = min(readable, key=lambda one: ANSWERING.index(one.security_protocol), default=None)
        self._names_itself = self._readable is not None and self._readable.security_protocol == "PLAINTEXT"
        self._believed = not self._names_itself  # that the broker is the one which is configured
        self._cluster: ClusterFacts | None = None
        self._seen: Mapping[int, Sighting] | None = None
        self._asked: dict[int, BrokerCapabilities] = {}
        self._protected: set[bytes] = set()  # ids of the sidecars' own topics
        self._has_topic_ids = False
        self._told: FleetView | None = None
        self._known_brokers = {config.broker_id}  # that the cluster has, or had: one that restarts keeps its address
        self._failures: dict[str, str] = {}
        self._altered, self._changed = asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._turn = asyncio.Lock()
        self._tls: tuple[Security, ssl.SSLContext | None] | None = None
        self._asking: Asking | None = None
        self._registry: Registry | None = None
        if config.internal_bootstrap_servers is not None:
            self._asking = asking or Client(config, self._client_id)
            authenticator = hmac_keys.authenticator(hmac_keys.REGISTRY, config.registry.hmac_keys_file)
            settings = config.internal_client_settings()
            make = registry or (lambda told: Registry(settings, self._client_id, told, authenticator))
            self._registry = make(self._heard)

    def start(self) -> None:
        """Begin, on the running loop."""
        self._publish()
        self._schedule = Schedule(asyncio.get_running_loop().time())
        work = [self._watch_versions()]
        if self._registry is not None:
            self._registry.start()
            work += [self._watch_brokers(), self._watch_topics(), self._watch_configuration()]
        self._tasks = [asyncio.create_task(one) for one in work]

    def poke(self) -> None:
        """Look at the own broker's configuration now, and some more times soon: it may just have been changed."""
        self._schedule.poke(asyncio.get_running_loop().time())
        self._altered.set()

    def change(self, config: Config) -> None:
        """Go on with other tags; how the cluster is reached stays."""
        self._config = config
        self._publish()

    @property
    def registry_dropped(self) -> Mapping[str, int]:
        """Records of the registry that were not taken, by reason."""
        return {} if self._registry is None else self._registry.dropped

    async def close(self) -> None:
        """Stop looking."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._asking is not None:
            self._asking.close()
        if self._registry is not None:
            await self._registry.close()

    def _heard(self, seen: Mapping[int, Sighting], read: bool) -> None:
        if not read and self._seen is None:
            return
        before, self._seen = self._seen, seen
        if self._seen == before:
            return
        if before is None or _alive(before) != _alive(self._seen):
            log.info("sidecars", running=sorted(_alive(self._seen)))
            self._changed.set()
        self._publish()

    def _publish(self) -> None:
        """Tell whatever is new, to those who carry connections here and to the other sidecars."""
        if self._registry is not None and self._believed:
            own = own_record(self._config, self._own, boot_id=self._boot_id, started_ms=self._started_ms)
            self._registry.register(self._own.node_id, record.encode(own))
        elif self._registry is not None:
            self._registry.withdraw()
        running = None if self._cluster is None else self._cluster.brokers
        view = fleet_view(own_view(self._config, self._own), running, self._seen, self._asked)
        view = structs.replace(view, protected=tuple(sorted(self._protected)))
        if view != self._told:
            self._told = view
            self._tell(view)

    async def _watch_brokers(self) -> None:
        """Ask which brokers run."""
        every = self._config.metadata_watch_ms / 1000
        wait = every
        while True:
            wait = every if await self._tried("brokers", self._look_at_brokers) else min(2 * wait, LAST_RETRY)
            await asyncio.sleep(wait)

    async def _look_at_brokers(self) -> None:
        found = messages.cluster_of((await self._ask(messages.cluster()))[0])
        before, self._cluster = self._cluster, found
        if before == found:
            return
        if before is None or before.brokers.keys() != found.brokers.keys():
            log.info("brokers", running=sorted(found.brokers))
            self._changed.set()
            self._known_brokers |= found.brokers.keys()
            if self._registry is not None:
                self._registry.brokers(self._known_brokers)
        mine = found.brokers.get(self._own.node_id)
        self._own = self._own._replace(cluster_id=found.cluster_id, rack=mine.rack if mine is not None else None)
        self._asked = {node_id: said for node_id, said in self._asked.items() if node_id in found.brokers}
        self._publish()

    async def _watch_topics(self) -> None:
        """Ask for the ids of the sidecars' own topics: a Produce may name them by these alone."""
        while True:
            done = await self._tried("topic ids", self._ask_for_topics)
            await asyncio.sleep(self._config.metadata_watch_ms / 1000 if done else LAST_RETRY)

    async def _ask_for_topics(self) -> None:
        if not self._has_topic_ids:
            supported = decode_api_versions((await self._ask(messages.api_versions()))[0])
            first, last = supported.get(messages.METADATA, (0, 0))
            self._has_topic_ids = first <= messages.TOPIC_IDS_SINCE <= last
            if not self._has_topic_ids:
                return
        self._has_topic_ids = False  # unless it answers: it may be another broker the next time
        names = sorted({REGISTRY, self._config.audit.topic})
        found = messages.topic_ids_of((await self._ask(messages.topic_ids(names)))[0])
        self._has_topic_ids = True
        if found != self._protected:
            self._protected = found
            self._publish()

    async def _watch_configuration(self) -> None:
        """Ask the own broker for its configuration."""
        loop = asyncio.get_running_loop()
        while True:
            wait = self._schedule.at() - loop.time()
            if wait > 0:
                await _set_within(self._altered, wait)
                continue
            began = loop.time()
            done = await self._tried("configuration", self._look_at_configuration)
            (self._schedule.looked if done else self._schedule.failed)(began, loop.time())

    async def _look_at_configuration(self) -> None:
        answer = await self._ask_home(messages.describe_broker(self._config.broker_id, [MAX_BYTES]))
        self._own = self._own._replace(message_max_bytes=messages.broker_configs(answer).get(MAX_BYTES))
        self._publish()

    async def _watch_versions(self) -> None:
        """Ask the own broker, and those without a sidecar, what they support."""
        retry = FIRST_RETRY
        while True:
            looks = [self._tried("own broker", self._look_at_own)]
            if self._cluster is not None and self._seen is not None:
                others = lacking(self._cluster.brokers, self._seen)
                looks += [
                    self._tried(f"broker {one}", self._look_at, one) for one in others if one != self._own.node_id
                ]
            done = all(await asyncio.gather(*looks))
            await _set_within(self._changed, VERSIONS_EVERY if done else retry)
            retry = FIRST_RETRY if done else min(2 * retry, LAST_RETRY)

    async def _look_at_own(self) -> None:
        """Over a listener's upstream: whatever is configured, that is the broker which clients reach here."""
        node_id = self._config.broker_id
        listener = self._readable
        if listener is not None:
            source = listener.upstream_source
            async with _connected(listener.upstream, Security(), None, self._client_id, source) as upstream:
                supported = decode_api_versions(await upstream.ask(messages.api_versions()))
                if self._names_itself:
                    other = messages.other_broker(await upstream.ask(messages.describe_broker(node_id, [MAX_BYTES])))
                    node_id = node_id if other is None else other
        elif self._asking is not None:
            supported = decode_api_versions(await self._ask_home(messages.api_versions()))
        else:
            return
        if node_id != self._own.node_id:
            self._moved(node_id)
        self._own = self._own._replace(node_id=node_id, said=derive_capabilities(supported))
        self._believed = node_id == self._config.broker_id
        self._publish()

    def _moved(self, node_id: int) -> None:
        """Another broker than before has answered."""
        configured = self._config.broker_id
        if node_id == configured:
            log.info("right_broker", broker_id=configured)
            self._on_problem(None)
            return
        log.error("wrong_broker", upstream=node_id, broker_id=configured)
        self._on_problem(f"the broker behind the listeners is {node_id}, but broker.id is {configured}")

    async def _look_at(self, node_id: int) -> None:
        """Over its INTERNAL listener."""
        if self._cluster is None or node_id not in self._cluster.brokers:
            return
        if self._tls is None:
            security = Security.of(self._config.internal_client_settings())
            self._tls = security, await asyncio.to_thread(security.context)
        async with _connected(self._cluster.brokers[node_id].endpoint, *self._tls, self._client_id) as broker:
            self._asked[node_id] = derive_capabilities(decode_api_versions(await broker.ask(messages.api_versions())))
        self._publish()

    async def _ask(self, request: Request) -> tuple[bytes, str | None]:
        """Return the cluster's answer, and why it is not the own broker's where it is not."""
        assert self._asking is not None
        async with self._turn:
            try:
                return await self._asking.ask(request), self._asking.away
            finally:
                if self._asking.away is not None:
                    self._asking.close()  # the own broker may be back by the next question

    async def _ask_home(self, request: Request) -> bytes:
        answer, away = await self._ask(request)
        if away is not None:
            raise Unreachable(away)
        return answer

    async def _tried(self, what: str, look: Callable[..., Coroutine[Any, Any, None]], *args: int) -> bool:
        """Do it; return whether it went well. Only what is new is logged."""
        try:
            await look(*args)
        except (BrokersideError, OSError, ValueError, *TRUNCATED) as error:
            if what not in self._failures:
                log.warning("fleet_unknown", what=what, error=str(error))
            self._failures[what] = str(error)
            return False
        except Exception:
            log.exception("fleet_watch_failed", what=what)  # a mistake of ours must not end the watch
            return False
        if self._failures.pop(what, None) is not None:
            log.info("fleet_known", what=what)
        return True


def _alive(sightings: Mapping[int, Sighting]) -> set[int]:
    return {node_id for node_id, one in sightings.items() if one.alive}


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    """Wait until it is set, or for that long, and clear it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    event.clear()


@asynccontextmanager
async def _connected(
    endpoint: Endpoint, security: Security, context: ssl.SSLContext | None, client_id: str, source: str | None = None
) -> AsyncIterator[Connection]:
    connection = await Connection.open(endpoint, security, context, client_id, source)
    try:
        yield connection
    finally:
        connection.close()
