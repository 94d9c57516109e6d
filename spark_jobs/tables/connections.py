"""The table ``connections``: one row for each connection, assembled from its events. Pure."""

from __future__ import annotations

from typing import Any

from spark_jobs.events import DAY_US
from spark_jobs.partial_rows import PartialRows

LAST_KNOWN_FIELDS = {
    name: name
    for name in (
        "listener", "client_ip", "client_port", "principal", "principal_source", "sasl_mechanism", "tls_version",
        "tls_cipher", "tls_client_serial", "client_id",
    )
} | {"software_name": "client_software_name", "software_version": "client_software_version"}  # fmt: skip
"""By column with the last known value, the field of the event."""


def add_connection(rows: PartialRows, envelope: Any, event: Any) -> None:
    """Add what an event says about its connection.

    The rows of a day are computed from the events of that day only, so that one day can be computed again.
    """
    at, change = event.ts, event.change
    failed = change == "authentication_failed"
    last_known = {name: getattr(event, field) for name, field in LAST_KNOWN_FIELDS.items()}
    if failed:  # the event has the claimed principal; the principal of the connection does not change
        last_known |= {"principal": None, "principal_source": None, "refused_principal": event.principal}
    given: dict[str, Any] = {name: (event.seq, value) for name, value in last_known.items() if value is not None}
    match change:
        case "opened":
            given["opened_at"] = at
        case "authenticated":
            given |= {"authenticated_at": at, "authentications": 1}
        case "authentication_failed":
            given["authentication_failures"] = 1
        case "closed":
            given |= {"closed_at": at, "cause": event.cause, "duration_ms": event.duration_ms}
            given |= {name: getattr(event, name) for name in ("requests", "received_bytes", "sent_bytes")}
    key = (at // DAY_US, envelope.cluster_id, envelope.broker_id, envelope.boot_id, event.connection_id)
    rows.add_given("connections", key, last_seq=event.seq, **given)
