"""Clients: ``clients``, ``connections``, ``throttles``, and the quotas that they need, ``quota_advice``."""

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
    key_column,
    merged_column,
    sum_column,
)

CLIENTS = Table(
    "clients",
    "Which clients there are, with their software and the api versions they use: which clients must be upgraded before "
    "the brokers.",
    (
        key_column("day", "date", "Day in which the requests arrived; the table is partitioned by it.", "UTC", ""),
        CLUSTER, PRINCIPAL, CLIENT_ID, CLIENT_IP,
        key_column("software_name", "string", "Sent by the client with ApiVersions (KIP-511); NULL for older clients.",
                   source="client_software_name"),
        key_column("software_version", "string", "Sent with `software_name`.", source="client_software_version"),
        API,
        key_column("api_version", "int", "Version of the requests."),
        sum_column("requests", "Requests.", "requests", "audit event"),
        merged_column("min", "first_seen", "timestamp", "Minute of the first of them.", "UTC", "ts_request, minute"),
        merged_column("max", "last_seen", "timestamp", "Minute of the last of them.", "UTC", "ts_request, minute"),
        merged_column("max", "refused_since", "string", "First release of Kafka whose brokers reject this version of"
                      " the api (KIP-896: `4.0`); NULL if the newest release known here accepts it.",
                      source="api_key, api_version"),
    ),
    example="SELECT client_id, software_name, software_version, list(DISTINCT api ORDER BY api) AS refused_apis"
    " FROM clients WHERE refused_since IS NOT NULL GROUP BY ALL ORDER BY ALL",
)  # fmt: skip

_CLOSED = "NULL while it is open."

CONNECTIONS = Table(
    "connections",
    "One row for each connection of a client, with the names of Redpanda's `KafkaConnection`. Unknown values, "
    "because the connection is still open or events were lost, are NULL.",
    (
        merged_column("max", "day", "date", "Day of the last event of the connection; partitions the table.", "UTC",
                      "ts"),
        CLUSTER, BROKER, BOOT,
        key_column("connection_id", "string", "Id of the connection, unique within one run."),
        merged_column("last", "listener", "string", "Listener that the client connected to."),
        merged_column("last", "client_ip", "string", "Address of the client."),
        merged_column("last", "client_port", "int", "Port of the client."),
        merged_column("last", "principal", "string", "Last known principal of the client."),
        merged_column("last", "principal_source", "string", "How the principal is known."),
        merged_column("last", "refused_principal", "string", "Principal claimed in the last failed login; NULL without"
                      " one.", source="principal of `authentication_failed`"),
        merged_column("last", "sasl_mechanism", "string", "SASL mechanism; NULL without."),
        merged_column("last", "tls_version", "string", "Version of TLS where the sidecar terminates it, such as"
                      " `TLSv1.3`; NULL without."),
        merged_column("last", "tls_cipher", "string", "Likewise: cipher suite by Kafka's name."),
        merged_column("last", "tls_client_serial", "string", "Likewise: serial number of the client's certificate, in"
                      " hexadecimal digits."),
        merged_column("last", "client_id", "string", f"Client id of its last request. {_CLOSED}"),
        merged_column("last", "software_name", "string", "Sent by the client with ApiVersions.",
                      source="client_software_name"),
        merged_column("last", "software_version", "string", "Sent by the client with ApiVersions.",
                      source="client_software_version"),
        merged_column("min", "opened_at", "timestamp", "When it was accepted.", "UTC", "ts of `opened`"),
        merged_column("max", "authenticated_at", "timestamp", "When it last logged in.", "UTC",
                      "ts of `authenticated`"),
        merged_column("max", "closed_at", "timestamp", f"When it ended. {_CLOSED}", "UTC", "ts of `closed`"),
        sum_column("authentications", "Successful logins.", "logins", "`authenticated`"),
        sum_column("authentication_failures", "Failed logins.", "logins", "`authentication_failed`"),
        merged_column("max", "cause", "string", f"Why it ended. {_CLOSED}"),
        merged_column("max", "duration_ms", "bigint", f"How long it was open. {_CLOSED}", "ms"),
        merged_column("max", "requests", "bigint", f"Requests it carried. {_CLOSED}", "requests"),
        merged_column("max", "received_bytes", "bigint", f"Bytes from the client. {_CLOSED}", "bytes"),
        merged_column("max", "sent_bytes", "bigint", f"Bytes to the client. {_CLOSED}", "bytes"),
        merged_column("max", "last_seq", "bigint", "Number of the last event of the connection.", source="seq"),
    ),
    example="SELECT client_ip, principal, count(*) AS connections, sum(requests) AS requests,"
    " sum(authentication_failures) AS failed_logins FROM connections GROUP BY ALL ORDER BY ALL",
    order="last_seq",
)  # fmt: skip

THROTTLES = Table(
    "throttles",
    "Which connections met which quota, by minute.",
    (
        DAY,
        key_column("minute", "timestamp", "Minute in which the first of them met the limit.", "UTC", "ts_first"),
        CLUSTER, BROKER, LISTENER,
        key_column("client_ip", "string", "Address of the clients; `*` for many together."),
        key_column("scope", "string", "Whose limit: `broker`, `listener`, `ip`, `principal`."),
        key_column("principal", "string", "Of scope `principal`: who had authenticated; `*` for many together. Else"
                   " NULL."),
        key_column("quota", "string", "`connection_creation_rate` or `connections`."),
        key_column("action", "string", "`delay`, `hold`, `drop`, `observe`."),
        sum_column("count", "Connections.", "connections"),
        merged_column("max", "quota_limit", "bigint", "The limit.", "connections/s or connections", "limit"),
        merged_column("max", "observed", "double", "The greatest value that was compared with it.", "as `quota_limit`"),
        merged_column("max", "delay_ms", "bigint", "The longest delay of one of them.", "ms"),
        merged_column("min", "first_at", "timestamp", "When the first of them met the limit.", "UTC", "ts_first"),
        merged_column("max", "last_at", "timestamp", "When the last of them did.", "UTC", "ts_last"),
    ),
    example="SELECT client_ip, scope, principal, quota, action, sum(count) AS connections, max(observed) AS observed,"
    " max(quota_limit) AS quota_limit FROM throttles GROUP BY ALL ORDER BY ALL",
)  # fmt: skip

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
