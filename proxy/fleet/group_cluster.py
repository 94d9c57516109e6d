"""What the coordinator of groups has to do with the cluster: the events it hears of it, and its effects on it.

Everything is on the loop; librdkafka's calls are on threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import structlog

from proxy.config import Config, hmac_keys
from proxy.coordinator.effects import (
    ClosePartition,
    ConfirmClaim,
    FindOrdinaryMembers,
    HoldPartition,
    OpenPartition,
    ReadCommittedOffsets,
    WatchTopics,
    WriteRecords,
)
from proxy.coordinator.events import EndpointsChanged, Event, TopicFactsOfGroups, TopicsChanged
from proxy.coordinator.view import GroupsView
from proxy.coordinator.wire import EndpointEntry
from proxy.errors import BrokersideError
from proxy.features.view import FeaturesView
from proxy.fleet.client import ClusterClient
from proxy.fleet.fleet_poller import FleetPoller
from proxy.fleet.group_metadata import UnknownGroupMetadata, group_metadata, read_template
from proxy.fleet.group_partitions import GroupKafka, GroupPartition
from proxy.fleet.group_poller import GroupPoller
from proxy.fleet.group_queries import GroupQueries
from proxy.fleet.topic_spec import GROUPS_TOPIC
from proxy.fleet.topic_watch import TopicWatch
from proxy.interceptors.broker_metadata import FleetView
from proxy.rpc.topic_messages import DescribedTopic

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

FIRST_RETRY, LAST_RETRY = 1.0, 10.0
"""Seconds until the topic of groups is asked for again: from the first number to the second, doubled each time."""

LAST_WRITES_TIMEOUT = 2.0
"""Seconds that ``close`` waits for what was to be written before."""

ClusterEffect = (
    OpenPartition
    | ClosePartition
    | HoldPartition
    | WriteRecords
    | ConfirmClaim
    | ReadCommittedOffsets
    | FindOrdinaryMembers
    | WatchTopics
)
"""The effects that ``perform`` takes."""

log = structlog.get_logger(__name__)


class GroupCluster:
    """Runs from ``start`` to ``close``. Needs a cluster, ``features.enabled`` and ``coordinator.enabled``."""

    def __init__(
        self,
        config: Config,
        fleet: FleetPoller,
        on_event: Callable[[Event], None],
        on_view: Callable[[GroupsView], None],
    ) -> None:
        """Both callbacks are called on the loop's thread, never from within a call of this class.

        ``on_event``: gets PartitionAssigned, PartitionOpened, PartitionLost, WriteCommitted, WriteAborted,
        CommittedOffsetsRead, OrdinaryMembersFound, TopicsChanged, EndpointsChanged. Times in them are those of
        ``proxy.fleet.boottime.boottime_ms``. ``on_view``: gets each new view of the coordinators.
        """
        self._config = config
        self._boot_id = fleet.boot_id
        self._loop = asyncio.get_running_loop()
        self._on_event = on_event
        client_id = f"brokerside-groups-{config.broker_id}"
        self._settings = {**config.internal_client_settings(), "client.id": client_id}
        self._poller = GroupPoller(
            config.broker_id,
            fleet,
            self._report,
            lambda view: self._later(on_view, view),
            lambda partition, done: self._queries.check_empty(partition, done),
        )
        self._queries = GroupQueries(config, client_id, self._report)
        self._topics = TopicWatch(ClusterClient(config, client_id), self._on_topics, config.metadata_watch_ms / 1000)
        self._kafka: GroupKafka | None = None
        self._partitions: dict[int, GroupPartition] = {}
        self._closing: dict[int, GroupPartition] = {}  # the last one of each that was closed
        self._fleet_view: FleetView | None = None
        self._endpoints: Mapping[str, tuple[EndpointEntry, ...]] = {}
        self._closed = threading.Event()

    def start(self) -> None:
        """Start, on the running loop. Groups are coordinated once levels are finalized (``update_features``)."""
        self._poller.start()
        self._topics.start()
        threading.Thread(target=self._prepare, name="group-topic", daemon=True).start()

    def perform(self, effect: ClusterEffect) -> None:
        """Carry out an effect of the coordinator. Its event follows later, never from within this call."""
        match effect:
            case OpenPartition(partition):
                self._open(partition)
            case ClosePartition(partition):
                self._close(partition)
            case HoldPartition(partition, claim):
                self._poller.hold(partition, claim)
            case WriteRecords():
                if (written := self._partitions.get(effect.partition)) is not None:
                    written.write(effect)
            case ConfirmClaim(partition):
                if (confirmed := self._partitions.get(partition)) is not None:
                    confirmed.confirm()
            case ReadCommittedOffsets():
                self._queries.read_committed_offsets(effect)
            case FindOrdinaryMembers(group):
                self._queries.find_ordinary_members(group)
            case WatchTopics(number, names, all_topics):
                self._topics.watch(number, names, all_topics=all_topics)

    def update_features(self, view: FeaturesView) -> None:
        """Take over the finalized levels, and over how many partitions groups are spread. Called with each view."""
        self._poller.update_features(view)

    def update_fleet_view(self, view: FleetView) -> None:
        """Report the addresses of brokers, if they have changed (EndpointsChanged). Called with each view."""
        self._fleet_view = view
        endpoints = {one.name: endpoints_of(view, one.name) for one in self._config.listeners}
        if endpoints != self._endpoints:
            self._endpoints = endpoints
            self._report(EndpointsChanged(endpoints))

    def reconfigure(self, config: Config) -> None:
        """Take over a changed ``metadata.watch.ms`` and changed listeners."""
        self._config = config
        self._topics.update_interval(config.metadata_watch_ms / 1000)
        if self._fleet_view is not None:
            self.update_fleet_view(self._fleet_view)

    def expect_coordinator(self) -> None:
        """Note that a client has just asked for a coordinator (ClusterMetadata): one may have been killed."""
        self._poller.expect_coordinator()

    def refresh_topics(self) -> None:
        """Ask for the watched topics now, and some more times soon: one may just have been altered."""
        self._topics.refresh()

    def evacuate(self) -> None:
        """Let other sidecars hold all partitions, until ``return_`` is called (PartitionLost ``evacuated``)."""
        self._poller.evacuate()

    def return_(self) -> None:
        """Hold partitions again after ``evacuate``."""
        self._poller.return_()

    def close_partitions(self) -> None:
        """Close all partitions that are open, as ClosePartition does."""
        for partition in list(self._partitions):
            self._close(partition)

    @property
    def is_evacuated(self) -> bool:
        """Whether ``evacuate`` is in force."""
        return self._poller.is_evacuated

    async def resign(self) -> None:
        """Let other sidecars hold all partitions, for good: PartitionLost ``stopping`` for each, within 2 s."""
        await self._poller.resign()

    async def close(self) -> None:
        """Stop, after ``resign``."""
        self._closed.set()
        self.close_partitions()
        await asyncio.to_thread(self._join)
        await self._queries.close()
        await self._poller.close()
        await self._topics.close()

    def _report(self, event: Event) -> None:
        self._later(self._on_event, event)

    def _later(self, callback: Callable[..., None], *args: object) -> None:
        self._loop.call_soon(callback, *args)

    def _on_topics(self, topics: Mapping[str, DescribedTopic], watch: int) -> None:
        self._report(TopicsChanged(watch, {name: TopicFactsOfGroups(*one) for name, one in topics.items()}))

    def _open(self, partition: int) -> None:
        assert self._kafka is not None
        self._close(partition)
        opened = self._partitions[partition] = GroupPartition(partition, self._kafka, self._on_event, self._on_lost)
        opened.open()

    def _close(self, partition: int) -> None:
        if (closed := self._partitions.pop(partition, None)) is not None:
            closed.close()
            self._closing[partition] = closed

    def _join(self) -> None:
        """Wait until what was to be written at last is."""
        until = time.monotonic() + LAST_WRITES_TIMEOUT
        for partition in self._closing.values():
            partition.join(max(0.0, until - time.monotonic()))

    def _on_lost(self, partition: int, reason: str) -> None:
        self._close(partition)
        self._poller.lost(partition, reason)

    def _prepare(self) -> None:
        """Make the topic, if it does not exist, and whatever partitions are opened with; on a thread of its own."""
        retry, logged = FIRST_RETRY, False
        while not self._closed.is_set():
            try:
                kafka = self._make_kafka()
            except UnknownGroupMetadata as error:
                log.error("groups_disabled", error=str(error))
                return
            except BrokersideError as error:
                if not logged:
                    log.warning("groups_unavailable", error=str(error))
                logged = True
            except Exception:
                log.exception("group_cluster_failed")  # a mistake of ours must not end the thread
            else:
                if logged:
                    log.info("groups_back")
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    self._loop.call_soon_threadsafe(self._on_prepared, kafka)
                return
            self._closed.wait(retry)
            retry = min(2 * retry, LAST_RETRY)

    def _make_kafka(self) -> GroupKafka:
        """Raises TopicError, UnknownGroupMetadata."""
        return GroupKafka(
            self._settings,
            hmac_keys.authenticator(hmac_keys.GROUPS, self._config.registry.hmac_keys_file),
            self._make_topic(),
            group_metadata(read_template()),
            self._config.broker_id,
            self._boot_id,
            self._config.coordinator.state_write_timeout_ms,
        )

    def _make_topic(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        from observers.kafka_admin import RdkafkaLog
        from proxy.fleet.topic_client import common_settings, raising
        from proxy.fleet.topic_creation import create_topic

        with raising(GROUPS_TOPIC.name):
            admin = AdminClient(common_settings(self._settings), logger=RdkafkaLog())
            create_topic(GROUPS_TOPIC._replace(partitions=self._config.coordinator.partitions), admin)
        return admin

    def _on_prepared(self, kafka: GroupKafka) -> None:
        if self._closed.is_set():
            return
        self._kafka = kafka
        self._poller.mark_ready()


def endpoints_of(view: FleetView, listener: str) -> tuple[EndpointEntry, ...]:
    """Return the brokers that run, as clients of a listener dial them. ``listener``: its name, in any case."""
    dialled = {one.node_id: one.addresses.get(listener.lower()) for one in view.brokers if one.running}
    return tuple(
        EndpointEntry(node_id, *address) for node_id, address in sorted(dialled.items()) if address is not None
    )
