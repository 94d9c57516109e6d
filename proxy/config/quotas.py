"""Keys of ``quotas``: how many connections are accepted, and how fast. All of them are reloadable.

``limits`` makes the limits of each listener, address and user from them and from the cluster's quotas.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    PlainValidator,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from proxy.config.key_definition import ConfigSection, key, number, switch
from proxy.config.values import INT32_MAX, address
from proxy.limits.java_addresses import parse_java_address
from proxy.limits.model import DEFAULT_ADDRESS, DEFAULT_USER, UNLIMITED, Action

IpStore = Literal["broker", "file"]
Source = Literal["file", "broker", "min"]

ACTION = "enforce or observe"
LIMIT = f"1–{UNLIMITED} connections"
RATE = f"1–{UNLIMITED} connections/s"
OVERRIDES = f"address:connections or host name:connections, several separated by commas, each connections 0–{UNLIMITED}"

USER_OVERRIDES = f"user:connections, several separated by commas, each connections 0–{UNLIMITED}"

IPS_EXAMPLE = f"""
  "{DEFAULT_ADDRESS}": {{connection_creation_rate: 20, action: enforce}}
  "10.0.0.7": {{connection_creation_rate: 5, action: observe}}"""

USERS_EXAMPLE = f"""
  "{DEFAULT_USER}": {{connection_creation_rate: 20, action: enforce}}
  "alice": {{connection_creation_rate: 5, action: observe}}"""

MAX_USER = 1024
"""Longest name of a user in characters. Longer ones are not known after a login (``proxy.core.principal_tracker``)."""

_TYPE = "User:"
_PREFIX = "listener.name."
_OF_LISTENER = re.compile(r"listener\.name\.(.+)\.(max\.connection(?:\.creation\.rate|s)(?:\.action)?)")


def _address_or_default(value: str) -> str:
    return value if value == DEFAULT_ADDRESS else address(value)


def overrides_of(text: str) -> dict[str, int]:
    """Parse ``address:connections,…``; the last colon separates. Raises ValueError that names the wrong part.

    Addresses are in their canonical form. Host names were replaced before, by ``host_names``.
    """
    found: dict[str, int] = {}
    for part in text.split(",") if text.strip() else ():
        host, colon, count = part.strip().rpartition(":")
        if not colon:
            raise ValueError(f"lacks :connections behind {count!r}")
        host = host.strip()
        who = parse_java_address(host)
        if who is None:
            raise ValueError(f"names {host!r}, which is not an IP address")
        _add_override(found, who, host, count)
    return found


def user_overrides_of(text: str) -> dict[str, int]:
    """Parse ``user:connections,…``; the last colon separates. Raises ValueError that names the wrong part."""
    found: dict[str, int] = {}
    for part in text.split(",") if text.strip() else ():
        user, colon, count = part.strip().rpartition(":")
        if not colon:
            raise ValueError(f"lacks :connections behind {count!r}")
        _add_override(found, _user(user.strip()), user.strip(), count)
    return found


def _add_override(found: dict[str, int], who: str, given: str, count: str) -> None:
    if not re.fullmatch(r"\s*[0-9]{1,10}", count) or int(count) > UNLIMITED:
        raise ValueError(f"gives {given} {count.strip()!r} connections")
    if who in found:
        raise ValueError(f"names {who} twice")
    found[who] = int(count)


def _user(name: str) -> str:
    if not name or len(name) > MAX_USER or not name.isprintable():
        raise ValueError(f"names {name[:MAX_USER]!r}, which is no user (allowed: 1–{MAX_USER} printable characters)")
    if name.startswith(_TYPE):
        raise ValueError(f"names {name!r} with a type (allowed: a name without {_TYPE})")
    return name


def _overrides(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("is not text")
    overrides_of(value)
    return value


def _user_overrides(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("is not text")
    user_overrides_of(value)
    return value


Count = Annotated[int, Field(strict=True, ge=1, le=INT32_MAX)]
AddressOrDefault = Annotated[str, AfterValidator(_address_or_default)]
Overrides = Annotated[str, PlainValidator(_overrides)]
User = Annotated[str, AfterValidator(_user)]
UserOverrides = Annotated[str, PlainValidator(_user_overrides)]


def _action(name: str, meaning: str, *, default: Action | None, example: Action) -> Any:
    return key(name, meaning, kind="text", allowed=ACTION, default=default, example=example)


def _limit(name: str, meaning: str, *, default: int | None, allowed: str, unit: str, example: str) -> Any:
    return key(name, meaning, kind="integer", allowed=allowed, unit=unit, default=default, example=example)


def _rate_alone(values: object) -> object:
    return {"connection_creation_rate": values} if isinstance(values, int | float) else values


class IpQuota(ConfigSection):
    """The quota of one address, or of each that has none of its own; Kafka's client quota entity ``ip``."""

    connection_creation_rate: Count = key(
        "connection_creation_rate",
        "Connections accepted per second from this address.",
        kind="integer",
        allowed=RATE,
        unit="connections/s",
        example="5",
    )
    action: Action | None = _action(
        "action", "As `connection_creation_rate.action`, for this address alone.", default=None, example="observe"
    )

    @model_validator(mode="before")
    @classmethod
    def _number(cls, values: object) -> object:
        return _rate_alone(values)


