"""What is limited, and what came of it: plain values, shared by the configuration, the gate and the telemetry.

Names: ``rate`` is connections accepted per second (KIP-612), ``connections`` is how many are open at a time (KIP-402).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

UNLIMITED = 2_147_483_647
"""Kafka's Int.MaxValue: there is no limit, and nothing is measured for it."""

DEFAULT_ADDRESS = "<default>"
"""Stands for every address that has no quota of its own; Kafka's name of it."""

Action = Literal["enforce", "observe"]
"""``observe``: count and report what would have been throttled, and do nothing (dry run)."""

Scope = Literal["broker", "listener", "ip"]

What = Literal["connection_creation_rate", "connections"]
"""What a quota limits: connections accepted per second, or connections open at a time."""

Done = Literal["delay", "hold", "drop", "observe"]
"""What a throttled connection met. ``delay``: its listener accepted nothing until there was room for it. ``hold``: it
was set aside, unread, to be looked at again. ``drop``: it was closed. ``observe``: nothing, it only would have."""


class Quota(Struct, frozen=True):
    """One limit. ``limit``: connections per second, or connections; ``UNLIMITED`` for none."""

    limit: int = UNLIMITED
    action: Action = "enforce"

    @property
    def limited(self) -> bool:
        """Whether there is a limit at all."""
        return self.limit < UNLIMITED

    @property
    def enforced(self) -> bool:
        """Whether anything is to be done about it."""
        return self.limit < UNLIMITED and self.action == "enforce"


NO_QUOTA = Quota()


class ListenerLimits(Struct, frozen=True):
    """Limits of one listener. ``rate`` is the broker-wide one where the listener has none of its own.

    ``protected``: it is the inter-broker listener beside others, and is spared the broker-wide limits.
    """

    rate: Quota = NO_QUOTA
    connections: Quota = NO_QUOTA
    protected: bool = False


IPV6_BITS = 128


class Limits(Struct, frozen=True):
    """All limits of one sidecar."""

    listeners: Mapping[str, ListenerLimits]
    """By the listener's name as configured; every listener is there."""
    rate: Quota = NO_QUOTA
    """Broker-wide."""
    connections: Quota = NO_QUOTA
    """Broker-wide."""
    ip_rates: Mapping[str, Quota] = {}
    """By address in its canonical form (``canonical``), and ``DEFAULT_ADDRESS``."""
    stored_ip_rates: Mapping[str, int] = {}
    """The same, stored in the cluster: goes before that of ``ip_rates``, whose action it takes over."""
    stored_ip_action: Action = "enforce"
    """Of those that ``ip_rates`` does not have."""
    ip_connections: Quota = NO_QUOTA
    """Of each address without an override."""
    ip_connections_overrides: Mapping[str, int] = {}
    """By address in its canonical form; they share the action of ``ip_connections``."""
    samples: int = 11
    """``quota.window.num``."""
    window_ms: int = 1000
    """``quota.window.size.seconds``, in ms."""
    recheck: bool = True
    """Whether a held connection gets a second look (KIP-612), or is closed after its hold (as Kafka does)."""
    max_held: int = 1000
    """Connections that may be held at a time; one more is closed at once."""

    ip_v6_prefix_length: int = 64
    """Bits of an IPv6 address that tell who it is."""

    def counted_as(self, address: str) -> str:
        """Return what ``address`` (canonical) is counted as: itself, or its IPv6 network, as ``2001:db8::/64``.

        A host may have 2^64 IPv6 addresses, so limits of single ones bound nothing. One with a limit of its own counts
        alone.
        """
        if ":" not in address or self.ip_v6_prefix_length == IPV6_BITS or self._has_own(address):
            return address
        import ipaddress

        return str(ipaddress.IPv6Network((address, self.ip_v6_prefix_length), strict=False))

    def _has_own(self, address: str) -> bool:
        return any(address in own for own in (self.ip_rates, self.stored_ip_rates, self.ip_connections_overrides))

    def ip_rate(self, address: str) -> Quota:
        """Return the rate limit of ``address``, of its own or by default. Nothing is merged beforehand: there may be a
        hundred thousand, and one may change at any time."""
        for name in (address, DEFAULT_ADDRESS):
            own, stored = self.ip_rates.get(name), self.stored_ip_rates.get(name)
            if stored is not None:
                return Quota(stored, self.stored_ip_action if own is None else own.action)
            if own is not None:
                return own
        return NO_QUOTA


