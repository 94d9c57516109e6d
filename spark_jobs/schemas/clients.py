"""Who the clients are: ``clients``, ``connections``, ``throttles``, and the limits they need, ``quota_advice``."""

from __future__ import annotations

from spark_jobs.schemas.model import (
    API,
    BOOT,
    BROKER,
    CLIENT_ID,
    CLIENT_IP,
    CLUSTER,
    DAY,
    LISTENER,
    PRINCIPAL,
    Column,
    Table,
    key,
    merged,
    total,
)

CLIENTS = Table(
    "clients",
    "Which clients there are, with their software and the versions of the apis they use: who must be upgraded before "
    "the brokers are.",
    (
        key("day", "date", "Day in which the requests arrived; the table is partitioned by it.", "UTC"),
        CLUSTER,
        PRINCIPAL,
        CLIENT_ID,
        CLIENT_IP,
        key(
            "software_name",
            "string",
            "As the client told with ApiVersions (KIP-511); NULL of older clients.",
            source="client_software_name",
        ),
        key("software_version", "string", "Likewise.", source="client_software_version"),
        API,
        key("api_version", "int", "Version of the requests.", source="api_version"),
        total("requests", "Requests.", "requests", "audit event"),
        merged("min", "first_seen", "timestamp", "Minute of the first of them.", "UTC", "ts_request, minute"),
        merged("max", "last_seen", "timestamp", "Minute of the last of them.", "UTC", "ts_request, minute"),
        merged(
            "max",
            "refused_since",
            "string",
            "First release of Kafka whose brokers refuse this version of the api (KIP-896: `4.0`); NULL where the"
            " newest known here accepts it.",
            source="api_key, api_version",
        ),
    ),
    example="SELECT client_id, software_name, software_version, list(DISTINCT api ORDER BY api) AS refused_apis"
    " FROM clients WHERE refused_since IS NOT NULL GROUP BY ALL ORDER BY ALL",
)

_CLOSED = "NULL as long as it is open."

CONNECTIONS = Table(
    "connections",
    "One row for each connection of a client, in the words of Redpanda's `KafkaConnection`. What was not told, because "
    "it is still open or was lost, is NULL.",
    (
        merged("max", "day", "date", "Day in which something was last told of it; partitions the table.", "UTC", "ts"),
        CLUSTER,
        BROKER,
        BOOT,
        key("connection_id", "string", "Id of the connection, unique within one run.", source="connection_id"),
        merged("last", "listener", "string", "Listener the client came in by.", source="listener"),
        merged("last", "client_ip", "string", "Address of the client.", source="client_ip"),
        merged("last", "client_port", "int", "Port of the client.", source="client_port"),
        merged("last", "principal", "string", "Who the client is, as last known.", source="principal"),
        merged("last", "principal_source", "string", "How that is known.", source="principal_source"),
        merged(
            "last",
            "refused_principal",
            "string",
            "Who it said to be when a login last failed; NULL: none did.",
            source="principal of `authentication_failed`",
        ),
        merged("last", "sasl_mechanism", "string", "SASL mechanism; NULL without.", source="sasl_mechanism"),
        merged("last", "client_id", "string", f"Client id of its last request. {_CLOSED}", source="client_id"),
        merged("last", "software_name", "string", "As the client told.", source="client_software_name"),
        merged("last", "software_version", "string", "As the client told.", source="client_software_version"),
        merged("min", "opened_at", "timestamp", "When it was accepted.", "UTC", "ts of `opened`"),
        merged("max", "authenticated_at", "timestamp", "When it last logged in.", "UTC", "ts of `authenticated`"),
        merged("max", "closed_at", "timestamp", f"When it ended. {_CLOSED}", "UTC", "ts of `closed`"),
        total("authentications", "Successful logins.", "logins", "`authenticated`"),
        total("authentication_failures", "Failed logins.", "logins", "`authentication_failed`"),
        merged("max", "cause", "string", f"Why it ended. {_CLOSED}", source="cause"),
        merged("max", "duration_ms", "bigint", f"How long it was open. {_CLOSED}", "ms", "duration_ms"),
        merged("max", "requests", "bigint", f"Requests it carried. {_CLOSED}", "requests", "requests"),
        merged("max", "received_bytes", "bigint", f"Bytes from the client. {_CLOSED}", "bytes", "received_bytes"),
        merged("max", "sent_bytes", "bigint", f"Bytes to the client. {_CLOSED}", "bytes", "sent_bytes"),
        merged("max", "last_seq", "bigint", "Number of the last event that told of it.", source="seq"),
    ),
    example="SELECT client_ip, principal, count(*) AS connections, sum(requests) AS requests,"
    " sum(authentication_failures) AS failed_logins FROM connections GROUP BY ALL ORDER BY ALL",
    order="last_seq",
)

