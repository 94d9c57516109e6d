"""A consumer's settings, from its application."""

from __future__ import annotations

from typing import NamedTuple

from proxy.client.consumer.states import LinkState
from proxy.config.values import Endpoint
from proxy.coordinator import wire
from proxy.protocol.private import BASE

LATEST_VERSION = {LinkState.SEEK: 1, LinkState.REGISTER: 2}
"""Of ClusterMetadata and RegisterConsumer; older ones where the other end does not have these."""


class MembershipSettings(NamedTuple):
    """The arguments of a consumer, checked. Times in milliseconds."""

    bootstrap_brokers: tuple[Endpoint, ...]
    group_id: str
    consumer_id: str
    topic_count: str
    client_id: str
    session_timeout_ms: int = 6000
    auto_commit: bool = True
    auto_offset_reset: str = "smallest"
    detached_fetching: bool = True
    """Whether it goes on fetching on its lease where no coordinator is at the coordinator's address any more."""
    protocol_level: int = 2
    api_key: int = BASE
    """The sidecars' ``private.api.key.base``."""

    def request(self, link: LinkState, version: int, correlation_id: int) -> bytes:
        """Return the frame that a consumer in this state sends: ClusterMetadata or RegisterConsumer."""
        if link is LinkState.SEEK:
            asked = wire.ClusterMetadataRequest(self.group_id if version else None)
            body = wire.encode_cluster_metadata_request(version, asked)
            return self._frame(wire.CLUSTER_METADATA, version, correlation_id, body)
        request = wire.RegisterConsumerRequest(
            self.group_id,
            self.consumer_id,
            self.topic_count,
            self.auto_commit,
            self.auto_offset_reset,
            self.session_timeout_ms,
            self.protocol_level,
        )
        body = wire.encode_register_consumer_request(version, request)
        return self._frame(wire.REGISTER_CONSUMER, version, correlation_id, body)

    def _frame(self, key: int, version: int, correlation_id: int, body: bytes) -> bytes:
        return wire.request_frame(key - BASE + self.api_key, version, correlation_id, self.client_id, body)
