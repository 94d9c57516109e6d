"""Every key of the configuration that stands at its top: name, type, default, bounds, unit, meaning and example.

Attributes are the keys with ``_`` for ``.``. Checks across keys are in ``validation``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_args

from pydantic import BeforeValidator, model_validator

from proxy.config.coordinator import CoordinatorConfig
from proxy.config.internal import first_unsupported
from proxy.config.key_definition import ConfigSection, key, number, switch
from proxy.config.quotas import Quotas
from proxy.config.sections import (
    UNSUPPORTED_RESPONSES,
    AdminConfig,
    AuditConfig,
    FeaturesConfig,
    Listener,
    RegistryConfig,
)
from proxy.config.types import (
    ENDPOINT,
    MAX_SOCKET_PATH,
    MAX_TAG_VALUE,
    MAX_TAGS,
    PLAIN,
    TOPIC_NAME_RULE,
    ClassName,
    ClientSettings,
    LogFormat,
    LogLevel,
    ObserverSettings,
    Plain,
    Servers,
    SocketPath,
    Tags,
    UnsupportedResponse,
    Version,
    not_empty,
    split,
)
from proxy.config.values import INT32_MAX, FileText, Secret

MAX_MS = 600_000
"""Ten minutes: longer waits than that would outlive any supervisor's patience."""

MAX_WORKERS = 64
"""More processes than the sidecar of a broker can use: the broker needs cores, too."""

INTERNAL_EXAMPLE = """
  security.protocol: SASL_PLAINTEXT
  sasl.mechanism: SCRAM-SHA-512
  sasl.username: brokerside
  sasl.password: {file: secrets/internal-password}   # relative to this file"""

SECOND_LISTENER_EXAMPLE = """
  - name: TLS
    bind: "[::]:9093"
    advertised: kafka-1.example:9093
    upstream: 127.0.0.1:19093
    security.protocol: SASL_SSL"""


