"""Consumer groups: the tables ``group_members``, ``committed_offsets`` and ``end_offsets``, and ``groups``."""

from __future__ import annotations

from datetime import date

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.events import COMMITTED_OFFSET, END_OFFSET, END_OFFSETS_EVENT, GROUP_EVENT
from spark_jobs.parse import explode_events, fields_with_defaults
from spark_jobs.schemas import COMMITTED_OFFSETS, END_OFFSETS, GROUP_MEMBERS, GROUPS
from spark_jobs.tables.columns import MINUTE_US, day_of, start_of_interval, table_columns
from spark_jobs.tables.topics import IS_READ

CLIENT = ("day", "cluster_id", "principal", "client_id", "client_ip")
"""Columns that identify a client of one day, without its connections."""

MEMBER = (*CLIENT, "group_id", "member_id", "group_instance_id")
"""Columns that identify a member of one day."""


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


def groups(members: DataFrame, traffic: DataFrame, since: date | None) -> DataFrame:
    """Return the rows of ``groups`` of the day ``since`` and later ones (None: of all days).

    ``members``: merged rows of ``group_members``. ``traffic``: stored rows.
    """
    if since is not None:
        members, traffic = (table.where(F.col("day") >= F.lit(since)) for table in (members, traffic))
    whole = members.groupBy(*MEMBER).agg(
        F.expr("max_by(group_type, if(group_type IS NULL, NULL, last_seen))").alias("group_type"),
        F.expr("max_by(generation_id, if(generation_id IS NULL, NULL, last_seen))").alias("generation_id"),
        F.sum("requests").alias("requests"),
        F.sum("commits").alias("commits"),
        F.min("first_seen").alias("first_seen"),
        F.max("last_seen").alias("last_seen"),
    )
    own = members.where("topic IS NOT NULL").groupBy(*MEMBER, "topic").agg(F.max("committed_at").alias("committed_at"))
    own = own.withColumn("topic_source", F.expr("if(committed_at IS NULL, 'connection', 'commit')"))
    topics = own.unionByName(_topics_of_clients(whole, own, traffic), allowMissingColumns=True)
    return _join(whole, topics, MEMBER, "left").select(*table_columns(GROUPS))


def _topics_of_clients(whole: DataFrame, own: DataFrame, traffic: DataFrame) -> DataFrame:
    """Return topics that the client of a member fetched, and that are not known of the member itself: ``MEMBER``,
    topic, topic_source."""
    read = traffic.where(f"topic IS NOT NULL AND {IS_READ}").select(*CLIENT, "topic").distinct()
    in_groups = whole.groupBy(*CLIENT).agg(F.countDistinct("group_id").alias("groups"))
    shared = in_groups.selectExpr(*CLIENT, "if(groups > 1, 'shared_client', 'client') AS topic_source")
    # A commit without membership is a tool's.
    read = _join(read, shared, CLIENT)
    found = _join(whole.where("member_id IS NOT NULL").select(*MEMBER), read, CLIENT)
    return _join(found, own, (*MEMBER, "topic"), "left_anti")


def _join(left: DataFrame, right: DataFrame, names: tuple[str, ...], how: str = "inner") -> DataFrame:
    """Return ``left`` joined with ``right`` where ``names`` are equal or both NULL, each column of it once."""
    same = [F.col(f"one.{name}").eqNullSafe(F.col(f"other.{name}")) for name in names]
    both = left.alias("one").join(right.alias("other"), same, how)
    others = [] if how == "left_anti" else [f"other.{name}" for name in right.columns if name not in names]
    return both.select(*[f"one.{name}" for name in left.columns], *others)


def _group_events(parsed: DataFrame) -> DataFrame:
    return explode_events(parsed, "group").selectExpr(
        "cluster_id", "broker_id", *fields_with_defaults("event", GROUP_EVENT)
    )
