"""Every key of the configuration: name, type, default, bounds, unit and meaning.

Attributes are the keys with ``_`` for ``.``. Bounds that span several keys are in ``crosscheck``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, get_args

from pydantic import BeforeValidator, model_validator

from proxy.config.internal import unheeded
from proxy.config.quotas import Quotas
from proxy.config.section import INT32_MAX, Section, key, number, switch
from proxy.config.types import (
    ENDPOINT,
    MAX_TAG_VALUE,
    MAX_TAGS,
    PLAIN,
    TOPIC,
    Address,
    AddressesByNode,
    AuditMode,
    ClassName,
    ClientSettings,
    Folder,
    Host,
    HostName,
    ListenerName,
    LogLevel,
    Network,
    Plain,
    Principal,
    Producer,
    ProxyProtocol,
    SecretFile,
    SecurityProtocol,
    Servers,
    Tags,
    Topic,
    UnsupportedResponse,
    Version,
    not_empty,
    split,
)
from proxy.config.values import Endpoint, Secret

MAX_MS = 600_000
"""Ten minutes: longer waits than that would outlive any supervisor's patience."""

MAX_WORKERS = 64
"""Far more than a broker's sidecar can use: the broker itself needs cores."""

UNSUPPORTED = "empty, close or forward"


class Listener(Section):
    """One port that clients dial, and the broker's private port behind it."""

    name: ListenerName = key(
        "name",
        "Name in metrics, logs and audit events; unique, whatever the case of its letters.",
        kind="text",
        allowed="one or more of A-Z a-z 0-9 _ . -",
    )
    bind: Address = key("bind", "Address to listen on.", kind="host:port", allowed=ENDPOINT)
    advertised: Address = key(
        "advertised",
        "Address at which clients reach this listener.",
        kind="host:port",
        allowed=ENDPOINT,
        default_factory=lambda listener: listener["bind"],
    )
    upstream: Address = key(
        "upstream",
        "The broker's private port that this listener fronts. A name is looked up for each connection; while that "
        "fails, or takes more than a second, its last addresses are used.",
        kind="host:port",
        allowed=ENDPOINT,
    )
    security_protocol: SecurityProtocol = key(
        "security.protocol",
        "Protocol of the traffic that passes. `SSL` and `SASL_SSL` pass through as bytes: counted, not read.",
        kind="text",
        allowed="PLAINTEXT, SASL_PLAINTEXT, SSL or SASL_SSL",
        default="PLAINTEXT",
    )
    inter_broker: bool = switch(
        "inter.broker",
        "Whether brokers talk to each other through this listener; one listener at most. Beside others it is spared "
        "the broker-wide limits of `quotas`. Better not to have a sidecar in front of that listener at all.",
        default=False,
    )
    sasl_oauthbearer_sub_claim_name: str = key(
        "sasl.oauthbearer.sub.claim.name",
        "Claim of an OAUTHBEARER token that holds the client's name; as in the broker.",
        kind="text",
        allowed="the name of a claim",
        default="sub",
        min_length=1,
    )
    proxy_protocol: ProxyProtocol = key(
        "proxy.protocol",
        "Whether each connection begins with a PROXY header (v1 or v2) that tells the client's address, as load "
        "balancers send it. With `required`, connections without one are closed.",
        kind="text",
        allowed="disabled or required",
        default="disabled",
    )
    proxy_protocol_trusted: tuple[Network, ...] = key(
        "proxy.protocol.trusted",
        "Networks of the load balancers, whose PROXY headers are believed; connections from elsewhere are closed. "
        "Needed where `proxy.protocol` is `required`.",
        kind="list of text",
        allowed="a list of networks such as 10.0.0.0/8 or fd00::/8",
        default=(),
    )
    upstream_source: Host | None = key(
        "upstream.source",
        "Local address from which the broker is dialled; without it the kernel chooses.",
        kind="text",
        allowed="an IP address of this host",
        default=None,
    )
    unsupported_request_response: UnsupportedResponse = key(
        "unsupported.request.response",
        "As the key of the same name beside `listeners`, for this listener alone.",
        kind="text",
        allowed=UNSUPPORTED,
        default="empty",
    )
    rewrite_addresses: bool = switch(
        "rewrite.addresses",
        "Whether the brokers' addresses in responses are replaced by those of their sidecars, for brokers that cannot "
        "advertise the sidecar's address themselves. Needs `PLAINTEXT` or `SASL_PLAINTEXT`.",
        default=False,
    )
    rewrite_addresses_map: AddressesByNode = key(
        "rewrite.addresses.map",
        "What stands for the addresses of other brokers with `rewrite.addresses`, by node id. It goes before what "
        "their sidecars have written to the fleet's registry.",
        kind="mapping",
        allowed=f"node ids of other brokers, each with {ENDPOINT}",
        default_factory=dict,
    )