class Config(ConfigSection):
    """The whole configuration. It is immutable; ``load`` makes one."""

    broker_id: int = key(
        "broker.id",
        "Id of the broker this sidecar stands in front of.",
        kind="integer",
        allowed=f"0–{INT32_MAX}",
        ge=0,
        le=INT32_MAX,
        strict=True,
        example="1",
    )
    broker_version: Version | None = key(
        "broker.version",
        "Version of the broker, which it does not report itself, for the tags `broker.version` and "
        "`broker.version.int`; without it the release is inferred from what the broker supports.",
        kind="text",
        allowed="text that begins with one to four numbers of 0 to 255, as '4.3.1'",
        default=None,
        reload=True,
        example="4.3.1",
    )
    tags: Tags = key(
        "tags",
        "Tags of this broker that `BrokerMetadata` returns beside the built-in ones (docs/tags.md). `tag.NAME: VALUE` "
        "beside `broker.id` is the same as `NAME: VALUE` here, and so is `tag.NAME = VALUE`, as in a broker's "
        "properties.",
        kind="mapping",
        allowed=f"up to {MAX_TAGS} tags with names of {TOPIC_NAME_RULE}, none built in, and text of up to "
        f"{MAX_TAG_VALUE} characters",
        default_factory=dict,
        reload=True,
        example="{aws.zone: eu-central-1, cluster: kafka3}\ntag.rack: r8a9",
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
        "Whether `BrokerMetadata` is answered on listeners with SASL before the client has authenticated. It returns "
        "addresses, tags and versions.",
        default=False,
        reload=True,
    )
    unsupported_request_response: UnsupportedResponse = key(
        "unsupported.request.response",
        "What a client gets for a request that the broker does not support: an `empty` response, the end of its "
        "connection (`close`), or whatever the broker does (`forward`), which is to close it. For listeners without "
        "their own.",
        kind="text",
        allowed=UNSUPPORTED_RESPONSES,
        default="empty",
        reload=True,
    )
    unsupported_request_max_consecutive: int = number(
        "unsupported.request.max.consecutive",
        "Requests in a row that the broker does not support, after which the next one ends its connection, where they "
        "are answered `empty`. Any other request begins a new count.",
        1000,
        1,
        1_000_000,
        "requests",
        reload=True,
    )
    metadata_watch_ms: int = number(
        "metadata.watch.ms",
        "How often the cluster is asked which brokers there are.",
        1000,
        100,
        60_000,
        "ms",
        reload=True,
    )
    internal_bootstrap_servers: Servers | None = key(
        "internal.bootstrap.servers",
        "The cluster's INTERNAL listeners, for the sidecar's own Kafka traffic; never a port of a sidecar. "
        "Required with any observer.",
        kind="text",
        allowed=f"{ENDPOINT}; several separated by commas",
        default=None,
        example="127.0.0.1:19094   # never a port of a sidecar",
    )
    internal: ClientSettings = key(
        "internal",
        "librdkafka client settings of the sidecar's own Kafka traffic, such as `security.protocol` or "
        "`sasl.username`. A value may be `{file: PATH}`; a secret must be.",
        kind="mapping",
        allowed=f"librdkafka settings, each {PLAIN}, or {{file: PATH}}",
        default_factory=dict,
        example=INTERNAL_EXAMPLE,
    )
    internal_topics_protected: bool = switch(
        "internal.topics.protected",
        "Whether clients are refused what changes the sidecars' own topics: those whose names begin with `brokerside-` "
        "or `__brokerside_`, and `audit.topic`. Not where TLS passes through (docs/protected-topics.md).",
        default=True,
        reload=True,
    )
    listeners: Annotated[tuple[Listener, ...], BeforeValidator(not_empty)] = key(
        "listeners",
        "The ports that clients dial. A reload opens a listener that is new in the file, and closes one that is no more"
        " in it, its connections between two requests. With another value of a key of a listener, open connections go "
        "on as they are.",
        kind="list of mappings",
        allowed="a list of at least one listener, each with name, bind and upstream",
        reload=True,
        example=SECOND_LISTENER_EXAMPLE,
    )
    observer_class_names: Annotated[tuple[ClassName, ...], BeforeValidator(split)] = key(
        "observer.class.names",
        "Observers, as a list or separated by commas. Without any, no request body is decoded.",
        kind="list of text",
        allowed="classes as package.module:Class",
        default=(),
        example="[observers.audit:AuditObserver]",
    )
    observers: ObserverSettings = key(
        "observers",
        "Settings of observers, by class. `configure` gets those of its class as `settings` (docs/observers.md). "
        "Those of the built-in `observers.opentelemetry:OpenTelemetryLogsObserver`: docs/opentelemetry.md.",
        kind="mapping",
        allowed="for a class of observer.class.names a mapping: text, numbers, true, false, or {file: PATH}",
        default_factory=dict,
        reload=True,
        example="{}",
    )
    observer_max_body_bytes: int = number(
        "observer.max.body.bytes",
        "Longest body of a request or response that is kept for an observer that wants to read it. Of a longer one "
        "only sizes and counts are reported.",
        1_048_576,
        0,
        104_857_600,
        "bytes",
    )
    observer_records_deep: bool = switch(
        "observer.records.deep",
        "Whether to unpack compressed message sets of Kafka before 0.11 to count their records, which no header "
        "contains. Done by the observers' threads, of bodies up to `observer.max.body.bytes`.",
        default=False,
    )
    audit: AuditConfig = key("audit", "", kind="mapping", allowed="the keys of audit", default=AuditConfig())
    registry: RegistryConfig = key(
        "registry", "", kind="mapping", allowed="the keys of registry", default=RegistryConfig()
    )
    features: FeaturesConfig = key(
        "features", "", kind="mapping", allowed="the keys of features", default=FeaturesConfig()
    )
    coordinator: CoordinatorConfig = key(
        "coordinator", "", kind="mapping", allowed="the keys of coordinator", default=CoordinatorConfig()
    )
    admin: AdminConfig = key("admin", "", kind="mapping", allowed="the keys of admin", default=AdminConfig())
    quotas: Quotas = key(
        "quotas", "", kind="mapping", allowed="the keys of quotas", default_factory=Quotas, reload=True
    )
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
        reload=True,
    )
    socket_listen_backlog_size: int = number(
        "socket.listen.backlog.size",
        "Connections the kernel keeps until they are accepted; its own limit `net.core.somaxconn` applies too.",
        4096,
        1,
        65_535,
        "connections",
        reload=True,
    )
    connection_setup_timeout_ms: int = number(
        "connection.setup.timeout.ms",
        "How long a client may take until its first request is complete, from when its connection to the broker is "
        "there; then it is closed. A TLS handshake that the sidecar makes has the same time before that. Where TLS "
        "passes through, the first byte is enough.",
        10_000,
        100,
        3_600_000,
        "ms",
        reload=True,
    )
    connections_max_idle_ms: int | None = key(
        "connections.max.idle.ms",
        "Close a connection on which no byte has passed for so long, as brokers do after 10 minutes by their own "
        "`connections.max.idle.ms`. Without a value it is left to the broker.",
        kind="integer",
        allowed="1000–2147483647 ms",
        unit="ms",
        default=None,
        example="300000",
        ge=1000,
        le=2**31 - 1,
        strict=True,
        reload=True,
    )
    connections_max_age_ms: int | None = key(
        "connections.max.age.ms",
        "Close a connection that is older, between two requests, so that clients connect again and are spread anew; "
        "each up to a tenth earlier, so that those opened together do not end together. Without a value: never.",
        kind="integer",
        allowed="1000–2147483647 ms",
        unit="ms",
        default=None,
        example="86400000",
        ge=1000,
        le=2**31 - 1,
        strict=True,
        reload=True,
    )
    upstream_connect_timeout_ms: int = number(
        "upstream.connect.timeout.ms",
        "How long the broker may take to accept a connection; then the client's is closed. Of a name with several "
        "addresses up to eight are tried, side by side where one does not answer (RFC 8305).",
        5000,
        1,
        MAX_MS,
        "ms",
        reload=True,
    )
    drain_timeout_ms: int = number(
        "drain.timeout.ms",
        "How long a shutdown waits for open requests; then their connections are cut.",
        10_000,
        0,
        MAX_MS,
        "ms",
        reload=True,
    )
    takeover_socket_path: SocketPath | None = key(
        "takeover.socket.path",
        "Unix socket at which a successor takes over from the running sidecar (`brokerside run --takeover`, "
        "docs/restart.md). Only the same user and root may connect. Without it a restart is a stop and a start.",
        kind="text",
        allowed=f"the absolute path of a file, up to {MAX_SOCKET_PATH} bytes, in a folder that exists and that not "
        "every user may write",
        default=None,
        reload=True,
        example="/run/brokerside/takeover.sock",
    )
    observer_shutdown_timeout_ms: int = number(
        "observer.shutdown.timeout.ms",
        "How long a shutdown waits for observers to deliver what they hold; what is left then is lost and counted.",
        2000,
        0,
        MAX_MS,
        "ms",
        reload=True,
    )
    log_level: LogLevel = key(
        "log.level",
        "Least severe lines to log.",
        kind="text",
        allowed="debug, info, warning or error",
        default="info",
        reload=True,
    )
    log_format: LogFormat = key(
        "log.format",
        "Form of log lines: `json`, one object each; `text`, for people; `auto`: text where stderr is a terminal, else "
        "JSON (docs/logging.md).",
        kind="text",
        allowed="auto, json or text",
        default="auto",
        reload=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _choose_ip_store(cls, values: object) -> object:
        """Make ``ip.store`` the broker if there is a cluster whose quotas can be read, and the file does not set it."""
        if not isinstance(values, dict) or values.get("internal.bootstrap.servers") is None:
            return values
        internal = values.get("internal")
        if isinstance(internal, dict) and first_unsupported(internal) is not None:
            return values
        quotas = values.get("quotas", {})
        return values | {"quotas": {"ip.store": "broker"} | quotas} if isinstance(quotas, dict) else values

    @model_validator(mode="before")
    @classmethod
    def _unsupported_of_listeners(cls, values: object) -> object:
        """Give each listener without its own ``unsupported.request.response`` the general one."""
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
        """Why the cluster's quotas cannot be read although there is a cluster; None if they can."""
        found = first_unsupported(self.internal) if self.internal_bootstrap_servers is not None else None
        return None if found is None else str(found)

    @property
    def features_disabled(self) -> str | None:
        """Why this sidecar takes no part in the features of the fleet; None if it does."""
        if self.internal_bootstrap_servers is None:
            return "internal.bootstrap.servers is missing"
        return None if self.features.enabled else "features.enabled is false"

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


def secrets_of(config: Config) -> Iterator[tuple[tuple[str | int, ...], Secret]]:
    """Give the path of each secret of ``config``, and the secret."""
    for path, settings in ((("internal",), config.internal), *_settings_of_observers(config)):
        for name, value in settings.items():
            if isinstance(value, Secret):
                yield (*path, name), value
    for name, field in Config.model_fields.items():
        section = getattr(config, name)
        for below, inner in type(section).model_fields.items() if isinstance(section, ConfigSection) else ():
            value = getattr(section, below)
            if isinstance(value, Secret):
                yield (str(field.alias), str(inner.alias)), value
    for index, listener in enumerate(config.listeners):
        for section in (listener.tls, listener.upstream_tls):
            alias = "tls" if section is listener.tls else "upstream.tls"
            for name, field in type(section).model_fields.items() if section is not None else ():
                if isinstance(value := getattr(section, name), Secret):
                    yield ("listeners", index, alias, str(field.alias)), value


def texts_of_files(config: Config) -> list[tuple[tuple[str | int, ...], FileText]]:
    """Return the path of each text of a file that is part of ``config``, and the text."""
    return [(path, text) for path, text in secrets_of(config) if isinstance(text, FileText)]


def _settings_of_observers(config: Config) -> Iterator[tuple[tuple[str, ...], Mapping[str, Plain | Secret]]]:
    for name, settings in config.observers.items():
        yield ("observers", name), settings


def redacted(config: Config) -> dict[str, Any]:
    """Return ``config`` as it would stand in YAML, defaults filled in, secrets as ``***``; fit for JSON."""
    values = config.model_dump(mode="json", by_alias=True)
    for listener in values["listeners"]:
        for section in ("tls", "upstream.tls"):
            if listener[section] is None:
                del listener[section]  # without a value in YAML it would be there
    return values