THROTTLES = Table(
    "throttles",
    "Whose connections met which limit, by minute.",
    (
        DAY,
        key("minute", "timestamp", "Minute in which the first of them met the limit.", "UTC", "ts_first"),
        CLUSTER,
        BROKER,
        LISTENER,
        key("client_ip", "string", "Address of the clients; `*` for many together.", source="client_ip"),
        key("scope", "string", "Whose limit: `broker`, `listener`, `ip`.", source="scope"),
        key("quota", "string", "`connection_creation_rate` or `connections`.", source="quota"),
        key("action", "string", "`delay`, `hold`, `drop`, `observe`.", source="action"),
        total("count", "Connections.", "connections", "count"),
        merged("max", "quota_limit", "bigint", "The limit.", "connections/s or connections", "limit"),
        merged("max", "observed", "double", "The most that was compared with it.", "as `quota_limit`", "observed"),
        merged("max", "delay_ms", "bigint", "The longest that one of them had to wait.", "ms", "delay_ms"),
        merged("min", "first_at", "timestamp", "When the first of them met the limit.", "UTC", "ts_first"),
        merged("max", "last_at", "timestamp", "When the last of them did.", "UTC", "ts_last"),
    ),
    example="SELECT client_ip, scope, quota, action, sum(count) AS connections, max(observed) AS observed,"
    " max(quota_limit) AS quota_limit FROM throttles GROUP BY ALL ORDER BY ALL",
)

QUOTA_ADVICE = Table(
    "quota_advice",
    "Limits that would have let through what came, with room: a value to begin with for each limit of the sidecar. "
    "Judged from the connections that were let in, as far back as `connections` keeps them. A rate is counted about as "
    "the sidecar does (docs/limits.md): the connections of a second of the clock and of the ten before it, divided by "
    "ten seconds; an even flow gives up to a tenth more than there, bursts eleven seconds apart up to a quarter less. "
    "One that is open counts in the number until its end, or until its sidecar's.",
    (
        Column("day", "date", "Day of the newest connection judged; partitions the table.", "UTC"),
        Column("cluster_id", "string", "The Kafka cluster's own id."),
        Column("scope", "string", "`broker`, `listener`, or `ip`: the worst of all addresses."),
        Column("broker_id", "int", "The broker whose sidecar would have the limit; NULL: the worst of all of them, for"
               " a limit that all have alike."),
        Column("listener", "string", "The listener of scope `listener`; else NULL."),
        Column("quota", "string", "`connection_creation_rate` or `connections`."),
        Column("config", "string", "The key that sets it, below `quotas` in the sidecar's configuration."),
        Column("observations", "bigint", "Connections that were looked at.", "connections"),
        Column("since", "timestamp", "When the first of them was opened.", "UTC"),
        Column("until", "timestamp", "When the last of them was opened.", "UTC"),
        Column("p99", "double", "99 of 100 seconds in which a connection was opened saw at most this.",
               "connections/s or connections"),
        Column("peak", "double", "The most there ever was.", "as `p99`"),
        Column("peak_at", "timestamp", "When that was; the first time.", "UTC"),
        Column("peak_by", "string", "Address and principal of a connection that was opened then; NULL but for scope"
               " `ip`."),
        Column("throttled", "bigint", "Connections that met a limit of this kind in that time.", "connections"),
        Column("advice", "bigint", "The peak with half as much room again, rounded up; at least 1.", "as `p99`"),
    ),
    example="SELECT scope, listener, quota, peak, advice, config FROM quota_advice WHERE broker_id IS NULL"
    " ORDER BY ALL",
    derived_from=("connections", "throttles", "completeness"),
    whole=True,
)  # fmt: skip
