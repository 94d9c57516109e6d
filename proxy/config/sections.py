"""The keys in sections of the configuration: of a listener, the registry, the audit and the admin endpoint."""

from __future__ import annotations

from proxy.config.key_definition import ConfigSection, key, number, switch
from proxy.config.tls_sections import TlsConfig, UpstreamTlsConfig
from proxy.config.types import (
    ENDPOINT,
    PLAIN,
    TOPIC_NAME_RULE,
    Address,
    AddressesByNode,
    AuditMode,
    Folder,
    Host,
    HostName,
    ListenerName,
    Network,
    Principal,
    Producer,
    ProxyProtocol,
    SecretFile,
    SecurityProtocol,
    Topic,
    UnsupportedResponse,
)
from proxy.config.values import Endpoint

UNSUPPORTED_RESPONSES = "empty, close or forward"


class Listener(ConfigSection):
    """One port that clients dial, and the broker's private port behind it."""

    name: ListenerName = key(
        "name",
        "Name in metrics, logs and audit events; unique, whatever the case of its letters.",
        kind="text",
        allowed="one or more of A-Z a-z 0-9 _ . -",
        example="CLIENT",
    )
    bind: Address = key("bind", "Address to listen on.", kind="host:port", allowed=ENDPOINT, example="0.0.0.0:9092")
    advertised: Address = key(
        "advertised",
        "Address at which clients reach this listener.",
        kind="host:port",
        allowed=f"{ENDPOINT}; not 0.0.0.0 or ::",
        default_factory=lambda listener: listener["bind"],
        example="kafka-1.example:9092",
        shown_default="`bind`",
    )
    upstream: Address = key(
        "upstream",
        "The broker's private port that this listener fronts. A name is looked up for each connection; while that "
        "fails, or takes more than a second, its last addresses are used.",
        kind="host:port",
        allowed=ENDPOINT,
        example="127.0.0.1:19092",
    )
    security_protocol: SecurityProtocol = key(
        "security.protocol",
        "Protocol that clients speak. Without `tls`, `SSL` and `SASL_SSL` pass through as bytes: counted, not read.",
        kind="text",
        allowed="PLAINTEXT, SASL_PLAINTEXT, SSL or SASL_SSL",
        default="PLAINTEXT",
        example="SASL_SSL",
    )
    tls: TlsConfig | None = key(
        "tls",
        "Terminates the TLS of clients, with `security.protocol` `SSL` or `SASL_SSL`.",
        kind="mapping",
        allowed="the keys of tls",
        default=None,
    )
    upstream_tls: UpstreamTlsConfig | None = key(
        "upstream.tls",
        "Originates TLS to the broker's port. An empty mapping will do where the broker's CA is one of the system's.",
        kind="mapping",
        allowed="the keys of upstream.tls",
        default=None,
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
        "Whether each connection begins with a PROXY header (v1 or v2) that contains the client's address, as load "
        "balancers send it. With `required`, connections without one are closed.",
        kind="text",
        allowed="disabled or required",
        default="disabled",
        example="required",
    )
    proxy_protocol_trusted: tuple[Network, ...] = key(
        "proxy.protocol.trusted",
        "Networks of the load balancers, whose PROXY headers are believed; connections from elsewhere are closed. "
        "Needed where `proxy.protocol` is `required`.",
        kind="list of text",
        allowed="a list of networks such as 10.0.0.0/8 or fd00::/8",
        default=(),
        example="[10.1.0.0/24]",
    )
    upstream_source: Host | None = key(
        "upstream.source",
        "Local address from which the broker is dialled; without it the kernel chooses.",
        kind="text",
        allowed="an IP address of this host",
        default=None,
        example="127.0.0.1",
    )
    unsupported_request_response: UnsupportedResponse = key(
        "unsupported.request.response",
        "As the key of the same name beside `listeners`, for this listener alone.",
        kind="text",
        allowed=UNSUPPORTED_RESPONSES,
        default="empty",
        reload=True,
        example="close",
        shown_default="that of all",
    )
    rewrite_addresses: bool = switch(
        "rewrite.addresses",
        "Whether the brokers' addresses in responses are replaced by those of their sidecars, for brokers that cannot "
        "advertise the sidecar's address themselves. Needs `PLAINTEXT` or `SASL_PLAINTEXT`.",
        default=False,
        example="true",
    )
    rewrite_addresses_map: AddressesByNode = key(
        "rewrite.addresses.map",
        "What stands for the addresses of other brokers with `rewrite.addresses`, by node id. It goes before what "
        "their sidecars have written to the fleet's registry.",
        kind="mapping",
        allowed=f"node ids of other brokers, each with {ENDPOINT}",
        default_factory=dict,
        example='{"2": "kafka-2.example:9092"}',
    )

    @property
    def is_readable(self) -> bool:
        """Whether frames can be read; otherwise connections are relayed as plain bytes."""
        return self.tls is not None or not self.security_protocol.endswith("SSL")

    @property
    def has_sasl(self) -> bool:
        """Whether clients log in with SASL."""
        return self.security_protocol.startswith("SASL")