class Registry(Section):
    """The topic in which the sidecars of a cluster find each other."""

    hmac_keys_file: SecretFile | None = key(
        "hmac.keys.file",
        "File of keys that all sidecars of the cluster share: a line `ID:KEY` for each, the first one signs, all are "
        "accepted. With it, records that no sidecar has signed are ignored (docs/security.md). A relative path is "
        "relative to the configuration's folder; another content of the file needs a restart.",
        kind="text",
        allowed="the path of a file",
        default=None,
    )


class Audit(Section):
    """What `observers.audit:AuditObserver` records, and where."""

    topic: Topic = key(
        "topic",
        "Topic that receives the audit events; created if missing.",
        kind="text",
        allowed=TOPIC,
        default="brokerside-audit",
    )
    exclude_topics: tuple[Topic, ...] = key(
        "exclude.topics",
        "Topics left out. A request that touches nothing else gives no event.",
        kind="list of text",
        allowed=f"a list of topics, each {TOPIC}",
        default=(),
    )
    exclude_principals: tuple[Principal, ...] = key(
        "exclude.principals",
        "Principals whose requests and connections give no event. What a connection did before its login is told.",
        kind="list of text",
        allowed="a list of principals such as User:alice",
        default=(),
    )
    producer: Producer = key(
        "producer",
        "librdkafka settings of the audit's producer, over the built-in ones. Security belongs to `internal`.",
        kind="mapping",
        allowed=f"librdkafka settings, each {PLAIN}",
        default_factory=dict,
    )

    mode: AuditMode = key(
        "mode",
        "One event for each request, or one for all requests of a client, api and minute that end within "
        "`rollup.interval.ms`. The tables are the same.",
        kind="text",
        allowed="event or rollup",
        default="event",
    )
    rollup_interval_ms: int = number(
        "rollup.interval.ms", "How long requests are gathered in `mode: rollup`.", 1000, 100, 60_000, "ms"
    )
    inventory_interval_ms: int = number(
        "inventory.interval.ms",
        "How often the cluster is asked which topics there are; the list is told when it has changed, and each hour.",
        60_000,
        1000,
        3_600_000,
        "ms",
    )
    spool_path: Folder | None = key(
        "spool.path",
        "Folder in which events wait until the topic has them, so that neither an outage of the cluster nor a killed "
        "sidecar loses any. Made if missing; several sidecars of one cluster may share it. Without one they wait in "
        "memory only, up to 16 MiB.",
        kind="text",
        allowed="the absolute path of a folder",
        default=None,
    )
    spool_max_bytes: int = number(
        "spool.max.bytes",
        "Most bytes of the spool, for each process that carries connections; above it new events are lost, and "
        "counted.",
        1_073_741_824,
        16_777_216,
        2**50,
        "bytes",
    )
    hmac_keys_file: SecretFile | None = key(
        "hmac.keys.file",
        "File of keys as that of `registry`. With it each audit record is signed, and a job that is given the same "
        "keys takes no other one (docs/security.md).",
        kind="text",
        allowed="the path of a file",
        default=None,
    )


class Admin(Section):
    """The endpoint of metrics, health, limits and reload."""

    bind: Address = key(
        "bind",
        "Address of `/metrics`, `/livez`, `/readyz`, `/quotas`, `/config` and `POST /reload`. They have no "
        "authentication: leave them on loopback.",
        kind="host:port",
        allowed=ENDPOINT,
        default=Endpoint("127.0.0.1", 9644),
    )
    hosts: tuple[HostName, ...] = key(
        "hosts",
        "Names under which the endpoint may be asked, as that of a Kubernetes service. A request under any other name "
        "gets 421, so that no web page reads it by DNS rebinding. IP addresses and `localhost` always work.",
        kind="list of text",
        allowed="a list of host names",
        default=(),
    )


