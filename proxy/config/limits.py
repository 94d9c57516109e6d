"""The limits in force, from the keys of ``quotas`` and the quotas that the cluster has stored."""

from __future__ import annotations

from proxy.config.model import Config
from proxy.config.quotas import ListenerQuotas, Source, overrides_of, user_overrides_of
from proxy.config.sections import Listener
from proxy.limits.model import DEFAULT_USER, UNLIMITED, ClusterQuotas, Limits, ListenerLimits, Quota

NO_CLUSTER_QUOTAS = ClusterQuotas()


def limits_of(config: Config, cluster: ClusterQuotas | None = None) -> Limits:
    """Return the limits of a sidecar of ``config``. ``cluster``: the cluster's quotas, as far as they are known.

    A rate that the cluster does not have is that of the file, even if the cluster is the source.
    """
    quotas, stored = config.quotas, cluster or NO_CLUSTER_QUOTAS
    rate = Quota(
        _rate(quotas.source, quotas.max_connection_creation_rate, stored.rate, UNLIMITED),
        quotas.max_connection_creation_rate_action,
    )
    connections = Quota(quotas.max_connections, quotas.max_connections_action)
    own = {name.lower(): given for name, given in quotas.listener_name.items()}
    return Limits(
        listeners={
            listener.name: _of_listener(config, listener, own.get(listener.name.lower()), stored, rate, connections)
            for listener in config.listeners
        },
        rate=rate,
        connections=connections,
        ip_rates={
            address: Quota(given.connection_creation_rate, given.action or quotas.connection_creation_rate_action)
            for address, given in quotas.ips.items()
        },
        stored_ip_rates=stored.ip_rates if quotas.ip_store == "broker" else {},
        stored_ip_action=quotas.connection_creation_rate_action,
        ip_connections=Quota(quotas.max_connections_per_ip, quotas.max_connections_per_ip_action),
        ip_connections_overrides=overrides_of(quotas.max_connections_per_ip_overrides),
        principal_rates={
            user if user == DEFAULT_USER else principal_of(user): Quota(
                given.connection_creation_rate, given.action or quotas.user_connection_creation_rate_action
            )
            for user, given in quotas.users.items()
        },
        principal_connections=Quota(quotas.max_connections_per_principal, quotas.max_connections_per_principal_action),
        principal_connections_overrides={
            principal_of(user): count
            for user, count in user_overrides_of(quotas.max_connections_per_principal_overrides).items()
        },
        samples=quotas.quota_window_num,
        window_ms=quotas.quota_window_size_seconds * 1000,
        recheck=quotas.ip_throttle_recheck,
        max_held=quotas.ip_throttle_max_delayed,
        ip_v6_prefix_length=quotas.ip_v6_prefix_length,
    )


def principal_of(user: str) -> str:
    """Return the principal of a user's name, as sessions know it."""
    return f"User:{user}"


def _of_listener(
    config: Config,
    listener: Listener,
    given: ListenerQuotas | None,
    stored: ClusterQuotas,
    broker_rate: Quota,
    broker_connections: Quota,
) -> ListenerLimits:
    own = given or ListenerQuotas()
    protected = listener.inter_broker and len(config.listeners) > 1
    stored_rate = stored.listener_rates.get(listener.name.lower())
    rate = _rate(config.quotas.source, own.max_connection_creation_rate, stored_rate, broker_rate.limit)
    # As in Kafka, a listener without its own number has the broker-wide one. For connections that makes a difference
    # only where the broker-wide one is not asked.
    inherited = broker_connections if protected else Quota()
    return ListenerLimits(
        rate=Quota(rate, own.max_connection_creation_rate_action or broker_rate.action),
        connections=Quota(
            own.max_connections or inherited.limit, own.max_connections_action or broker_connections.action
        ),
        protected=protected,
    )


def _rate(source: Source, file: int | None, broker: int | None, otherwise: int) -> int:
    if broker is None or source == "file":
        return otherwise if file is None else file
    return broker if source == "broker" or file is None else min(file, broker)
