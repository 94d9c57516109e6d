"""Limits, throttles and the state of the quotas as plain values, shared by configuration, quotas and telemetry.

``rate`` means connections accepted per second (KIP-612), ``connections`` means connections open at a time (KIP-402).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from msgspec import Struct, field

UNLIMITED = 2_147_483_647
"""Kafka's Int.MaxValue: no limit."""

DEFAULT_ADDRESS = "<default>"
"""Kafka's name for every address without a quota of its own."""

DEFAULT_USER = "<default>"
"""Kafka's name for every user without a quota of its own."""

Action = Literal["enforce", "observe"]
"""``observe`` is a dry run: throttles are counted and reported, but nothing is throttled."""

QuotaScope = Literal["broker", "listener", "ip", "principal"]

QuotaKind = Literal["connection_creation_rate", "connections"]
"""What a quota limits: connections accepted per second, or connections open at a time. Of a principal the connections
count that have authenticated."""

ThrottleAction = Literal["delay", "hold", "drop", "observe"]
"""What happened to a throttled connection.

* ``delay``: its listener accepted nothing until the connection was admitted.
* ``hold``: it was set aside, unread, and checked again later; for the rate of its principal it only was not read for
  that time.
* ``drop``: it was closed.
* ``observe``: nothing, since the limit is in dry-run mode.
"""


class Quota(Struct, frozen=True):
    """One limit. ``limit``: connections per second, or connections; ``UNLIMITED`` for none."""

    limit: int = UNLIMITED
    action: Action = "enforce"

    @property
    def limited(self) -> bool:
        """Whether there is a limit."""
        return self.limit < UNLIMITED

    @property
    def enforced(self) -> bool:
        """Whether there is a limit that is not in dry-run mode."""
        return self.limit < UNLIMITED and self.action == "enforce"


NO_QUOTA = Quota()


class ListenerLimits(Struct, frozen=True):
    """Limits of one listener. ``rate`` is the broker-wide one if the listener has none of its own.

    ``protected``: the inter-broker listener beside others; broker-wide limits do not apply to it.
    """

    rate: Quota = NO_QUOTA
    connections: Quota = NO_QUOTA
    protected: bool = False


IPV6_BITS = 128


class Limits(Struct, frozen=True):
    """All limits of one sidecar."""

    listeners: Mapping[str, ListenerLimits]
    """Limits of every listener, by its configured name."""
    rate: Quota = NO_QUOTA
    """The broker-wide rate limit."""
    connections: Quota = NO_QUOTA
    """The broker-wide limit of open connections."""
    ip_rates: Mapping[str, Quota] = {}
    """Configured rate limits by address in canonical form, and of ``DEFAULT_ADDRESS``."""
    stored_ip_rates: Mapping[str, int] = {}
    """Rate limits stored in the cluster, by address. They override those of ``ip_rates`` and keep their action."""
    stored_ip_action: Action = "enforce"
    """The action of stored limits without an entry in ``ip_rates``."""
    ip_connections: Quota = NO_QUOTA
    """The limit of open connections of each address without an override."""
    ip_connections_overrides: Mapping[str, int] = {}
    """Limits of open connections by address in canonical form, with the action of ``ip_connections``."""
    samples: int = 11
    """``quota.window.num``."""
    window_ms: int = 1000
    """``quota.window.size.seconds``, in ms."""
    recheck: bool = True
    """Whether a held connection is checked again after its hold (KIP-612), or closed as Kafka does."""
    max_held: int = 1000
    """Connections held at a time. One more is closed at once."""

    principal_rates: Mapping[str, Quota] = {}
    """Rate limits by principal, such as ``User:alice``, and of ``DEFAULT_USER``."""
    principal_connections: Quota = NO_QUOTA
    """The limit of open connections of each principal without an override."""
    principal_connections_overrides: Mapping[str, int] = {}
    """Limits of open connections by principal, with the action of ``principal_connections``."""
    ip_v6_prefix_length: int = 64
    """Leading bits of an IPv6 address that identify a client."""

    def quota_key(self, address: str) -> str:
        """Return the key that limits of ``address`` (canonical) are counted under: itself, or its network, as
        ``2001:db8::/64``.

        A host may have 2^64 IPv6 addresses, so limits of single addresses would bound nothing. An address with a limit
        of its own is counted separately.
        """
        if ":" not in address or self.ip_v6_prefix_length == IPV6_BITS or self._has_own(address):
            return address
        import ipaddress

        return str(ipaddress.IPv6Network((address, self.ip_v6_prefix_length), strict=False))

    def _has_own(self, address: str) -> bool:
        return any(address in own for own in (self.ip_rates, self.stored_ip_rates, self.ip_connections_overrides))

    def ip_rate(self, address: str) -> Quota:
        """Return the rate limit of ``address``: its own or the default one.

        Configured and stored limits are not merged beforehand: there may be 100,000 of them, and one may change at any
        time.
        """
        for name in (address, DEFAULT_ADDRESS):
            own, stored = self.ip_rates.get(name), self.stored_ip_rates.get(name)
            if stored is not None:
                return Quota(stored, self.stored_ip_action if own is None else own.action)
            if own is not None:
                return own
        return NO_QUOTA

    @property
    def any_of_principals(self) -> bool:
        """Whether any principal has a limit."""
        return bool(self.principal_rates or self.principal_connections_overrides or self.principal_connections.limited)

    def principal_rate(self, principal: str) -> Quota:
        """Return the rate limit of ``principal``: its own or the default one."""
        return self.principal_rates.get(principal) or self.principal_rates.get(DEFAULT_USER, NO_QUOTA)

    def principal_connection_quota(self, principal: str) -> Quota:
        """Return the limit of open connections of ``principal``: its own or the default one."""
        override = self.principal_connections_overrides.get(principal)
        return self.principal_connections if override is None else Quota(override, self.principal_connections.action)