class Config(Section):
    """The whole configuration. ``load`` makes one; nothing changes it afterwards."""

    broker_id: int = key(
        "broker.id",
        "Id of the broker this sidecar stands in front of.",
        kind="integer",
        allowed=f"0–{INT32_MAX}",
        ge=0,
        le=INT32_MAX,
        strict=True,
    )
    broker_version: Version | None = key(
        "broker.version",
        "Version of the broker, which it does not tell itself, for the tags `broker.version` and `broker.version.int`; "
        "without it the release is inferred from what the broker supports.",
        kind="text",
        allowed="text that begins with one to four numbers of 0 to 255, as '4.3.1'",
        default=None,
    )
    tags: Tags = key(
        "tags",
        "Tags of this broker that `BrokerMetadata` tells beside the built-in ones (docs/tags.md). `tag.NAME: VALUE` "
        "beside `broker.id` is the same as `NAME: VALUE` here.",
        kind="mapping",
        allowed=f"up to {MAX_TAGS} tags with names of {TOPIC}, none built in, and text of up to {MAX_TAG_VALUE} "
        "characters",
        default_factory=dict,
    )
    private_api_key_base: int = number(
        "private.api.key.base",
        "Api key of `BrokerMetadata`, the first of the sidecar's own. The same for a whole cluster.",
        30_000,
        10_000,
        32_700,
        "",
    )
    broker_metadata_before_authentication: bool = switch(
        "broker.metadata.before.authentication",
        "Whether `BrokerMetadata` is answered on listeners with SASL before the client has authenticated. It tells "
        "addresses, tags and versions.",
        default=False,
    )
    unsupported_request_response: UnsupportedResponse = key(
        "unsupported.request.response",
        "What a client gets for a request that the broker does not support: an `empty` response, the end of its "
        "connection (`close`), or whatever the broker does (`forward`), which is to close it. For listeners without "
        "their own.",
        kind="text",
        allowed=UNSUPPORTED,
        default="empty",
    )
    unsupported_request_max_consecutive: int = number(
        "unsupported.request.max.consecutive",
        "Requests in a row that the broker does not support, after which the next one ends its connection, where they "
        "are answered `empty`. Any other request begins a new count.",
        1000,
        1,
        1_000_000,
        "requests",
    )
    metadata_watch_ms: int = number(
        "metadata.watch.ms", "How often the cluster is asked which brokers there are.", 1000, 100, 60_000, "ms"
    )
    internal_bootstrap_servers: Servers | None = key(
        "internal.bootstrap.servers",
        "The cluster's INTERNAL listeners, for the sidecar's own Kafka traffic; never a port of a sidecar. "
        "Required with any observer.",
        kind="text",
        allowed=f"{ENDPOINT}; several separated by commas",
        default=None,
    )
    internal: ClientSettings = key(
        "internal",
        "librdkafka client settings of the sidecar's own Kafka traffic, such as `security.protocol` or "
        "`sasl.username`. A value may be `{file: PATH}`; a secret must be.",
        kind="mapping",
        allowed=f"librdkafka settings, each {PLAIN}, or {{file: PATH}}",
        default_factory=dict,
    )
    internal_topics_protected: bool = switch(
        "internal.topics.protected",
        "Whether clients of `PLAINTEXT` and `SASL_PLAINTEXT` listeners are refused what changes the sidecars' own "
        "topics: those whose names begin with `brokerside-` or `__brokerside_`, and `audit.topic` "
        "(docs/protected-topics.md).",
        default=True,
    )
    listeners: Annotated[tuple[Listener, ...], BeforeValidator(not_empty)] = key(
        "listeners",
        "The ports that clients dial.",
        kind="list of mappings",
        allowed="a list of at least one listener, each with name, bind and upstream",
    )
    observer_class_names: Annotated[tuple[ClassName, ...], BeforeValidator(split)] = key(
        "observer.class.names",
        "Observers, as a list or separated by commas. Without any, no request body is decoded.",
        kind="list of text",
        allowed="classes as package.module:Class",
        default=(),
    )
    observer_max_body_bytes: int = number(
        "observer.max.body.bytes",
        "Longest body of a request or response that is kept for an observer that wants to read it. Of a longer one "
        "sizes and counts are told alone.",
        1_048_576,
        0,
        104_857_600,
        "bytes",
    )
    observer_records_deep: bool = switch(
        "observer.records.deep",
        "Whether to unpack compressed message sets of Kafka before 0.11 to count their records, which no header tells. "
        "Done by the observers' threads, of bodies up to `observer.max.body.bytes`.",
        default=False,
    )
    audit: Audit = key("audit", "", kind="mapping", allowed="the keys of audit", default=Audit())
    registry: Registry = key("registry", "", kind="mapping", allowed="the keys of registry", default=Registry())
    admin: Admin = key("admin", "", kind="mapping", allowed="the keys of admin", default=Admin())
    quotas: Quotas = key("quotas", "", kind="mapping", allowed="the keys of quotas", default_factory=Quotas)
    workers: int = number(
        "workers",
        "Processes that carry connections; about one per core that the sidecar may use. With 1 there is one process in "
        "all; with more, one beside them accepts connections and gives each to the worker that has the fewest.",
        1,
        1,
        MAX_WORKERS,
        "processes",
    )
    socket_request_max_bytes: int = number(
        "socket.request.max.bytes",
        "Largest frame from a client; a larger one ends its connection. As in the broker.",
        104_857_600,
        1,
        INT32_MAX,
        "bytes",
    )
    socket_listen_backlog_size: int = number(
        "socket.listen.backlog.size",
        "Connections the kernel keeps until they are accepted; its own limit `net.core.somaxconn` applies too.",
        4096,
        1,
        65_535,
        "connections",
    )
    connection_setup_timeout_ms: int = number(
        "connection.setup.timeout.ms",
        "How long a client may take until its first request is complete, from when its connection to the broker is "
        "there; then it is closed. With `SSL` and `SASL_SSL` its first byte is enough.",
        10_000,
        100,
        3_600_000,
        "ms",
    )
    upstream_connect_timeout_ms: int = number(
        "upstream.connect.timeout.ms",
        "How long the broker may take to accept a connection; then the client's is closed. Of a name with several "
        "addresses up to eight are tried, side by side where one does not answer (RFC 8305).",
        5000,
        1,
        MAX_MS,
        "ms",
    )
    drain_timeout_ms: int = number(
        "drain.timeout.ms",
        "How long a shutdown waits for open requests; then their connections are cut.",
        10_000,
        0,
        MAX_MS,
        "ms",
    )
    observer_shutdown_timeout_ms: int = number(
        "observer.shutdown.timeout.ms",
        "How long a shutdown waits for observers to deliver what they hold; what is left then is lost and counted.",
        2000,
        0,
        MAX_MS,
        "ms",
    )
    log_level: LogLevel = key(
        "log.level", "Least severe lines to log.", kind="text", allowed="debug, info, warning or error", default="info"
    )

    @model_validator(mode="before")
    @classmethod
    def _choose_ip_store(cls, values: object) -> object:
        """Where there is a cluster that can be asked, its rates of addresses count unless the file says otherwise."""
        if not isinstance(values, dict) or values.get("internal.bootstrap.servers") is None:
            return values
        internal = values.get("internal")
        if isinstance(internal, dict) and unheeded(internal) is not None:
            return values
        quotas = values.get("quotas", {})
        return values | {"quotas": {"ip.store": "broker"} | quotas} if isinstance(quotas, dict) else values

    @model_validator(mode="before")
    @classmethod
    def _unsupported_of_listeners(cls, values: object) -> object:
        """Give each listener without its own what is said for all."""
        if not isinstance(values, dict) or not isinstance(values.get("listeners"), list):
            return values
        name = "unsupported.request.response"
        general = values.get(name)
        if general not in get_args(UnsupportedResponse):
            return values
        listeners = [{name: general} | one if isinstance(one, dict) else one for one in values["listeners"]]
        return values | {"listeners": listeners}

    @property
    def quotas_unread(self) -> str | None:
        """Why the cluster's quotas cannot be read though there is a cluster; None where nothing speaks against it."""
        found = unheeded(self.internal) if self.internal_bootstrap_servers is not None else None
        return None if found is None else str(found)

    def internal_client_settings(self) -> dict[str, str]:
        """Return librdkafka's settings for the INTERNAL listeners, ``bootstrap.servers`` included, secrets revealed.

        Only for a Kafka client's constructor: never log or serve them.
        """
        settings = {key: _librdkafka(value) for key, value in self.internal.items()}
        if self.internal_bootstrap_servers is not None:
            settings["bootstrap.servers"] = self.internal_bootstrap_servers
        return settings


def _librdkafka(value: Plain | Secret) -> str:
    if isinstance(value, Secret):
        return value.reveal()
    return str(value).lower() if isinstance(value, bool) else str(value)


def secrets_of(config: Config) -> Iterator[tuple[tuple[str, str], Secret]]:
    """Give all secrets of ``config`` and their places: section and key."""
    for name, value in config.internal.items():
        if isinstance(value, Secret):
            yield ("internal", name), value
    for section, keys in (("audit", config.audit.hmac_keys_file), ("registry", config.registry.hmac_keys_file)):
        if keys is not None:
            yield (section, "hmac.keys.file"), keys


def redacted(config: Config) -> dict[str, Any]:
    """Return ``config`` as it would stand in YAML, defaults filled in, secrets as ``***``; fit for JSON."""
    return config.model_dump(mode="json", by_alias=True)
