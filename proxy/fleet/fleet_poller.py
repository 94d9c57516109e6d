"""Polls the fleet: which brokers run, what each supports, and which of them have a sidecar.

It has tasks on the loop, and the registry's thread if there is a cluster to ask. It reports a ``FleetView`` at once,
from the configuration alone, and again whenever something has changed. No client ever waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import structlog
from msgspec import structs

from proxy.config import Config, Endpoint, hmac_keys
from proxy.core.protected_topics import FEATURES, GROUPS, REGISTRY
from proxy.core.wire import TRUNCATED
from proxy.errors import BrokersideError, describe_os_error
from proxy.fleet import identity, sidecar_record
from proxy.fleet.client import Caller, ClusterClient
from proxy.fleet.connection import BrokerConnection, BrokerUnreachable
from proxy.fleet.internal_security import InternalSecurity
from proxy.fleet.later_run import LaterRun
from proxy.fleet.membership import Member, RegistryContent
from proxy.fleet.registry import OnContent, RegistryThread
from proxy.fleet.schedule import Schedule
from proxy.fleet.security import Security
from proxy.fleet.sidecar_record import STOPPED, SidecarRecord
from proxy.fleet.view import (
    OwnBroker,
    OwnFeatures,
    OwnGroups,
    brokers_without_sidecar,
    build_fleet_view,
    build_own_record,
    build_own_view,
)
from proxy.interceptors.api_versions import decode_api_versions
from proxy.interceptors.broker_metadata import FleetView
from proxy.interceptors.tags import BrokerCapabilities, derive_capabilities
from proxy.rpc import messages
from proxy.rpc.messages import ClusterFacts, RpcRequest

MESSAGE_MAX_BYTES = "message.max.bytes"

VERSIONS_INTERVAL = 30.0
"""Seconds between two ApiVersions requests to a broker while no broker and no sidecar starts or stops."""

FIRST_RETRY, LAST_RETRY = 1.0, 10.0
"""Seconds until a failed poll is repeated: from the first number to the second, doubled with each failure."""

ADDRESSES_UNKNOWN = "rewrite.addresses: the addresses of the other sidecars are not known yet"
"""Until then clients get names that do not resolve in place of the addresses of other brokers."""

log = structlog.get_logger(__name__)


class FleetPoller:
    """Polls from ``start`` to ``close``. Call ``refresh`` when a broker's configuration may have changed."""

    def __init__(
        self,
        config: Config,
        on_view: Callable[[FleetView], None],
        on_problem: Callable[[str | None], None],
        *,
        caller: Caller | None = None,
        registry: Callable[[OnContent], RegistryThread] | None = None,
    ) -> None:
        """Both callbacks are called on the loop.

        ``on_problem`` gets what keeps the sidecar from being ready, and None when that has ended. Without
        ``internal.bootstrap.servers`` the view has only the sidecar's own broker.
        """
        self._config = config
        self._on_view = on_view
        self._on_problem = on_problem
        self._client_id = f"brokerside-fleet-{config.broker_id}"
        self.boot_id = uuid.uuid4().hex
        """Of this run, in the registry."""
        self.features_leader: int | None = None
        """Broker id of the leader of the topic of features; None while it is not known."""
        self.group_leaders: Sequence[int | None] = ()
        """The same of each partition of the topic of groups; empty while it is not known."""
        self._on_registry: list[Callable[[RegistryContent, bool], None]] = []
        self._started_ms = int(time.time() * 1000)
        self._own = OwnBroker(config.broker_id)
        self._choose_listeners(config)
        self._is_own_broker = not self._can_identify_broker  # that the broker is the one which is configured
        self._cluster: ClusterFacts | None = None
        self._members: Mapping[int, Member] | None = None
        self._versions: dict[int, BrokerCapabilities] = {}
        self._protected: set[bytes] = set()  # ids of the sidecars' own topics
        self._has_topic_ids = False
        self._published: FleetView | None = None
        self._known_brokers = {config.broker_id}  # that the cluster has, or had: one that restarts keeps its address
        self._failures: dict[str, str] = {}
        self._wrong_broker: str | None = None
        self._was_member = (
            self._can_identify_broker
        )  # whether the cluster has had the own broker; asked for without PLAINTEXT
        self._absent: str | None = None
        self._unidentified = identity.listeners_to_identify(config)  # listeners not known to be the own broker's
        self._claimed_by_other: str | None = None
        self._problem: str | None = None  # as of the last call of ``on_problem``
        self._configuration_altered, self._fleet_changed = asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._call_lock = asyncio.Lock()
        self._security = InternalSecurity(config.internal_client_settings())
        self._caller: Caller | None = None
        self._registry: RegistryThread | None = None
        self._registers = True
        self._later_run = LaterRun(self._own_record, self._publish)
        if config.internal_bootstrap_servers is not None:
            self._caller = caller or ClusterClient(config, self._client_id)
            authenticator = hmac_keys.authenticator(hmac_keys.REGISTRY, config.registry.hmac_keys_file)
            settings = config.internal_client_settings()
            make = registry or (lambda on_content: RegistryThread(settings, self._client_id, on_content, authenticator))
            self._registry = make(self._on_content)
        self._awaits_addresses = bool(self._rewriting)

    def _choose_listeners(self, config: Config) -> None:
        """Choose the listener over whose upstream the own broker is asked, and those that rewrite addresses."""
        anonymous = [one for one in config.listeners if one.is_readable and one.upstream_tls is None]
        self._anonymous_listener = min(anonymous, key=lambda one: one.has_sasl, default=None)
        self._can_identify_broker = self._anonymous_listener is not None and not self._anonymous_listener.has_sasl
        has_registry = config.internal_bootstrap_servers is not None
        self._rewriting = [one for one in config.listeners if one.rewrite_addresses] if has_registry else []

    def start(self, *, registers: bool = True) -> None:
        """Start to poll, on the running loop. Without ``registers`` this sidecar registers once ``register`` is
        called."""
        self._registers = registers
        self._publish()
        self._schedule = Schedule(asyncio.get_running_loop().time())
        work = [self._run_versions()]
        if self._registry is not None:
            self._registry.start()
            work += [self._run_brokers(), self._run_topics(), self._run_configuration()]
        self._tasks = [asyncio.create_task(one) for one in work]

    def register(self) -> None:
        """Register from now on: the predecessor, if there was one, does not any more."""
        self._registers = True
        self._publish()

    def refresh(self) -> None:
        """Poll the own broker's configuration now, and some more times soon: it may just have been changed."""
        self._schedule.refresh(asyncio.get_running_loop().time())
        self._configuration_altered.set()

    def reconfigure(self, config: Config) -> None:
        """Take over changed tags, addresses and listeners. The connection to the cluster stays as it is."""
        self._config = config
        self._choose_listeners(config)
        self._fleet_changed.set()
        self._publish()

    @property
    def registry_dropped(self) -> Mapping[str, int]:
        """Numbers of records of the registry that were dropped, by reason."""
        return {} if self._registry is None else self._registry.dropped

    @property
    def broker_id_taken(self) -> str:
        """Which other sidecar, started later, has the same ``broker.id``; empty if none has."""
        return self._later_run.description

    def on_registry(self, callback: Callable[[RegistryContent, bool], None]) -> None:
        """Call ``callback`` with what the registry has, whenever some of it was read, and whether all was."""
        self._on_registry.append(callback)

    def read_registry(self, done: Callable[[], None]) -> None:
        """Call ``done`` when all is read, and was reported, that the registry has after this call. Needs a registry."""
        assert self._registry is not None
        self._registry.read_to_end(done)

    def update_features(self, features: OwnFeatures) -> None:
        """Register other facts about the features of this sidecar."""
        if features != self._own.features:
            self._own = self._own._replace(features=features)
            self._publish()

    def update_groups(self, groups: OwnGroups) -> None:
        """Register other facts about the groups that this sidecar coordinates."""
        if groups != self._own.groups:
            self._own = self._own._replace(groups=groups)
            self._publish()

    async def close(self, *, signs_off: bool = False) -> None:
        """Stop to poll, and close all connections. ``signs_off``: no other process takes over from this one."""
        if signs_off and self._registry is not None:
            self._registry.sign_off(sidecar_record.encode(structs.replace(self._own_record(), state=STOPPED)))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._later_run.close()
        if self._caller is not None:
            self._caller.close()
        if self._registry is not None:
            await self._registry.close()

    def _on_content(self, content: RegistryContent, end: bool) -> None:
        self._later_run.read(content.sidecars.get(self._config.broker_id))
        self._update_members(content.sidecars, end)
        for callback in self._on_registry:
            callback(content, end)

    def _update_members(self, seen: Mapping[int, Member], end: bool) -> None:
        if not end and self._members is None:
            return
        before, self._members = self._members, seen
        if self._members == before:
            return
        if before is None or _running_ids(before) != _running_ids(self._members):
            log.info("sidecars", running=sorted(_running_ids(self._members)))
            self._fleet_changed.set()
        self._publish()

    def _publish(self) -> None:
        """Write this sidecar's record, and report the view if it has changed."""
        is_itself = self._is_own_broker and self._identity_problem is None and not self._later_run.runs
        if self._registry is not None and is_itself and self._registers:
            self._registry.register(self._own.node_id, sidecar_record.encode(self._own_record()))
        elif self._registry is not None:
            self._registry.withdraw()
        running = None if self._cluster is None else self._cluster.brokers
        view = build_fleet_view(build_own_view(self._config, self._own), running, self._members, self._versions)
        view = structs.replace(view, protected=tuple(sorted(self._protected)))
        if view != self._published:
            self._published = view
            self._on_view(view)
        self._awaits_addresses = self._awaits_addresses and not self._knows_addresses()
        self._report_problem()

    def _own_record(self) -> SidecarRecord:
        return build_own_record(self._config, self._own, boot_id=self.boot_id, started_ms=self._started_ms)

    def _knows_addresses(self) -> bool:
        """Whether the other sidecars were read, or the configuration has the addresses of all other brokers."""
        if self._cluster is None or self._members is not None:
            return self._cluster is not None
        others = self._cluster.brokers.keys() - {self._config.broker_id}
        return all(others <= listener.rewrite_addresses_map.keys() for listener in self._rewriting)

    @property
    def _identity_problem(self) -> str | None:
        """Why ``broker.id`` is not that of the broker behind the listeners; None if nothing says so."""
        return self._wrong_broker or self._absent or self._claimed_by_other

    def _report_problem(self) -> None:
        """Report what keeps the sidecar from being ready, if it has changed."""
        problem = self._identity_problem or (ADDRESSES_UNKNOWN if self._awaits_addresses else None)
        if problem != self._problem:
            self._problem = problem
            self._on_problem(problem)

    async def _run_brokers(self) -> None:
        """Poll which brokers run."""
        wait = self._config.metadata_watch_ms / 1000
        while True:
            every = self._config.metadata_watch_ms / 1000
            wait = every if await self._attempt("brokers", self._poll_brokers) else min(2 * wait, LAST_RETRY)
            await asyncio.sleep(wait if self._absent is None else min(wait, FIRST_RETRY))

    async def _poll_brokers(self) -> None:
        found = messages.decode_cluster((await self._call(messages.cluster_request()))[0])
        before, self._cluster = self._cluster, found
        if not self._was_member:  # a member that restarts is missing for a while, too
            self._was_member = self._config.broker_id in found.brokers
            self._absent = None if self._was_member else identity.broker_absent(self._config.broker_id, found.brokers)
            self._publish()
        if before == found:
            return
        if before is None or before.brokers.keys() != found.brokers.keys():
            log.info("brokers", running=sorted(found.brokers))
            self._fleet_changed.set()
            self._known_brokers |= found.brokers.keys()
            if self._registry is not None:
                self._registry.restrict_to(self._known_brokers)
        mine = found.brokers.get(self._own.node_id)
        self._own = self._own._replace(cluster_id=found.cluster_id, rack=mine.rack if mine is not None else None)
        self._versions = {node_id: said for node_id, said in self._versions.items() if node_id in found.brokers}
        self._publish()

    async def _run_topics(self) -> None:
        """Poll the sidecars' own topics: their ids, since a Produce request may name a topic by its id alone, and the
        leaders of those of features and groups."""
        while True:
            done = await self._attempt("topic ids", self._poll_topics)
            await asyncio.sleep(self._config.metadata_watch_ms / 1000 if done else LAST_RETRY)

    async def _poll_topics(self) -> None:
        if not self._has_topic_ids:
            supported = decode_api_versions((await self._call(messages.api_versions_request()))[0])
            first, last = supported.get(messages.METADATA, (0, 0))
            self._has_topic_ids = first <= messages.TOPIC_IDS_SINCE <= last
            if not self._has_topic_ids:
                return
        self._has_topic_ids = False  # unless it answers: it may be another broker the next time
        names = {REGISTRY, self._config.audit.topic}
        if self._config.features_disabled is None or self._config.internal_topics_protected:
            # Without features, too: other sidecars may have them, and no client may write their topic past this one.
            names.add(FEATURES)
        if self._is_coordinating():
            names.add(GROUPS)
        found = messages.decode_topics((await self._call(messages.topics_request(sorted(names))))[0])
        self._has_topic_ids = True
        self.features_leader = next(iter(found[FEATURES].leaders), None) if FEATURES in found else None
        self.group_leaders = found[GROUPS].leaders if GROUPS in found else ()
        ids = {one.id for one in found.values()}
        if ids != self._protected:
            self._protected = ids
            self._publish()

    def _is_coordinating(self) -> bool:
        """Whether this sidecar, or another one, coordinates groups."""
        others = (self._members or {}).values()
        return self._config.coordinator.enabled or any(one.alive and one.record.coordinates for one in others)

    async def _run_configuration(self) -> None:
        """Poll the configuration of the own broker."""
        loop = asyncio.get_running_loop()
        while True:
            wait = self._schedule.next_at() - loop.time()
            if wait > 0:
                await _wait_until_set(self._configuration_altered, wait)
                continue
            began = loop.time()
            done = await self._attempt("configuration", self._poll_configuration)
            (self._schedule.succeeded if done else self._schedule.failed)(began, loop.time())

    async def _poll_configuration(self) -> None:
        answer = await self._call_own_broker(
            messages.describe_broker_request(self._config.broker_id, [MESSAGE_MAX_BYTES])
        )
        self._own = self._own._replace(message_max_bytes=messages.decode_broker_configs(answer).get(MESSAGE_MAX_BYTES))
        self._publish()

    async def _run_versions(self) -> None:
        """Poll what the own broker, and those without a sidecar, support."""
        retry = FIRST_RETRY
        while True:
            polls = [self._attempt("own broker", self._poll_own_broker)]
            if self._cluster is not None and self._members is not None:
                others = brokers_without_sidecar(self._cluster.brokers, self._members)
                polls += [
                    self._attempt(f"broker {one}", self._poll_broker, one) for one in others if one != self._own.node_id
                ]
            done = all(await asyncio.gather(*polls))
            if self._unidentified and self._cluster is not None and self._config.broker_id in self._cluster.brokers:
                done = await self._attempt("identity", self._identify) and done and self._claimed_by_other is None
            await _wait_until_set(self._fleet_changed, VERSIONS_INTERVAL if done else retry)
            retry = FIRST_RETRY if done else min(2 * retry, LAST_RETRY)

    async def _poll_own_broker(self) -> None:
        """Ask over a listener's upstream: that is the broker which clients of this sidecar reach."""
        node_id = self._config.broker_id
        listener = self._anonymous_listener
        if listener is not None:
            source = listener.upstream_source
            async with _connected(listener.upstream, Security(), None, self._client_id, source) as upstream:
                supported = decode_api_versions(await upstream.call(messages.api_versions_request()))
                if self._can_identify_broker:
                    other = messages.decode_other_broker(
                        await upstream.call(messages.describe_broker_request(node_id, [MESSAGE_MAX_BYTES]))
                    )
                    node_id = node_id if other is None else other
        elif self._caller is not None:
            supported = decode_api_versions(await self._call_own_broker(messages.api_versions_request()))
        else:
            return
        if node_id != self._own.node_id:
            self._on_other_broker(node_id)
        self._own = self._own._replace(node_id=node_id, said=derive_capabilities(supported))
        self._is_own_broker = node_id == self._config.broker_id
        self._publish()

    def _on_other_broker(self, node_id: int) -> None:
        """Report that another broker than before has answered."""
        configured = self._config.broker_id
        if node_id == configured:
            log.info("right_broker", broker_id=configured)
            self._wrong_broker = None
        else:
            log.error("wrong_broker", upstream=node_id, broker_id=configured)
            self._wrong_broker = f"the broker behind the listeners is {node_id}, but broker.id is {configured}"
        self._report_problem()

    async def _poll_broker(self, node_id: int) -> None:
        """Ask the broker ``node_id`` over its INTERNAL listener."""
        if self._cluster is None or node_id not in self._cluster.brokers:
            return
        async with self._broker_connection(self._cluster.brokers[node_id].endpoint) as broker:
            self._versions[node_id] = derive_capabilities(
                decode_api_versions(await broker.call(messages.api_versions_request()))
            )
        self._publish()

    @asynccontextmanager
    async def _broker_connection(self, endpoint: Endpoint) -> AsyncIterator[BrokerConnection]:
        """Connect to a broker of the cluster over its INTERNAL listener."""
        async with _connected(endpoint, *await self._security.current(), self._client_id) as broker:
            yield broker

    async def _identify(self) -> None:
        """Find out whether another broker advertises what a listener's broker should advertise.

        A listener that the own broker advertises is right, and not asked about again.
        """
        assert self._cluster is not None
        brokers = self._cluster.brokers
        asked = [identity.ADVERTISED_LISTENERS]
        mine = self._config.broker_id
        answer = await self._call_own_broker(messages.describe_broker_request(mine, asked))
        own = identity.endpoints_of(messages.decode_broker_configs(answer).get(identity.ADVERTISED_LISTENERS, ""))
        self._unidentified = [one for one in self._unidentified if one.advertised not in own]
        problem = None
        for node_id in brokers.keys() - {mine} if self._unidentified else ():
            async with self._broker_connection(brokers[node_id].endpoint) as broker:
                answer = await broker.call(messages.describe_broker_request(node_id, asked))
            found = messages.decode_broker_configs(answer).get(identity.ADVERTISED_LISTENERS, "")
            problem = problem or identity.advertised_by_other(
                self._config, self._unidentified, node_id, identity.endpoints_of(found)
            )
        if problem != self._claimed_by_other:
            self._claimed_by_other = problem
            self._publish()

    async def _call(self, request: RpcRequest) -> tuple[bytes, str | None]:
        """Return the response, and why it is not from the own broker; None if it is."""
        assert self._caller is not None
        async with self._call_lock:
            try:
                return await self._caller.call(request), self._caller.away_reason
            finally:
                if self._caller.away_reason is not None:
                    self._caller.close()  # the own broker may be back by the next request

    async def _call_own_broker(self, request: RpcRequest) -> bytes:
        answer, away = await self._call(request)
        if away is not None:
            raise BrokerUnreachable(away)
        return answer

    async def _attempt(self, what: str, poll: Callable[..., Coroutine[Any, Any, None]], *args: int) -> bool:
        """Run ``poll``; return whether it succeeded. The first of several failures is logged, and the next success."""
        try:
            await poll(*args)
        except (BrokersideError, OSError, ValueError, *TRUNCATED) as error:
            if what not in self._failures:
                log.warning("fleet_unknown", what=what, error=describe_os_error(error))
            self._failures[what] = describe_os_error(error)
            return False
        except Exception:
            log.exception("fleet_poller_failed", what=what)  # a mistake of ours must not end the task
            return False
        if self._failures.pop(what, None) is not None:
            log.info("fleet_known", what=what)
        return True


def _running_ids(members: Mapping[int, Member]) -> set[int]:
    return {node_id for node_id, one in members.items() if one.alive}


async def _wait_until_set(event: asyncio.Event, seconds: float) -> None:
    """Wait until ``event`` is set, or for ``seconds``, and clear it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    event.clear()


@asynccontextmanager
async def _connected(
    endpoint: Endpoint, security: Security, context: ssl.SSLContext | None, client_id: str, source: str | None = None
) -> AsyncIterator[BrokerConnection]:
    connection = await BrokerConnection.open(endpoint, security, context, client_id, source)
    try:
        yield connection
    finally:
        connection.close()