class UserQuota(ConfigSection):
    """The quota of one user, or of each that has none of its own; by Kafka's entity ``user``."""

    connection_creation_rate: Count = key(
        "connection_creation_rate",
        "Connections of this user per second that authenticate.",
        kind="integer",
        allowed=RATE,
        unit="connections/s",
        example="5",
    )
    action: Action | None = _action(
        "action", "As `user.connection_creation_rate.action`, for this user alone.", default=None, example="observe"
    )

    @model_validator(mode="before")
    @classmethod
    def _number(cls, values: object) -> object:
        return _rate_alone(values)


class ListenerQuotas(ConfigSection):
    """Limits of one listener, beside the broker-wide ones."""

    max_connection_creation_rate: Count | None = _limit(
        "max.connection.creation.rate",
        "Connections accepted per second on this listener; without it, as many as on all.",
        default=None,
        allowed=RATE,
        unit="connections/s",
        example="100",
    )
    max_connection_creation_rate_action: Action | None = _action(
        "max.connection.creation.rate.action",
        "As `max.connection.creation.rate.action`, for this listener alone.",
        default=None,
        example="enforce",
    )
    max_connections: Count | None = _limit(
        "max.connections",
        "Open connections on this listener; at the limit, new ones wait for another one's end.",
        default=None,
        allowed=LIMIT,
        unit="connections",
        example="4000",
    )
    max_connections_action: Action | None = _action(
        "max.connections.action",
        "As `max.connections.action`, for this listener alone.",
        default=None,
        example="observe",
    )


