"""The table ``connections``: one row for each connection, assembled from its events."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.events import CONNECTION_EVENT
from spark_jobs.parse import explode_events, fields_with_defaults
from spark_jobs.schemas import CONNECTIONS
from spark_jobs.tables.columns import day_of, table_columns

LAST_KNOWN_COLUMNS = {
    "listener": "listener",
    "client_ip": "client_ip",
    "client_port": "client_port",
    # The event of a failed login has the claimed principal. The principal of the connection does not change.
    "principal": "if(change != 'authentication_failed', principal, NULL)",
    "principal_source": "if(change != 'authentication_failed', principal_source, NULL)",
    "refused_principal": "if(change = 'authentication_failed', principal, NULL)",
    "sasl_mechanism": "sasl_mechanism",
    "tls_version": "tls_version",
    "tls_cipher": "tls_cipher",
    "tls_client_serial": "tls_client_serial",
    "client_id": "client_id",
    "software_name": "client_software_name",
    "software_version": "client_software_version",
}
"""Columns with the last known value, and the SQL of the value."""

CLOSE_COLUMNS = ("cause", "duration_ms", "requests", "received_bytes", "sent_bytes")
"""Columns that only the event of a closed connection has."""


def connections(parsed: DataFrame) -> DataFrame:
    """Return partial rows of ``connections``: for each day, one row for each connection with events in ``parsed``.

    The rows of a day are computed from the events of that day only, so that one day can be computed again.
    """
    changes = explode_events(parsed, "connection").selectExpr(
        "cluster_id", "broker_id", "boot_id", *fields_with_defaults("event", CONNECTION_EVENT)
    )
    changes = changes.withColumn("day", F.expr(day_of("ts")))
    at = "timestamp_micros(ts)"
    rows = changes.groupBy(*CONNECTIONS.keys, "day").agg(
        *[
            F.expr(f"max_by({value}, if({value} IS NULL, NULL, seq))").alias(name)
            for name, value in LAST_KNOWN_COLUMNS.items()
        ],
        F.expr(f"min(if(change = 'opened', {at}, NULL))").alias("opened_at"),
        F.expr(f"max(if(change = 'authenticated', {at}, NULL))").alias("authenticated_at"),
        F.expr(f"max(if(change = 'closed', {at}, NULL))").alias("closed_at"),
        F.expr("count_if(change = 'authenticated')").alias("authentications"),
        F.expr("count_if(change = 'authentication_failed')").alias("authentication_failures"),
        *[F.expr(f"max(if(change = 'closed', {name}, NULL))").alias(name) for name in CLOSE_COLUMNS],
        F.max("seq").alias("last_seq"),
    )
    return rows.select(*table_columns(CONNECTIONS))