class ClusterQuotas(Struct, frozen=True):
    """Connection limits that the Kafka cluster has stored."""

    ip_rates: Mapping[str, int] = {}
    """``connection_creation_rate`` of entity type ``ip``, by address in canonical form, and of ``DEFAULT_ADDRESS``."""
    rate: int | None = None
    """The broker's own ``max.connection.creation.rate``; None if it is unknown or not set."""
    listener_rates: Mapping[str, int] = {}
    """``listener.name.<name>.max.connection.creation.rate`` by listener name in lower case."""


class ThrottleKind(NamedTuple):
    """What throttled connections have in common: the listener, the limit they met, and what happened to them."""

    listener: str
    scope: QuotaScope
    quota: QuotaKind
    action: ThrottleAction


class Throttle(Struct, frozen=True, gc=False):
    """One connection that met a limit. ``address`` is that of the client for every scope."""

    listener: str
    address: str
    scope: QuotaScope
    quota: QuotaKind
    action: ThrottleAction
    limit: int
    """Connections per second, or connections."""
    observed: float
    """The rate, or the number of connections, that was compared with ``limit``."""
    delay_ms: int = 0
    """Its longest delay or hold; 0 if it was dropped, or if it waits for another connection to end."""
    principal: str = ""
    """Of the scope ``principal``: who has authenticated, such as ``User:alice``."""


class LimitState(Struct, frozen=True):
    """The current state of one limit: broker-wide, of a listener, or (scopes ``ip`` and ``principal``) of each address
    or principal without its own."""

    scope: QuotaScope
    listener: str
    """Empty unless it is the limit of a listener."""
    quota: QuotaKind
    limit: int
    action: Action
    used: float
    """Connections per second over the quota's window, or open connections.

    NaN for the scopes ``ip`` and ``principal``, where each has a number of its own.
    """


class AddressState(Struct, frozen=True):
    """The current state of one client address."""

    address: str
    rate: float
    """Connections per second over the quota's window; NaN if the address has no rate limit."""
    rate_limit: int
    connections: int
    connections_limit: int
    held: int


class PrincipalState(Struct, frozen=True):
    """The current state of one principal."""

    principal: str
    rate: float
    """Authenticated connections per second over the quota's window; NaN if the principal has no rate limit."""
    rate_limit: int
    connections: int
    connections_limit: int


class QuotasState(Struct):
    """The state of all limits, for ``/quotas`` and the metrics. Mappings by listener have every listener."""

    limits: tuple[LimitState, ...] = ()
    """Broker-wide limits first, then by listener, then of each address and of each principal. Both quotas of each,
    limited or not."""
    addresses: tuple[AddressState, ...] = ()
    """Addresses with the highest rate, then with the most open connections; at most ``MAX_ADDRESSES_SHOWN``."""
    addresses_tracked: int = 0
    """Addresses whose rate is measured."""
    addresses_connected: int = 0
    """Addresses with open connections."""
    principals: tuple[PrincipalState, ...] = ()
    """Principals with the highest rate, then with the most open connections; at most ``MAX_PRINCIPALS_SHOWN``."""
    principals_tracked: int = 0
    """Principals whose rate is measured."""
    principals_connected: int = 0
    """Principals with open connections; counted while any principal has a limit."""
    principal_held: dict[str, int] = field(default_factory=dict)
    """Connections ever held for the rate limit of their principal, by listener."""
    principal_held_seconds: dict[str, float] = field(default_factory=dict)
    """The sum of these holds, by listener."""
    waiting: dict[str, int] = field(default_factory=dict)
    """Accepted connections that wait for a limit of the listener or the broker, by listener."""
    held: dict[str, int] = field(default_factory=dict)
    """Accepted connections that are held for the rate limit of their address, by listener."""
    throttled: dict[ThrottleKind, int] = field(default_factory=dict)
    """Throttled connections by kind, for the kinds that occurred. One that was held and then closed counts twice."""
    delayed: dict[str, int] = field(default_factory=dict)
    """Connections ever delayed for a rate limit of the broker or the listener, by listener."""
    delayed_seconds: dict[str, float] = field(default_factory=dict)
    """The sum of these delays, by listener."""
    held_before: dict[str, int] = field(default_factory=dict)
    """Connections ever held for the rate limit of their address, by listener."""
    held_seconds: dict[str, float] = field(default_factory=dict)
    """The sum of these holds, by listener."""
    blocked_seconds: dict[str, float] = field(default_factory=dict)
    """How long each listener was blocked by a limit, in total."""
    queued: dict[str, int] = field(default_factory=dict)
    """Connections in the kernel's accept queue, by listener. They are in no other number."""
    admitted: dict[str, int] = field(default_factory=dict)
    """Admitted connections, by listener."""


def canonical(address: str) -> str:
    """Return an IP address in the canonical form that quotas are compared in. Raises ValueError for an invalid address.

    IPv6 is compressed, in lower case and without a zone. IPv4 in IPv6 (``::ffff:10.0.0.7``) becomes IPv4.
    """
    import ipaddress

    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(parsed, "ipv4_mapped", None)
    return str(mapped or parsed)
