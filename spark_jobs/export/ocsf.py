"""``changes`` as JSON lines of OCSF 1.3, the Open Cybersecurity Schema Framework: class API Activity (6003).

Source: https://schema.ocsf.io/1.3.0/classes/api_activity. Redpanda's audit log has the same class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date, datetime
from pathlib import Path
from typing import Any, TextIO

import msgspec

from spark_jobs import query
from spark_jobs.errors import QueryError
from spark_jobs.schemas import CHANGES

OCSF_VERSION = "1.3.0"

CATEGORY_APPLICATION, CLASS_API_ACTIVITY = 6, 6003

ACTIVITIES: Mapping[str | None, tuple[int, str]] = {
    "Create": (1, "Create"),
    "CreateTokens": (1, "Create"),
    "Read": (2, "Read"),
    "Describe": (2, "Read"),
    "DescribeConfigs": (2, "Read"),
    "DescribeTokens": (2, "Read"),
    "Alter": (3, "Update"),
    "AlterConfigs": (3, "Update"),
    "Write": (3, "Update"),
    "Delete": (4, "Delete"),
}
"""``activity_id`` and ``activity_name`` by Kafka's operation; others are 99, Other."""

OTHER = (99, "Other")

DATA_OPERATIONS: Mapping[str, str] = {"Produce": "Write", "Fetch": "Read", "ShareFetch": "Read"}
"""Operations of apis whose events have none."""

STATUSES: Mapping[str, tuple[int, str]] = {
    "success": (1, "Success"),
    "denied": (2, "Failure"),
    "failed": (2, "Failure"),
    "unknown": (0, "Unknown"),
}
"""``status_id`` and ``status`` by ``result``."""

DETAILS = ("op_type", "mechanism", "acl_permission_type", "acl_operation", "acl_host", "acl_pattern_type")
"""Columns that say how the resource was changed."""

INFORMATIONAL, LOW = (1, "Informational"), (2, "Low")
"""``severity_id`` and ``severity``: of what succeeded or only failed, and of what was denied."""


_SQL = f"""
SELECT * FROM changes WHERE coalesce(day >= $first, true) AND coalesce(day <= $last, true)
ORDER BY last_at, {", ".join(CHANGES.keys)}
"""  # noqa: S608


def write_ocsf(root: Path | str, out: TextIO, first: date | None = None, last: date | None = None) -> int:
    """Write a line for each row of ``changes`` from ``first`` to ``last`` (None: unlimited) below ``root`` to ``out``.

    Returns the number of lines. Raises QueryError if there is no table ``changes``, or ``last`` is before ``first``.
    """
    if first is not None and last is not None and last < first:
        raise QueryError(f"the last day, {last}, is before the first one, {first}")
    count = 0
    with query.open_tables(root) as reader:
        if CHANGES.name not in reader.tables:
            raise QueryError(reader.explain_missing(CHANGES.name))
        names, rows = reader.fetch_rows(_SQL, {"first": first, "last": last})
    for event in ocsf_events(dict(zip(names, row, strict=True)) for row in rows):
        out.write(msgspec.json.encode(event).decode() + "\n")
        count += 1
    return count


def ocsf_events(rows: Iterator[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield an event for each row of ``changes``. ``count`` is the number of equal requests within its minute."""
    for row in rows:
        activity, activity_name = ACTIVITIES.get(row["operation"] or DATA_OPERATIONS.get(row["api"]), OTHER)
        status, status_name = STATUSES[row["result"]]
        severity, severity_name = LOW if row["result"] == "denied" else INFORMATIONAL
        event = {
            "activity_id": activity,
            "activity_name": activity_name,
            "category_uid": CATEGORY_APPLICATION,
            "category_name": "Application Activity",
            "class_uid": CLASS_API_ACTIVITY,
            "class_name": "API Activity",
            "type_uid": CLASS_API_ACTIVITY * 100 + activity,
            "time": _milliseconds(row["last_at"]),
            "start_time": _milliseconds(row["first_at"]),
            "end_time": _milliseconds(row["last_at"]),
            "count": row["requests"],
            "severity_id": severity,
            "severity": severity_name,
            "status_id": status,
            "status": status_name,
            "status_code": row["error"] or (str(row["error_code"]) if row["error_code"] else None),
            "actor": {"user": _user(row["principal"])},
            "api": {"operation": row["api"], "service": {"name": "kafka"}},
            "src_endpoint": {"ip": row["client_ip"], "name": row["client_id"]},
            "dst_endpoint": {"svc_name": row["listener"], "uid": str(row["broker_id"])},
            "resources": _resources(row),
            "metadata": {"product": {"name": "Brokerside", "vendor_name": "Brokerside"}, "version": OCSF_VERSION},
            "unmapped": {
                "cluster_id": row["cluster_id"],
                "connection_id": row["connection_id"],
                "operation": row["operation"],
                "result": row["result"],
                "validate_only": row["validate_only"],
            },
        }
        yield _without_nulls(event)


def _user(principal: str) -> dict[str, str]:
    kind, _, name = principal.partition(":")
    return {"name": name, "type": kind} if name else {"name": principal}


def _resources(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    how = {name: row[name] for name in DETAILS if row[name] is not None}
    found = [{"type": row["resource_type"], "name": row["resource_name"], "data": how or None}]
    if row["parent_type"]:
        found.append({"type": row["parent_type"], "name": row["parent_name"]})
    return [one for one in found if one["type"]]


def _milliseconds(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value