class ClusterQuotas(Struct, frozen=True):
    """What the Kafka cluster itself has stored about connections."""

    ip_rates: Mapping[str, int] = {}
    """``connection_creation_rate`` of entity type ``ip``: by address in its canonical form, and ``DEFAULT_ADDRESS``."""
    rate: int | None = None
    """The broker's own ``max.connection.creation.rate``; None where it is not known or not set."""
    listener_rates: Mapping[str, int] = {}
    """The same with ``listener.name.<name>.``; by the lower-cased name."""


class Throttle(Struct, frozen=True, gc=False):
    """One connection that met a limit. ``address`` is that of the client, whatever the scope."""

    listener: str
    address: str
    scope: Scope
    quota: What
    action: Done
    limit: int
    """Connections per second, or connections."""
    observed: float
    """The rate, or the number of connections, that was compared with ``limit``."""
    delay_ms: int = 0
    """How long it was delayed or held at most; 0 for what was dropped, and where it waits for another one's end."""


class LimitState(Struct, frozen=True):
    """One limit now: broker-wide, of a listener, or (scope ``ip``) of each address that has none of its own."""

    scope: Scope
    listener: str
    """Empty unless it is that of a listener."""
    quota: What
    limit: int
    action: Action
    used: float
    """Connections per second over the quota's window, or open connections; NaN for a rate that is not measured because
    there is no limit, and for what each address has a number of its own."""


class AddressState(Struct, frozen=True):
    """One client address, now."""

    address: str
    rate: float
    """Connections per second over the quota's window; NaN where the address has no rate limit."""
    rate_limit: int
    connections: int
    connections_limit: int
    held: int


class GateState(Struct):
    """What ``/quotas`` and the metrics tell of the limits. Mappings by listener have every listener."""

    limits: tuple[LimitState, ...] = ()
    """Broker-wide first, then by listener, then of each address; both quotas of each, limited or not."""
    addresses: tuple[AddressState, ...] = ()
    """Those with the highest rate, then with the most connections; at most ``state.TOP``."""
    addresses_tracked: int = 0
    """Addresses whose rate is measured."""
    addresses_connected: int = 0
    """Addresses with open connections."""
    waiting: dict[str, int] = field(default_factory=dict)
    """Accepted connections, by listener, that wait for the listener's or broker's limit."""
    held: dict[str, int] = field(default_factory=dict)
    """Accepted connections, by listener, that their address' rate limit keeps waiting."""
    throttled: dict[tuple[str, str, str, str], int] = field(default_factory=dict)
    """Connections by (listener, scope, quota, action), those that occurred. One held and then closed is in both."""
    delayed: dict[str, int] = field(default_factory=dict)
    """Connections, by listener, delayed for a rate limit (broker-wide or the listener's)."""
    delayed_seconds: dict[str, float] = field(default_factory=dict)
    """How long they had to wait, by listener, in total."""
    held_before: dict[str, int] = field(default_factory=dict)
    """Connections, by listener, ever held for their address' rate limit."""
    held_seconds: dict[str, float] = field(default_factory=dict)
    """How long they had to wait, by listener, in total."""
    blocked_seconds: dict[str, float] = field(default_factory=dict)
    """How long each listener accepted nothing because of a limit, in total."""
    queued: dict[str, int] = field(default_factory=dict)
    """Connections, by listener, in the kernel's queue: not accepted yet, and in no other number."""
    admitted: dict[str, int] = field(default_factory=dict)
    """Connections, by listener, that were let through."""


def canonical(address: str) -> str:
    """Return an IP address in the one form that quotas are compared in. Raises ValueError where it is none.

    IPv6 compressed and in lower case, without a zone; IPv4 in IPv6 (``::ffff:10.0.0.7``) as IPv4.
    """
    import ipaddress

    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(parsed, "ipv4_mapped", None)
    return str(mapped or parsed)
