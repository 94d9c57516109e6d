"""Changes and denials: ``changes``."""

from __future__ import annotations

from spark_jobs.schemas.model import (
    API,
    BROKER,
    CLIENT_ID,
    CLIENT_IP,
    CLUSTER,
    DAY,
    LISTENER,
    PRINCIPAL,
    Table,
    key_column,
    merged_column,
    sum_column,
)

CHANGES = Table(
    "changes",
    "Who changed what, and who was denied what, by minute: topics, configs, ACLs, quotas, users, groups, features, "
    "partitions, reassignments, delegation tokens. Changes that failed are in it, and denied requests of every kind, "
    "reads, writes and fetches included. A request has a row for each resource that it names, and DeleteAcls one for "
    "each ACL that it deleted. Values are never included.",
    (
        DAY,
        key_column("minute", "timestamp", "Minute in which the requests arrived.", "UTC", "ts_request"),
        CLUSTER, BROKER, LISTENER, PRINCIPAL, CLIENT_ID, CLIENT_IP, API,
        key_column("operation", "string", "What the request does, by Kafka's `AclOperation`."),
        key_column("resource_type", "string", "`topic`, `group`, `user`, `config`, …; see the event's `resources`. Of a"
                   " denial without a resource, what the client has no right to.", source="resources[].resource_type"),
        key_column("resource_name", "string", "Its name; NULL where it has none.", source="resources[].resource_name"),
        key_column("parent_type", "string", "What it belongs to: the topic of a `config`, the resource of an ACL's"
                   " `user`.", source="resources[].parent_type"),
        key_column("parent_name", "string", "Its name.", source="resources[].parent_name"),
        key_column("op_type", "string", "`SET`, `DELETE`, `APPEND` or `SUBTRACT` of a `config`; `SET` or `DELETE` of a"
                   " SCRAM `user`; `DELETE` of an ACL that was deleted, NULL of the filter that asked for it. NULL"
                   " where the request says nothing of it.", source="resources[].op_type"),
        key_column("mechanism", "string", "Of a SCRAM `user`: `SCRAM-SHA-256` or `SCRAM-SHA-512`.",
                   source="resources[].mechanism"),
        key_column("acl_permission_type", "string", "Of the `user` of an ACL: `ALLOW` or `DENY`; of a filter also"
                   " `ANY`.", source="resources[].acl_permission_type"),
        key_column("acl_operation", "string", "Likewise: what the user may do, by Kafka's `AclOperation`.",
                   source="resources[].acl_operation"),
        key_column("acl_host", "string", "Likewise: from which host, `*` for all; NULL of a filter for any.",
                   source="resources[].acl_host"),
        key_column("acl_pattern_type", "string", "Likewise: how `parent_name` is meant: `LITERAL`, `PREFIXED`; of a"
                   " filter also `ANY`, `MATCH`.", source="resources[].acl_pattern_type"),
        key_column("result", "string", "`success`, `denied`, `failed`, or `unknown`: no response came, it could not be"
                   " read, or it has more errors than an event lists.", source="resources[].error_code"),
        key_column("error_code", "int", "Kafka's error code; 0 for none.", source="resources[].error_code"),
        key_column("error", "string", "Its name, as `TOPIC_AUTHORIZATION_FAILED`; NULL for none.", source="error_code"),
        key_column("validate_only", "boolean", "The broker was asked to check, and to change nothing."),
        sum_column("requests", "Requests.", "requests", "audit event"),
        sum_column("resources_not_listed", "Resources that these requests name and that have no row of their own: more"
                   " than 1,000 of one request. They share a row without a type and a name, whose result is `unknown`.",
                   "resources", "resource_count"),
        merged_column("min", "first_at", "timestamp", "When the first of them arrived.", "UTC", "ts_request"),
        merged_column("max", "last_at", "timestamp", "When the last of them arrived.", "UTC", "ts_request"),
        merged_column("max", "connection_id", "string", "Connection of one of them, as in `connections`."),
    ),
    example="SELECT last_at, principal, api, resource_type, resource_name, parent_name, op_type, acl_permission_type,"
    " acl_operation, result, error FROM changes ORDER BY ALL",
)  # fmt: skip
