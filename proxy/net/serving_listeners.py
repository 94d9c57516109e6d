"""The listeners of one process: the broker behind each, and its interceptors. A reload replaces what has changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from weakref import WeakSet

from proxy.config import Config, Listener
from proxy.coordinator.view import GroupsDirectory, GroupsView
from proxy.core.exchange import PrincipalSource
from proxy.features.updates import UpdateFeatures, UpdateRequest, UpdateResult
from proxy.features.view import FeaturesDirectory, FeaturesView
from proxy.interceptors.broker_metadata import FleetDirectory, FleetView
from proxy.net.client_identity import initial_principal
from proxy.net.feature_update_calls import fail_update
from proxy.net.listener_interceptors import ListenerInterceptors
from proxy.net.tls_contexts import ListenerTls, TlsContexts
from proxy.net.upstream import Upstream
from proxy.telemetry import RateLimitedLogger


@dataclass(frozen=True)
class ServingListener:
    """A listener as one of its connections uses it from its beginning on, whatever a reload changes.

    ``interceptors``: None where requests cannot be read. ``tls``: for the handshake with the client.
    """

    settings: Listener
    upstream: Upstream
    interceptors: ListenerInterceptors | None
    tls: ListenerTls

    @cached_property
    def bind(self) -> str:
        """Where it listens, as the ids of its connections begin."""
        return f"{self.settings.bind.host}:{self.settings.bind.port}"

    @cached_property
    def initial_principal(self) -> tuple[str, PrincipalSource]:
        """The principal of a client before it has authenticated, and how that principal is known."""
        return initial_principal(self.settings)


class ServingListeners:
    """The configured listeners by name, as new connections use them.

    Belongs to the loop's thread. ``tls`` has been updated before ``update_config`` is called.
    """

    def __init__(self, config: Config, tls: TlsContexts, rate_limited: RateLimitedLogger) -> None:
        self.by_name: dict[str, ServingListener] = {}
        self._replaced: WeakSet[ListenerInterceptors] = WeakSet()  # open connections have them
        self._config = config
        self._tls = tls
        self._rate_limited = rate_limited
        self._fleet = FleetDirectory(FleetView(config.broker_id, ()))
        self._features = FeaturesDirectory()
        self._groups = GroupsDirectory()
        self.update_features: UpdateFeatures = fail_update
        """Asks the feature controller for an update. It fails until another one is set."""
        for listener in config.listeners:
            self._set(listener)

    def update_config(self, config: Config) -> None:
        """Apply the reloadable keys. Open connections continue with the upstream and the interceptors that they
        have."""
        before, self._config = self._config, config
        interceptors_changed = (before.broker_metadata_before_authentication, before.upstream_connect_timeout_ms) != (
            config.broker_metadata_before_authentication,
            config.upstream_connect_timeout_ms,
        )
        for name in self.by_name.keys() - {listener.name for listener in config.listeners}:
            self._remove(name)
        for listener in config.listeners:
            serving = self.by_name.get(listener.name)
            if serving is None or interceptors_changed or _is_rebuilt(serving.settings, listener):
                self._remove(listener.name)
                self._set(listener)
                continue
            tls, upstream = self._tls[listener.name], serving.upstream
            if tls is not serving.tls:  # clients in their handshake continue with the one they have
                upstream = self._create_upstream(listener, tls)
            self.by_name[listener.name] = replace(serving, settings=listener, upstream=upstream, tls=tls)
            if serving.interceptors is not None:
                serving.interceptors.versions_probe.upstream = upstream
                serving.interceptors.update_config(config, listener)
        for replaced in list(self._replaced):
            running = self.by_name.get(replaced.listener.name)
            replaced.update_config(config, replaced.listener if running is None else running.settings)

    def update_fleet_view(self, view: FleetView) -> None:
        """Set what is known about all brokers."""
        self._fleet.view = view
        for interceptors in self._all_interceptors():
            interceptors.apply_fleet_view()

    def update_features_view(self, view: FeaturesView) -> None:
        """Set what is known about the features of the fleet."""
        self._features.view = view
        for interceptors in self._all_interceptors():
            interceptors.apply_features_view()

    def update_groups_view(self, view: GroupsView) -> None:
        """Set what is known about the coordinators of consumer groups."""
        self._groups.view = view

    def stop_probes(self) -> None:
        """Ask no broker for its versions any more."""
        for serving in self.by_name.values():
            if serving.interceptors is not None:
                serving.interceptors.versions_probe.stop()

    def _set(self, listener: Listener) -> None:
        config, tls = self._config, self._tls[listener.name]
        upstream = self._create_upstream(listener, tls)
        interceptors = None
        if listener.is_readable:
            interceptors = ListenerInterceptors(
                config,
                listener,
                upstream,
                self._fleet,
                self._features,
                self._groups,
                self._update_features,
                self._rate_limited,
            )
            interceptors.versions_probe.start()
        self.by_name[listener.name] = ServingListener(listener, upstream, interceptors, tls)

    def _create_upstream(self, listener: Listener, tls: ListenerTls) -> Upstream:
        connect_timeout = self._config.upstream_connect_timeout_ms / 1000
        return Upstream(listener.upstream, connect_timeout, listener.upstream_source, tls)

    def _remove(self, name: str) -> None:
        removed = self.by_name.pop(name, None)
        if removed is not None and removed.interceptors is not None:
            removed.interceptors.versions_probe.stop()
            self._replaced.add(removed.interceptors)

    def _all_interceptors(self) -> list[ListenerInterceptors]:
        running = (serving.interceptors for serving in self.by_name.values())
        return [*filter(None, running), *self._replaced]

    async def _update_features(self, request: UpdateRequest) -> UpdateResult:
        return await self.update_features(request)


def _is_rebuilt(before: Listener, after: Listener) -> bool:
    """Return whether a listener needs another upstream and other interceptors than before."""
    if (before.tls is None, before.upstream_tls is None) != (after.tls is None, after.upstream_tls is None):
        return True
    # What ``ListenerInterceptors`` and ``TlsContexts`` apply, and what is of no use here.
    updated = {"unsupported_request_response", "tls", "upstream_tls", "bind"}
    return before.model_dump(exclude=updated) != after.model_dump(exclude=updated)