class RegistryConfig(ConfigSection):
    """The topic in which the sidecars of a cluster find each other."""

    hmac_keys_file: SecretFile | None = key(
        "hmac.keys.file",
        "File of keys that all sidecars of the cluster share: a line `ID:KEY` for each, the first one signs, all are "
        "accepted. With it, records that no sidecar has signed are ignored (docs/security.md). A relative path is "
        "relative to the configuration's folder; another content of the file needs a restart.",
        kind="text",
        allowed="the path of a file",
        default=None,
        example="secrets/registry-keys",
    )


class FeaturesConfig(ConfigSection):
    """The levels of features that the sidecars of a cluster agree on."""

    enabled: bool = switch(
        "enabled",
        "Whether this sidecar takes part in the feature versions of the fleet (docs/features.md). They need "
        "`internal.bootstrap.servers`. Without them no feature of the fleet is shown to clients or updated. A sidecar "
        "that runs with `false` supports no level, so that no level can be raised by the others.",
        default=True,
    )
    forward: bool = switch(
        "forward",
        "Whether a client may ask this sidecar for an update of features although another one is the controller. With "
        "`false` it gets `NOT_CONTROLLER` (41).",
        default=True,
        reload=True,
    )


class AuditConfig(ConfigSection):
    """What `observers.audit:AuditObserver` records, and where."""

    topic: Topic = key(
        "topic",
        "Topic that receives the audit events; created if missing.",
        kind="text",
        allowed=TOPIC_NAME_RULE,
        default="brokerside-audit",
    )
    exclude_topics: tuple[Topic, ...] = key(
        "exclude.topics",
        "Topics left out. A request that touches nothing else gives no event. What is left out of others is counted in"
        " `partly_hidden`.",
        kind="list of text",
        allowed=f"a list of topics, each {TOPIC_NAME_RULE}",
        default=(),
        example="[__consumer_offsets]",
    )
    exclude_principals: tuple[Principal, ...] = key(
        "exclude.principals",
        "Principals whose requests and connections give no event. What a connection did before its login has events.",
        kind="list of text",
        allowed="a list of principals such as User:alice",
        default=(),
        example="[User:monitoring]",
    )
    producer: Producer = key(
        "producer",
        "librdkafka settings of the audit's producer, over the built-in ones. Security belongs to `internal`.",
        kind="mapping",
        allowed=f"librdkafka settings, each {PLAIN}",
        default_factory=dict,
        example="{compression.type: zstd, compression.level: 1}",
    )

    mode: AuditMode = key(
        "mode",
        "One event for each request, or one for all requests of a client, api and minute that end within "
        "`rollup.interval.ms`. The tables are the same. With `features.enabled` there are rollups once the fleet has "
        "finalized level 2 of `brokerside.audit.event.schema` (docs/audit-event.md).",
        kind="text",
        allowed="event or rollup",
        default="event",
    )
    rollup_interval_ms: int = number(
        "rollup.interval.ms", "How long requests are gathered in `mode: rollup`.", 1000, 100, 60_000, "ms"
    )
    offsets_interval_ms: int = number(
        "offsets.interval.ms",
        "How often committed offsets, members of groups and ends of partitions are sent, of which the tables `groups` "
        "and `lag` are made.",
        30_000,
        1000,
        3_600_000,
        "ms",
    )
    inventory_interval_ms: int = number(
        "inventory.interval.ms",
        "How often the cluster is asked which topics there are; the list is sent when it has changed, and every hour.",
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
        example="/var/lib/brokerside/spool",
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
        example="secrets/audit-keys",
    )


class AdminConfig(ConfigSection):
    """The endpoint of metrics, health, limits and reload."""

    bind: Address = key(
        "bind",
        "Address of `/metrics`, `/livez`, `/readyz`, `/quotas`, `/connections`, `/features`, `/groups`, "
        "`/coordinator`, `/config` and `POST /reload`. They have no authentication: leave them on loopback.",
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
        reload=True,
        example="[kafka-1.example]",
    )
