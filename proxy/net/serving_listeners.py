"""The listeners of one process: the broker behind each, and its interceptors. A reload replaces what has changed."""

from __future__ import annotations

from weakref import WeakSet

from proxy.config import Config, Listener
from proxy.features.updates import UpdateFeatures, UpdateRequest, UpdateResult
from proxy.features.view import FeaturesDirectory, FeaturesView
from proxy.interceptors.broker_metadata import FleetDirectory, FleetView
from proxy.net.feature_update_calls import fail_update
from proxy.net.listener_interceptors import ListenerInterceptors
from proxy.net.tls_contexts import TlsContexts
from proxy.net.upstream import Upstream
from proxy.telemetry import RateLimitedLogger


class ServingListeners:
    """The configured listeners by name, with their upstreams and, if they are readable, their interceptors.

    Belongs to the loop's thread. ``tls`` has been updated before ``update_config`` is called.
    """

    def __init__(self, config: Config, tls: TlsContexts, rate_limited: RateLimitedLogger) -> None:
        self.by_name: dict[str, Listener] = {}
        self.upstreams: dict[str, Upstream] = {}
        self.interceptors: dict[str, ListenerInterceptors] = {}
        self._replaced: WeakSet[ListenerInterceptors] = WeakSet()  # open connections have them
        self._config = config
        self._tls = tls
        self._rate_limited = rate_limited
        self._fleet = FleetDirectory(FleetView(config.broker_id, ()))
        self._features = FeaturesDirectory()
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
            self._remove_interceptors(name)
            del self.by_name[name], self.upstreams[name]
        for listener in config.listeners:
            if interceptors_changed or _is_rebuilt(self.by_name.get(listener.name), listener):
                self._remove_interceptors(listener.name)
                self._set(listener)
            elif listener.name in self.interceptors:
                self.interceptors[listener.name].update_config(config, listener)
        for replaced in list(self._replaced):
            replaced.update_config(config, self.by_name.get(replaced.listener.name, replaced.listener))

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

    def stop_probes(self) -> None:
        """Ask no broker for its versions any more."""
        for interceptors in self.interceptors.values():
            interceptors.versions_probe.stop()

    def _set(self, listener: Listener) -> None:
        config = self._config
        self.by_name[listener.name] = listener
        connect_timeout = config.upstream_connect_timeout_ms / 1000
        tls = self._tls[listener.name]
        upstream = Upstream(listener.upstream, connect_timeout, listener.upstream_source, tls)
        self.upstreams[listener.name] = upstream
        if listener.is_readable:
            interceptors = ListenerInterceptors(
                config, listener, upstream, self._fleet, self._features, self._update_features, self._rate_limited
            )
            self.interceptors[listener.name] = interceptors
            interceptors.versions_probe.start()

    def _remove_interceptors(self, name: str) -> None:
        if (replaced := self.interceptors.pop(name, None)) is not None:
            replaced.versions_probe.stop()
            self._replaced.add(replaced)

    def _all_interceptors(self) -> list[ListenerInterceptors]:
        return [*self.interceptors.values(), *self._replaced]

    async def _update_features(self, request: UpdateRequest) -> UpdateResult:
        return await self.update_features(request)


def _is_rebuilt(before: Listener | None, after: Listener) -> bool:
    """Return whether a listener needs another upstream and other interceptors than before."""
    # What ``ListenerInterceptors`` and ``TlsContexts`` apply, and what is of no use here.
    updated = {"unsupported_request_response", "tls", "upstream_tls", "bind"}
    return before is None or before.model_dump(exclude=updated) != after.model_dump(exclude=updated)