class Quotas(ConfigSection):
    """Limits on connections, under the names that Kafka has for them."""

    quota_window_num: int = number(
        "quota.window.num",
        "Windows over which rates are measured. After a pause, (this − 1) × the limit are accepted in one go; with 2 "
        "connections come evenly.",
        11,
        1,
        1000,
        "windows",
    )
    quota_window_size_seconds: int = number(
        "quota.window.size.seconds", "Length of a window, and the longest a connection is delayed.", 1, 1, 3600, "s"
    )
    max_connection_creation_rate: Count = _limit(
        "max.connection.creation.rate",
        "Connections accepted per second on all listeners together; beyond it, accepting is delayed.",
        default=UNLIMITED,
        allowed=RATE,
        unit="connections/s",
        example="200",
    )
    max_connection_creation_rate_action: Action = _action(
        "max.connection.creation.rate.action",
        "Whether the limit acts, or (observe) only counts and reports what it would have done.",
        default="enforce",
        example="enforce",
    )
    max_connections: Count = _limit(
        "max.connections",
        "Open connections on all listeners together; at the limit, new ones wait for another one's end.",
        default=UNLIMITED,
        allowed=LIMIT,
        unit="connections",
        example="5000",
    )
    max_connections_action: Action = _action(
        "max.connections.action",
        "As `max.connection.creation.rate.action`, for `max.connections`.",
        default="enforce",
        example="enforce",
    )
    max_connections_per_ip: int = number(
        "max.connections.per.ip",
        "Open connections of one address; more are closed at once. 0 needs overrides.",
        UNLIMITED,
        0,
        UNLIMITED,
        "connections",
        example="500",
    )
    max_connections_per_ip_overrides: Overrides = key(
        "max.connections.per.ip.overrides",
        "Addresses with a number of their own, as `10.0.0.7:50,[fd00::7]:20,gateway.example:500`. A host name stands "
        "for its first address, IPv4 before IPv6, when the file is read.",
        kind="text",
        allowed=OVERRIDES,
        default="",
        example='"10.0.0.7:50"',
    )
    max_connections_per_ip_action: Action = _action(
        "max.connections.per.ip.action",
        "As `max.connection.creation.rate.action`, for `max.connections.per.ip` and its overrides.",
        default="enforce",
        example="observe",
    )
    listener_name: Mapping[str, ListenerQuotas] = key(
        "listener.name", "", kind="mapping", allowed="quotas of a listener", default_factory=dict
    )
    ips: Mapping[AddressOrDefault, IpQuota] = key(
        "ips",
        f"Rates of addresses, as Kafka's client quotas of type `ip`; `{DEFAULT_ADDRESS}` is each address without its "
        "own. `ADDRESS: 50` is short for `ADDRESS: {connection_creation_rate: 50}`.",
        kind="mapping of mappings",
        allowed=f"an IP address or {DEFAULT_ADDRESS}, each with a number or connection_creation_rate",
        default_factory=dict,
        example=IPS_EXAMPLE,
    )
    connection_creation_rate_action: Action = _action(
        "connection_creation_rate.action",
        "As `max.connection.creation.rate.action`, for the rates of all addresses, those in the cluster among them.",
        default="enforce",
        example="enforce",
    )
    max_connections_per_principal: int = number(
        "max.connections.per.principal",
        "Open connections of one principal that has authenticated with SASL; one more is closed once its login has "
        "succeeded. 0 needs overrides.",
        UNLIMITED,
        0,
        UNLIMITED,
        "connections",
        example="100",
    )
    max_connections_per_principal_overrides: UserOverrides = key(
        "max.connections.per.principal.overrides",
        "Users with a number of their own, as `alice:10,bob:20`; the name alone, without `User:`. The last colon "
        "separates, and a name with a comma cannot be given here.",
        kind="text",
        allowed=USER_OVERRIDES,
        default="",
        example='"alice:10,bob:20"',
    )
    max_connections_per_principal_action: Action = _action(
        "max.connections.per.principal.action",
        "As `max.connection.creation.rate.action`, for `max.connections.per.principal` and its overrides.",
        default="enforce",
        example="observe",
    )
    users: Mapping[User, UserQuota] = key(
        "users",
        f"Rates of principals that have authenticated with SASL, by the user's name without `User:`; `{DEFAULT_USER}` "
        "is each one without its own. Beyond it the client is not read for up to 1 s, and then closed unless the rate "
        "allows it. `USER: 50` is short for `USER: {connection_creation_rate: 50}`.",
        kind="mapping of mappings",
        allowed=f"a user or {DEFAULT_USER}, each with a number or connection_creation_rate",
        default_factory=dict,
        example=USERS_EXAMPLE,
    )
    user_connection_creation_rate_action: Action = _action(
        "user.connection_creation_rate.action",
        "As `max.connection.creation.rate.action`, for the rates of all `users`.",
        default="enforce",
        example="enforce",
    )
    ip_throttle_recheck: bool = switch(
        "ip.throttle.recheck",
        "Whether a connection that was held because of its address' rate is let in where the rate then allows it. "
        "Without, it is closed after its hold, as Kafka does.",
        default=True,
    )
    ip_v6_prefix_length: int = number(
        "ip.v6.prefix.length",
        "Limits of addresses count IPv6 addresses with the same first bits together, for one host may have as many as "
        "it likes. An address with a limit of its own counts alone, and with 128 each does, as in Kafka.",
        64,
        1,
        128,
        "bits",
    )
    ip_throttle_max_delayed: int = number(
        "ip.throttle.max.delayed",
        "Connections held at a time because of their address' rate; more are closed at once. At most a twentieth "
        "of the descriptors, which is logged at the start.",
        1000,
        0,
        1_000_000,
        "connections",
    )
    ip_store: IpStore = key(
        "ip.store",
        "Where the rates of addresses stand: in `ips` alone, or also in the cluster, as `kafka-configs --entity-type "
        "ips` writes them; the cluster's go before those of the file. That works over TLS or none, "
        "and with SASL PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or none.",
        kind="text",
        allowed="broker (needs internal.bootstrap.servers) or file",
        default="file",
        example="broker",
        shown_default="`broker` where the cluster can be asked, else `file`",
    )
    source: Source = key(
        "source",
        "Where `max.connection.creation.rate` comes from, with and without a listener: this file, the broker's own "
        "dynamic configuration (what is not set there comes from the file), or the lower of both.",
        kind="text",
        allowed="file, broker or min (both need internal.bootstrap.servers)",
        default="file",
    )
    protect_upstream: bool = switch(
        "protect.upstream",
        "Whether the sidecar sees to it that the broker does not apply rates of addresses to the sidecar itself.",
        default=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, values: object) -> object:
        """Put the keys of each listener together, by ``split_listener_key``."""
        if not isinstance(values, dict):
            return values
        gathered: dict[str, Any] = {}
        listeners: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            below = split_listener_key(name)
            if below is None:
                gathered[name] = value
            else:
                listeners.setdefault(below[0], {})[below[1]] = value
        return gathered | {"listener.name": listeners} if listeners else gathered

    @model_serializer(mode="wrap")
    def _spread(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Serialize the quotas of listeners as keys of the file."""
        values: dict[str, Any] = serialize(self)
        for listener, own in values.pop("listener.name", {}).items():
            values |= {f"{_PREFIX}{listener}.{name}": value for name, value in own.items() if value is not None}
        return values


def split_listener_key(name: str) -> tuple[str, str] | None:
    """Return listener and key of ``listener.name.<listener>.<key>``, known or not; None for any other name."""
    if known := _OF_LISTENER.fullmatch(name):
        return known[1], known[2]
    listener, dot, below = name.removeprefix(_PREFIX).partition(".")
    return (listener, below) if name.startswith(_PREFIX) and listener and dot and below else None
