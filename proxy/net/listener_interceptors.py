"""The interceptors of one listener, and what they know about the broker and the fleet."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from proxy.config import Config, Listener
from proxy.coordinator.view import GroupsDirectory
from proxy.core.apis import api_name
from proxy.core.interceptor import Interceptor, InterceptorChain, Request
from proxy.core.protected_topics import ProtectedTopics
from proxy.features.updates import UpdateFeatures
from proxy.features.view import FeaturesDirectory
from proxy.interceptors import address_rewriter, topic_protection
from proxy.interceptors.address_rewriter import AddressRewriter
from proxy.interceptors.api_versions import ApiVersionsInterceptor
from proxy.interceptors.broker_metadata import BrokerMetadataInterceptor, FleetDirectory, HostPort
from proxy.interceptors.consumer_groups import ConsumerGroupsInterceptor
from proxy.interceptors.ip_quotas import IpQuotas
from proxy.interceptors.supported_versions import SupportedVersions, VersionRange
from proxy.interceptors.topic_protection import TopicProtection
from proxy.interceptors.unsupported_requests import UnsupportedRequests
from proxy.interceptors.update_features import UpdateFeaturesInterceptor
from proxy.net.api_versions_probe import ApiVersionsProbe
from proxy.net.upstream import Upstream
from proxy.protocol.private import moved
from proxy.telemetry import RateLimitedLogger

log = structlog.get_logger(__name__)

MAX_CLIENT_ID = 64
"""Characters of a client id in a log line."""


class ListenerInterceptors:
    """The interceptors of one listener in one process. Belongs to the event loop's thread.

    ``chain``: passed to the sessions of the listener. ``fleet``, ``features`` and ``groups``: what the process
    knows.
    ``update_features``: asks the feature controller.
    """

    def __init__(
        self,
        config: Config,
        listener: Listener,
        upstream: Upstream,
        fleet: FleetDirectory,
        features: FeaturesDirectory,
        groups: GroupsDirectory,
        update_features: UpdateFeatures,
        rate_limited: RateLimitedLogger,
    ) -> None:
        self.listener = listener
        self._fleet = fleet
        self._features = features
        self._keeps_features = bool(features.view.supported)
        self._rate_limited = rate_limited
        self._addresses: dict[int, HostPort] = {}
        base = config.private_api_key_base
        private = {key: api.versions for key, api in moved(base, coordinator=config.coordinator.enabled).items()}
        self._supported = SupportedVersions(private, self._max_version)
        self._unsupported = UnsupportedRequests(
            self._supported,
            listener.unsupported_request_response,
            config.unsupported_request_max_consecutive,
            self._on_unsupported,
        )
        self._topics = ProtectedTopics([config.audit.topic])
        self._protected = TopicProtection(
            self._topics,
            self._on_denied,
            enabled=config.internal_topics_protected,
            inter_broker=listener.inter_broker,
        )
        self._ip_quotas = IpQuotas(in_file=config.quotas.ip_store == "file")
        self._versions = ApiVersionsInterceptor(self._supported, features, self._on_versions)
        interceptors: list[Interceptor] = [
            BrokerMetadataInterceptor(
                fleet, listener.name, base, open_to_all=config.broker_metadata_before_authentication
            ),
            self._unsupported,
            self._protected,
            self._ip_quotas,
            UpdateFeaturesInterceptor(features, self._supported, update_features),
            self._versions,
        ]
        if config.coordinator.enabled:
            hands_over = listener.tls is None and listener.upstream_tls is None
            interceptors.append(ConsumerGroupsInterceptor(groups, fleet, listener.name, base, hands_over=hands_over))
        if listener.rewrite_addresses:
            interceptors.append(AddressRewriter(self._addresses, self._on_unmapped))
        self.apply_fleet_view()
        self.chain = InterceptorChain(interceptors)
        self.versions_probe = ApiVersionsProbe(upstream, self._on_versions)

    def apply_fleet_view(self) -> None:
        """Use the current view of the fleet: its protected topics and its addresses.

        Configured addresses take precedence over those that other sidecars have published.
        """
        self._topics.ids.clear()
        self._topics.ids.update(self._fleet.view.protected)
        name = self.listener.name.lower()
        written = {one.node_id: one.addresses[name] for one in self._fleet.view.brokers if name in one.addresses}
        configured = {node: (to.host, to.port) for node, to in self.listener.rewrite_addresses_map.items()}
        own = self.listener.advertised
        addresses = written | configured | {self._fleet.view.node_id: (own.host, own.port)}
        for node_id, (host, port) in addresses.items():
            before = self._addresses.get(node_id, (host, port))
            if before != (host, port):
                self._rate_limited.warning(
                    "registry_address_changed",
                    listener=self.listener.name,
                    node_id=node_id,
                    address=f"{host}:{port}",
                    before=f"{before[0]}:{before[1]}",
                )
        self._addresses.clear()
        self._addresses |= addresses

    def apply_features_view(self) -> None:
        """Use the current view of the features. Without any, UpdateFeatures is not intercepted."""
        self.chain.forget_rewritten()
        before, self._keeps_features = self._keeps_features, bool(self._features.view.supported)
        if before != self._keeps_features:
            self.chain.update()

    def update_config(self, config: Config, listener: Listener) -> None:
        """Apply the reloadable keys: the response to unsupported requests, the protection of the sidecars' topics, and
        where the quotas of addresses are set."""
        self._unsupported.limit = config.unsupported_request_max_consecutive
        before = self._policies
        self._unsupported.policy = listener.unsupported_request_response
        self._protected.enabled = config.internal_topics_protected
        self._protected.inter_broker = listener.inter_broker
        self._ip_quotas.in_file = config.quotas.ip_store == "file"
        if before != self._policies:
            self._versions.clear_cache()
            self.chain.update()

    @property
    def _policies(self) -> tuple[object, ...]:
        """What decides which interceptors want which requests, and which versions clients are offered."""
        protected = self._protected
        return self._unsupported.policy, protected.enabled, protected.inter_broker, self._ip_quotas.in_file

    def _max_version(self, api_key: int) -> int | None:
        """Return the last version of an api that can be checked and rewritten here; None for any."""
        if self._protected.enabled and (found := topic_protection.max_version(api_key)) is not None:
            return found
        return address_rewriter.max_version(api_key) if self.listener.rewrite_addresses else None

    def _on_versions(self, ranges: Mapping[int, VersionRange]) -> None:
        """Use the api versions of an ApiVersions response, to a client or to this process."""
        self.versions_probe.mark_answered()
        before = self._supported.ranges
        if not self._supported.update(ranges):
            return
        self.chain.update()
        names = {"listener": self.listener.name, "upstream": str(self.listener.upstream), "apis": len(ranges)}
        if before is None:
            log.info("upstream_versions_known", **names)
        else:
            changed = sorted(key for key in {*before, *ranges} if before.get(key) != ranges.get(key))
            log.info("upstream_versions_changed", **names, changed=[api_name(key) for key in changed])

    def _on_unsupported(self, request: Request) -> None:
        self._log_request("unsupported_request", request)

    def _on_denied(self, request: Request) -> None:
        self._log_request("protected_topic", request)

    def _log_request(self, event: str, request: Request) -> None:
        self._rate_limited.warning(
            event,
            connection_id=request.connection.id,
            api=api_name(request.api_key),
            api_version=request.api_version,
            client_id=request.client_id and request.client_id[:MAX_CLIENT_ID],
        )

    def _on_unmapped(self, node_id: int) -> None:
        self._rate_limited.warning("address_unmapped", listener=self.listener.name, node_id=node_id)
