"""The table ``groups``: who reads what as which consumer group."""

from __future__ import annotations

from datetime import date

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.schemas import GROUPS
from spark_jobs.tables.columns import table_columns
from spark_jobs.tables.topics import IS_READ

CLIENT = ("day", "cluster_id", "principal", "client_id", "client_ip")
"""Columns that identify a client of one day, without its connections."""

MEMBER = (*CLIENT, "group_id", "member_id", "group_instance_id")
"""Columns that identify a member of one day."""


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
