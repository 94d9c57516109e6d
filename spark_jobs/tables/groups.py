"""Consumer groups: the tables ``group_members``, ``committed_offsets`` and ``end_offsets``."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.events import COMMITTED_OFFSET, END_OFFSET, END_OFFSETS_EVENT, GROUP_EVENT
from spark_jobs.parse import explode_events, fields_with_defaults
from spark_jobs.schemas import COMMITTED_OFFSETS, END_OFFSETS, GROUP_MEMBERS
from spark_jobs.tables.columns import MINUTE_US, day_of, start_of_interval, table_columns


def group_members(parsed: DataFrame) -> DataFrame:
    """Return partial rows of ``group_members``, one for each key, of ``parsed``."""
    members = _group_events(parsed)
    of_topics = """concat(
        array(named_struct('topic', CAST(NULL AS STRING), 'ts', CAST(NULL AS BIGINT))),
        transform(committed, each -> named_struct('topic', each.topic, 'ts', each.ts)),
        transform(fetched, each -> named_struct('topic', each, 'ts', CAST(NULL AS BIGINT))))"""
    rows = members.selectExpr("*", f"explode({of_topics}) AS of_topic").selectExpr(
        *[name for name in members.columns if name not in ("committed", "fetched")],
        "of_topic.topic AS topic",
        "timestamp_micros(of_topic.ts) AS committed_at_us",
        "timestamp_micros(ts_last) AS seen",
        f"{day_of('ts_last')} AS day",
    )
    is_member_row = "topic IS NULL"
    return (
        rows.groupBy(*GROUP_MEMBERS.keys)
        .agg(
            F.expr("max_by(group_type, if(group_type IS NULL, NULL, struct(seen, group_type)))").alias("group_type"),
            F.expr("max_by(generation_id, if(generation_id < 0, NULL, struct(seen, generation_id)))").alias(
                "generation_id"
            ),
            *[
                F.expr(f"sum(if({is_member_row}, {name}, 0))").alias(name)
                for name in ("requests", "commits", "offsets_not_listed")
            ],
            F.expr("min(timestamp_micros(ts_first))").alias("first_seen"),
            F.max("seen").alias("last_seen"),
            F.max("committed_at_us").alias("committed_at"),
        )
        .select(*table_columns(GROUP_MEMBERS))
    )


def committed_offsets(parsed: DataFrame) -> DataFrame:
    """Return partial rows of ``committed_offsets``, one for each key, of ``parsed``."""
    each = _group_events(parsed).selectExpr("cluster_id", "group_id", "explode(committed) AS one")
    rows = each.selectExpr("cluster_id", "group_id", *fields_with_defaults("one", COMMITTED_OFFSET)).selectExpr(
        "*", f"{day_of('ts')} AS day", f"{start_of_interval('ts', MINUTE_US)} AS minute"
    )
    return (
        rows.groupBy(*COMMITTED_OFFSETS.keys)
        .agg(
            F.expr("max_by(offset, struct(ts, offset))").alias("committed_offset"),
            F.expr("max_by(transactional, struct(ts, transactional))").alias("transactional"),
            F.expr("max(timestamp_micros(ts))").alias("committed_at"),
        )
        .select(*table_columns(COMMITTED_OFFSETS))
    )


def end_offsets(parsed: DataFrame) -> DataFrame:
    """Return partial rows of ``end_offsets``, one for each key, of ``parsed``."""
    events = explode_events(parsed, "end_offsets").selectExpr(
        "cluster_id", *fields_with_defaults("event", [field for field in END_OFFSETS_EVENT if field.fields])
    )
    each = events.selectExpr("cluster_id", "explode(end_offsets) AS one")
    rows = each.selectExpr("cluster_id", *fields_with_defaults("one", END_OFFSET)).selectExpr(
        "*",
        f"{day_of('ts')} AS day",
        f"{start_of_interval('ts', MINUTE_US)} AS minute",
        "date_trunc('SECOND', timestamp_micros(ts)) AS second",  # within it the highest holds, as in the sidecars
    )
    return (
        rows.groupBy(*END_OFFSETS.keys)
        .agg(
            F.expr("max_by(offset, struct(second, offset))").alias("end_offset"),
            F.expr("max(second)").alias("end_offset_at"),
        )
        .select(*table_columns(END_OFFSETS))
    )


def _group_events(parsed: DataFrame) -> DataFrame:
    return explode_events(parsed, "group").selectExpr(
        "cluster_id", "broker_id", *fields_with_defaults("event", GROUP_EVENT)
    )
