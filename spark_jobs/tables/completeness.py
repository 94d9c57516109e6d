"""The table ``completeness``: which events arrived or were lost, and when the sidecars were alive, by minute."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.events import GAP_EVENT, MAX_SUM, STATUS_EVENT
from spark_jobs.merge import merge_rows
from spark_jobs.parse import CONFLICT_REASON, RECORD_ID, fields_with_defaults
from spark_jobs.schemas import COMPLETENESS
from spark_jobs.tables.columns import MINUTE_US, day_of, start_of_interval, table_columns

MAX_HIDDEN_NAMES = 101
"""Entries of ``hidden_by`` and of ``partly_hidden_by`` that are read of one status; a sidecar sends at most 101."""

MAX_HIDDEN_BY = 300
"""Characters of ``hidden_by``."""


def completeness(parsed: DataFrame) -> DataFrame:
    """Return partial rows of ``completeness``, one for each key, from envelopes, gaps, statuses and conflicts."""
    envelopes = parsed.where(F.col("reason").isNull())
    shares = _arrived_rows(envelopes)
    statuses = _statuses(envelopes)
    hidden = [_hidden_rows(statuses, counts) for counts in ("hidden", "partly_hidden")]
    for part in (_gap_rows(envelopes), _status_rows(statuses), *hidden, _conflict_rows(parsed)):
        shares = shares.unionByName(part, allowMissingColumns=True)
    rows = shares.selectExpr("*", f"{day_of('at')} AS day", f"{start_of_interval('at', MINUTE_US)} AS minute")
    # Sums without a value are 0, not unknown.
    rows = rows.fillna(0, [column.name for column in COMPLETENESS.merged if column.merge == "sum"])
    return merge_rows(rows, COMPLETENESS).select(*table_columns(COMPLETENESS))


def _arrived_rows(envelopes: DataFrame) -> DataFrame:
    return envelopes.selectExpr(
        *RECORD_ID[:3],
        "sent_at AS at",
        "CAST(NULL AS STRING) AS reason",
        "1 AS envelopes",
        "last_seq - first_seq + 1 AS events",
        "first_seq",
        "last_seq",
        "sidecar_version",
    )


def _conflict_rows(parsed: DataFrame) -> DataFrame:
    conflicts = parsed.where(F.col("reason") == CONFLICT_REASON)
    return conflicts.selectExpr(*RECORD_ID[:3], "sent_at AS at", "CAST(NULL AS STRING) AS reason", "1 AS conflicts")


def _gap_rows(envelopes: DataFrame) -> DataFrame:
    """Return one row for each gap. It belongs to the boot that lost the events, and has the time of its envelope."""
    fields = envelopes.selectExpr(
        "cluster_id", "broker_id", "sent_at AS at", "explode(filter(events, one -> one.kind = 'gap')) AS event"
    ).selectExpr("cluster_id", "broker_id", "at", *fields_with_defaults("event", GAP_EVENT))
    return fields.selectExpr(
        "cluster_id",
        "broker_id",
        "lost_boot_id AS boot_id",
        "at",
        "reason",
        f"greatest(0, least(lost_last_seq - lost_first_seq + 1, {MAX_SUM})) AS lost",
        "lost_first_seq",
        "lost_last_seq",
    )


def _statuses(envelopes: DataFrame) -> DataFrame:
    return envelopes.selectExpr(
        *RECORD_ID[:3], "sidecar_version", "explode(filter(events, one -> one.kind = 'sidecar_status')) AS event"
    ).selectExpr(*RECORD_ID[:3], "sidecar_version", *fields_with_defaults("event", STATUS_EVENT))


def _hidden_rows(statuses: DataFrame, counts: str) -> DataFrame:
    """Return one row for each principal and topic of which a status reports events as ``counts``: ``hidden`` or
    ``partly_hidden``."""
    entries = f"slice(map_entries({counts}_by), 1, {MAX_HIDDEN_NAMES})"
    return statuses.selectExpr(*RECORD_ID[:3], "ts AS at", f"explode({entries}) AS entry").selectExpr(
        *RECORD_ID[:3],
        "at",
        "CAST(NULL AS STRING) AS reason",
        f"substring(entry.key, 1, {MAX_HIDDEN_BY}) AS hidden_by",
        f"greatest(0, least(entry.value, {MAX_SUM})) AS {counts}",
    )


def _status_rows(statuses: DataFrame) -> DataFrame:
    lost = f"aggregate(map_values(dropped), 0L, (sum, one) -> sum + greatest(0, least(coalesce(one, 0), {MAX_SUM})))"
    return statuses.selectExpr(
        *RECORD_ID[:3],
        "ts AS at",
        "CAST(NULL AS STRING) AS reason",
        "1 AS statuses",
        "timestamp_micros(ts) AS last_status",
        "timestamp_micros(started_at) AS started_at",
        "seen",
        "emitted",
        "delivered",
        "hidden",
        "partly_hidden",
        f"{lost} AS dropped",
        "waiting + queued + spooled AS waiting",
        f"greatest(0, least(abs(greatest(clock_step_ms, -{MAX_SUM})), {MAX_SUM})) AS clock_step_ms",
        "last AS ended",
        "sidecar_version",
    )
