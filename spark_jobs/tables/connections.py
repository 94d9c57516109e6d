"""The table ``connections``: one row for each connection, put together from what was told of it."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.events import CONNECTION_EVENT
from spark_jobs.parse import explode_events, fields_with_defaults
from spark_jobs.schemas import CONNECTIONS
from spark_jobs.tables.columns import columns_of, day_of

LAST = {
    "listener": "listener",
    "client_ip": "client_ip",
    "client_port": "client_port",
    # Of a failed login the event names who the client said to be; who it is stays what it was.
    "principal": "if(change != 'authentication_failed', principal, NULL)",
    "principal_source": "if(change != 'authentication_failed', principal_source, NULL)",
    "refused_principal": "if(change = 'authentication_failed', principal, NULL)",
    "sasl_mechanism": "sasl_mechanism",
    "client_id": "client_id",
    "software_name": "client_software_name",
    "software_version": "client_software_version",
}
"""Columns that are as last told, and of what."""

OF_CLOSED = ("cause", "duration_ms", "requests", "received_bytes", "sent_bytes")
"""Columns that only the end of a connection tells."""


def connections(parsed: DataFrame) -> DataFrame:
    """Return partial rows of ``connections``: of each day one for each that ``parsed`` tells something of.

    A day's rows hold what that day's events say and nothing else, so that a day can be computed again by itself.
    """
    told = explode_events(parsed, "connection").selectExpr(
        "cluster_id", "broker_id", "boot_id", *fields_with_defaults("event", CONNECTION_EVENT)
    )
    told = told.withColumn("day", F.expr(day_of("ts")))
    at = "timestamp_micros(ts)"
    rows = told.groupBy(*CONNECTIONS.keys, "day").agg(
        *[F.expr(f"max_by({value}, if({value} IS NULL, NULL, seq))").alias(name) for name, value in LAST.items()],
        F.expr(f"min(if(change = 'opened', {at}, NULL))").alias("opened_at"),
        F.expr(f"max(if(change = 'authenticated', {at}, NULL))").alias("authenticated_at"),
        F.expr(f"max(if(change = 'closed', {at}, NULL))").alias("closed_at"),
        F.expr("count_if(change = 'authenticated')").alias("authentications"),
        F.expr("count_if(change = 'authentication_failed')").alias("authentication_failures"),
        *[F.expr(f"max(if(change = 'closed', {name}, NULL))").alias(name) for name in OF_CLOSED],
        F.max("seq").alias("last_seq"),
    )
    return rows.select(*columns_of(CONNECTIONS))
