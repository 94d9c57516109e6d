"""The table ``changes``: who changed what, and who was denied what."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.events import MAX_SUM, REQUEST_EVENT
from spark_jobs.kafka_errors import AUTHORIZATION_ERRORS, ERROR_NAMES
from spark_jobs.parse import explode_events, fields_with_defaults
from spark_jobs.schemas import CHANGES
from spark_jobs.tables.columns import MINUTE_US, day_of, start_of_interval, table_columns

CHANGE_OPERATIONS = ("Create", "Delete", "Alter", "AlterConfigs", "CreateTokens")
"""Operations that change something but records and offsets of a group; they are those of the sidecars."""

DENIED_CODES = tuple(AUTHORIZATION_ERRORS)

USED_FIELD_NAMES = (
    "listener", "principal", "client_id", "client_ip", "api", "operation", "resources", "resource_count",
    "validate_only", "error_code", "item_errors", "item_failures", "item_retriable", "item_protocol", "topics",
    "connection_id", "outcome", "decode", "synthesized", "ts_request",
)  # fmt: skip
USED_FIELDS = [field for field in REQUEST_EVENT if field.name in USED_FIELD_NAMES]

DETAILS = (
    "op_type", "mechanism", "acl_permission_type", "acl_operation", "acl_host", "acl_pattern_type",
)  # fmt: skip
"""Columns that say how a resource of ``resources`` was changed."""

_NO_TEXT = "CAST(NULL AS STRING)"

_CHANGES = f"operation IN {CHANGE_OPERATIONS}"


UNSUPPORTED_VERSION = 35
"""Result of a request that the sidecar answered itself, without an error."""

NEVER_OF_A_TOPIC = (30, 53, 65)
"""GROUP, TRANSACTIONAL_ID and DELEGATION_TOKEN_AUTHORIZATION_FAILED. A response may have them at a topic: the client
has no right to the group, transactional id or token, which has the same code in the event."""

_HAS_UNKNOWN = (
    "(outcome != 'answered' OR decode NOT IN ('none', 'full')"
    " OR item_failures + item_retriable + item_protocol > size(item_errors))"
)


def is_change(event: str) -> str:
    """Return SQL: whether the request ``event`` changed something, or a part of it was denied."""
    denied = f"each.error_code IN {DENIED_CODES}"
    return (
        f"(coalesce({event}.operation IN {CHANGE_OPERATIONS}, false)"
        f" OR coalesce({event}.error_code IN {DENIED_CODES}, false)"
        f" OR coalesce(exists({event}.resources, each -> {denied}), false)"
        f" OR coalesce(exists({event}.item_errors, each -> {denied}), false)"
        f" OR coalesce(exists({event}.topics, each -> {denied}), false))"
    )


def changes(parsed: DataFrame) -> DataFrame:
    """Return partial rows of ``changes``, one for each key, of ``parsed``."""
    requests = explode_events(parsed, "request").where(is_change("event"))
    requests = requests.selectExpr("cluster_id", "broker_id", *fields_with_defaults("event", USED_FIELDS))
    of_requests = requests.withColumn("resource", F.explode(F.expr(_resources_sql()))).selectExpr(
        "*",
        "resource.type AS resource_type",
        "resource.name AS resource_name",
        "resource.parent_type AS parent_type",
        "resource.parent_name AS parent_name",
        "resource.code AS code",
        *[f"resource.{name} AS {name}" for name in DETAILS],
    )
    rows = of_requests.selectExpr(
        *["cluster_id", "broker_id", "listener", "principal", "client_id", "client_ip", "api", "operation"],
        *["resource_type", "resource_name", "parent_type", "parent_name", "connection_id", "validate_only", *DETAILS],
        f"CASE WHEN code IN {DENIED_CODES} THEN 'denied' WHEN code = 0 THEN 'success'"
        f" WHEN code = -1 AND (resource.not_listed > 0 OR {_HAS_UNKNOWN}) THEN 'unknown' ELSE 'failed' END AS result",
        "code AS error_code",
        f"{day_of('ts_request')} AS day",
        f"{start_of_interval('ts_request', MINUTE_US)} AS minute",
        "timestamp_micros(ts_request) AS at",
        "resource.not_listed AS not_listed",
    ).withColumn("error", _error_name())
    return (
        rows.groupBy(*CHANGES.keys)
        .agg(
            F.count("*").alias("requests"),
            F.sum("not_listed").alias("resources_not_listed"),
            F.min("at").alias("first_at"),
            F.max("at").alias("last_at"),
            F.max("connection_id").alias("connection_id"),
        )
        .select(*table_columns(CHANGES))
    )


def _resources_sql() -> str:
    """Return SQL of the resources of a request that have a row.

    Of a change those that it names, and of a denied request those that were denied. Without any, what the error codes
    say. One more, without a name, for those of a change that are not listed.
    """
    named = ["each.resource_type", "each.resource_name", "coalesce(each.error_code, 0)"]
    parent = ["each.parent_type", "each.parent_name"]
    of_request = _resource(*named, *parent, *[f"each.{name}" for name in DETAILS])
    of_item = _resource(*named, *parent)
    of_topic = _resource("'topic'", "each.topic", "each.error_code")
    denied = f"each.error_code IN {DENIED_CODES}"
    elsewhere = f"(each.error_code IN {NEVER_OF_A_TOPIC} AND each.resource_type = 'topic')"
    is_shown = f"coalesce({_CHANGES}, false) OR ({denied} AND NOT {elsewhere})"
    of_code = "".join(f" WHEN {code} THEN '{type}'" for code, type in AUTHORIZATION_ERRORS.items())
    answered = f"if(error_code = 0 AND synthesized, {UNSUPPORTED_VERSION}, error_code)"
    code = f"if(outcome = 'answered', {answered}, if(error_code = 0, -1, error_code))"
    whole = _resource(f"CASE error_code{of_code} END", _NO_TEXT, code)
    not_listed = f"if({_CHANGES}, least(resource_count - size(resources), {MAX_SUM}), 0)"
    more = _resource(_NO_TEXT, _NO_TEXT, "-1", not_listed=not_listed)
    return (
        f"concat(CASE WHEN exists(resources, each -> {is_shown})"
        f" THEN array_distinct(transform(filter(resources, each -> {is_shown}), each -> {of_request}))"
        f" WHEN exists(item_errors, each -> {denied}) OR exists(topics, each -> {denied})"
        f" THEN array_distinct(concat(transform(filter(item_errors, each -> {denied}), each -> {of_item}),"
        f" transform(filter(topics, each -> {denied}), each -> {of_topic})))"
        f" ELSE array({whole}) END, if({not_listed} > 0, array({more}), array()))"
    )


def _resource(type: str, name: str, code: str, *others: str, not_listed: str = "0") -> str:
    """Return SQL of one resource. ``others``: as many of its parent's type and name and of ``DETAILS`` as it has."""
    names = ("type", "name", "code", "parent_type", "parent_name", *DETAILS)
    values = (type, name, code, *others, *[_NO_TEXT] * (2 + len(DETAILS) - len(others)))
    fields = [f"'{name}', {value}" for name, value in zip(names, values, strict=True)]
    return f"named_struct({', '.join(fields)}, 'not_listed', CAST({not_listed} AS BIGINT))"


def _error_name() -> Column:
    names = F.create_map(*[F.lit(part) for code, name in ERROR_NAMES.items() if code for part in (code, name)])
    return F.when(F.col("error_code") != 0, F.try_element_at(names, F.col("error_code")))
