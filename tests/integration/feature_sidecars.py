"""Sidecars of this process that follow feature versions on a real cluster, without a data path.

They listen where clients would dial them: an address that refuses is one of a sidecar that was killed.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from proxy.config import Config
from proxy.core.protected_topics import FEATURES
from proxy.features.catalog import SUPPORTED, LevelRange
from proxy.features.records import UPGRADE, FeatureUpdate
from proxy.features.updates import UpdateRequest, UpdateResult
from proxy.features.view import FeaturesView
from proxy.fleet.applied_epoch import AuditLevels
from proxy.fleet.feature_poller import FeaturePoller
from proxy.fleet.fleet_poller import FleetPoller
from proxy.fleet.succession import Succession
from proxy.interceptors.broker_metadata import FleetView
from proxy.local import broker
from proxy.local.cluster import Node
from tests.integration import sidecars


class FeatureSidecar:
    """One sidecar. ``audit``: what its audit does; None: it follows the levels at once, and delivers everything.

    ``inherits``: it takes over from another one, see ``succession``.
    """

    def __init__(
        self, node: Node, supported: Mapping[str, LevelRange] = SUPPORTED, *, inherits: bool = False, **settings: Any
    ) -> None:
        config = {**broker.sidecar_config(node), **settings}
        del config["observer.class.names"], config["audit"]
        self.config = Config.model_validate(config)
        self.views: list[FeaturesView] = []
        self.problems: list[str | None] = []
        self.audit: AuditLevels | None = None
        self._listener: socket.socket | None = None
        self.fleet = FleetPoller(self.config, self._on_fleet_view, lambda problem: None)
        self.features = FeaturePoller(
            self.config,
            self.fleet,
            self._on_features_view,
            self.problems.append,
            self._audit_levels,
            inherits=inherits,
            supported=supported,
        )
        self.succession = Succession(self.fleet, self.features)
        self._inherits = inherits

    def _on_fleet_view(self, view: FleetView) -> None:
        return

    def _on_features_view(self, view: FeaturesView) -> None:
        self.views.append(view)

    async def _audit_levels(self) -> AuditLevels:
        return self.audit or AuditLevels()

    @property
    def state(self) -> str:
        return self.features.status().state

    @property
    def level(self) -> dict[str, int]:
        return dict(self.features.status().in_use)

    async def update(
        self, feature: str, level: int, upgrade_type: int = UPGRADE, *, timeout_ms: int = 20_000, dry_run: bool = False
    ) -> UpdateResult:
        updates = (FeatureUpdate(feature, level, upgrade_type),)
        return await self.features.update(UpdateRequest(1, timeout_ms, updates, validate_only=dry_run))

    def start(self) -> None:
        advertised = self.config.listeners[0].advertised
        self._listener = socket.create_server((advertised.host, advertised.port), reuse_port=True)
        self.fleet.start(registers=not self._inherits)
        self.features.start()
        if not self._inherits:
            self.features.mark_accepting()

    async def hand_over(self, successor: FeatureSidecar) -> None:
        """Drain from now on, and let ``successor`` serve clients, as after a takeover."""
        successor.features.mark_accepting()
        successor.succession.took_over(has_ended=False)
        self.features.resign()
        await self.fleet.close()
        self.features.hand_over(lambda applied: successor.succession.predecessor_applies(*applied))

    async def stop(self) -> None:
        """End it, as a process would at SIGTERM."""
        if self._listener is not None:
            self._listener.close()
        await asyncio.gather(self.features.close(), self.fleet.close(signs_off=True))


@asynccontextmanager
async def running(*sidecars: FeatureSidecar) -> AsyncIterator[None]:
    for one in sidecars:
        one.start()
    try:
        yield
    finally:
        await asyncio.gather(*(one.stop() for one in sidecars))


def delete_topics(admin: AdminClient, *names: str) -> None:
    """Delete those of the topics that there are, and wait until the broker knows of none: it learns of that later."""
    there = admin.list_topics(timeout=60).topics.keys() & {*names}
    for future in admin.delete_topics([*there]).values() if there else ():
        future.result(180)
    sidecars.until(lambda: not admin.list_topics(timeout=60).topics.keys() & there)


def await_ends_of_transactions(bootstrap: str, partition: TopicPartition) -> None:
    """Kafka acknowledges a transaction before its records are there for readers: wait until they are."""
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def end(isolation: IsolationLevel) -> int:
        found = admin.list_offsets({partition: OffsetSpec.latest()}, isolation_level=isolation)
        return int(found[partition].result(180).offset)

    def are_there() -> bool:
        try:
            return end(IsolationLevel.READ_COMMITTED) >= end(IsolationLevel.READ_UNCOMMITTED)
        except KafkaException:
            return False  # a new partition may not have its leader yet

    sidecars.until(are_there)


def committed(bootstrap: str, topic: str = FEATURES) -> list[tuple[bytes, bytes | None]]:
    """The committed records of a topic with one partition."""
    return [(message.key() or b"", message.value()) for message in committed_messages(bootstrap, topic)]


def committed_messages(bootstrap: str, topic: str = FEATURES) -> list[Message]:
    """The same with all that a consumer gets of them."""
    await_ends_of_transactions(bootstrap, TopicPartition(topic, 0))
    return read_to_end(bootstrap, topic)


def read_to_end(bootstrap: str, topic: str) -> list[Message]:
    """The committed records of a topic that are there for readers, in the order of each partition."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "test", "isolation.level": "read_committed"}
    found: list[Message] = []
    with closing(Consumer({**settings, "enable.partition.eof": True, "enable.auto.commit": False})) as consumer:
        left = set(consumer.list_topics(topic, timeout=60).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in left])
        while left:
            for message in consumer.consume(1000, 1.0):
                if (error := message.error()) is None:
                    found.append(message)
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    left.discard(message.partition() or 0)
    return found
