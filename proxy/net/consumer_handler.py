"""The connection handler of a sidecar that coordinates consumer groups."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from proxy.config import Config
from proxy.core.causes import Cause
from proxy.limits.principal_quotas import Logins
from proxy.net.connection_handler import ConnectionHandler
from proxy.net.consumer_handover import HandedConnection
from proxy.net.consumers import ConsumerConnections
from proxy.net.open_connections import ConnectionList, KafkaConnection


class ConsumerHandler:
    """Serves what ``handler`` serves, and the connections of consumers. As ``ConnectionHandler``.

    Consumers are never evicted as the longest idle ones, since their coordinator pings them, nor held for a limit of
    their principal; their idle time and their age have no bounds of the configuration.
    """

    def __init__(self, handler: ConnectionHandler, consumers: ConsumerConnections) -> None:
        self._handler = handler
        self._consumers = consumers
        self.listener_counters = handler.listener_counters
        self.on_capacity = handler.on_capacity
        self.handle_connection = handler.handle_connection
        self.hold_connection = handler.hold_connection
        self.count_responses = handler.count_responses
        self.close_idlest = handler.close_idlest
        self.report_throttles = handler.report_throttles
        self.prepare_config = handler.prepare_config
        self.discard_config = handler.discard_config
        self.update_fleet_view = handler.update_fleet_view
        self.update_features_view = handler.update_features_view
        self.update_groups_view = handler.update_groups_view
        self.on_feature_update = handler.on_feature_update
        self.on_consumer = handler.on_consumer
        self.report_transition = handler.report_transition
        self.snapshot = handler.snapshot
        self._on_connection_closed: Callable[[int], None] = lambda number: None
        self._closing: dict[int, Cause] = {}
        """Connections that were to be closed. Their worker may have handed them over before it hears of it."""
        handler.on_connection_closed(self._on_closed)
        consumers.on_connection_closed = self._on_closed
        handler.on_consumer(self._take_consumer)

    @property
    def process_ended_at(self) -> float:
        """As ``ConnectionHandler``."""
        return self._handler.process_ended_at

    @property
    def is_available(self) -> bool:
        """As ``ConnectionHandler``."""
        return self._handler.is_available

    @property
    def degradation(self) -> str:
        """As ``ConnectionHandler``."""
        return self._handler.degradation

    @property
    def is_full(self) -> bool:
        """As ``ConnectionHandler``."""
        return self._handler.is_full

    @property
    def missing_descriptors(self) -> int:
        """As ``ConnectionHandler``."""
        return self._handler.missing_descriptors

    def on_connection_closed(self, callback: Callable[[int], None]) -> None:
        """As ``ConnectionHandler``."""
        self._on_connection_closed = callback

    def report_logins(self, callback: Callable[[Logins, bool], None] | None) -> None:
        """As ``ConnectionHandler``."""
        self._handler.report_logins(callback)
        if callback is not None and (earlier := self._consumers.logins()):
            callback(earlier, True)

    def close_connection(self, number: int, cause: Cause) -> bool:
        """As ``ConnectionHandler``."""
        self._closing[number] = cause
        if self._handler.close_connection(number, cause):
            return True
        self._closing.pop(number, None)
        return self._consumers.end(number, cause)

    def _on_closed(self, number: int) -> None:
        self._closing.pop(number, None)
        self._on_connection_closed(number)

    def _take_consumer(
        self, handed: HandedConnection, client: socket.socket | None, broker: socket.socket | None
    ) -> None:
        self._consumers.take(handed, client, broker)
        if (cause := self._closing.pop(handed.number, None)) is not None:
            self._consumers.end(handed.number, cause)

    async def find_connection(self, number: int) -> KafkaConnection | None:
        """As ``ConnectionHandler``."""
        return self._consumers.find(number) or await self._handler.find_connection(number)

    async def list_connections(self) -> ConnectionList:
        """As ``ConnectionHandler``."""
        found = await self._handler.list_connections()
        found.connections += await self._consumers.describe_all()
        return found

    def update_config(self, config: Config) -> None:
        """As ``ConnectionHandler``."""
        self._handler.update_config(config)
        self._consumers.update_config(config)

    async def stop(self, abort: asyncio.Event, *, spread: bool = False) -> None:
        """Close the connections of consumers, and then as ``ConnectionHandler``. The observers hear of both."""
        await self._consumers.stop()
        await self._handler.stop(abort, spread=spread)
