"""Changes exported as OCSF: what the class requires, and which row becomes what."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.errors import QueryError
from spark_jobs.export import ocsf
from tests.spark.stored import write

AT = datetime(2026, 9, 22, 12, 0, 1, tzinfo=UTC)
ROW = {
    "day": date(2026, 9, 22), "minute": AT, "cluster_id": "c", "broker_id": 1, "listener": "CLIENT",
    "principal": "User:eve", "client_id": "app", "client_ip": "10.0.0.7", "api": "CreateTopics",
    "operation": "Create", "resource_type": "topic", "resource_name": "orders", "parent_type": None,
    "parent_name": None, "op_type": None, "mechanism": None, "acl_permission_type": None, "acl_operation": None,
    "acl_host": None, "acl_pattern_type": None, "result": "success", "error_code": 0, "error": None,
    "validate_only": False, "requests": 3, "resources_not_listed": 0, "first_at": AT, "last_at": AT,
    "connection_id": "c1",
}  # fmt: skip

REQUIRED = {
    "activity_id", "actor", "api", "category_uid", "class_uid", "metadata", "severity_id", "src_endpoint", "time",
    "type_uid",
}  # fmt: skip
"""Attributes that https://schema.ocsf.io/1.3.0/classes/api_activity requires."""


def exported(root: Path, **days: date) -> list[dict[str, Any]]:
    out = io.StringIO()
    count = ocsf.write_ocsf(root, out, days.get("first"), days.get("last"))
    events = [json.loads(line) for line in out.getvalue().splitlines()]
    assert len(events) == count
    return events


def test_a_row_is_an_event(tmp_path: Path) -> None:
    write(tmp_path, "changes", ROW)
    (event,) = exported(tmp_path)
    assert event.keys() >= REQUIRED
    assert (event["class_uid"], event["type_uid"], event["activity_name"]) == (6003, 600301, "Create")
    assert (event["status"], event["count"], event["time"]) == ("Success", 3, 1790078401000)
    assert event["actor"] == {"user": {"name": "eve", "type": "User"}}
    assert event["api"] == {"operation": "CreateTopics", "service": {"name": "kafka"}}
    assert event["src_endpoint"] == {"ip": "10.0.0.7", "name": "app"}
    assert event["resources"] == [{"type": "topic", "name": "orders"}]
    assert event["metadata"]["version"] == "1.3.0"


WHAT = {
    "denied read": ({"api": "Fetch", "operation": None, "result": "denied", "error": "TOPIC_AUTHORIZATION_FAILED"},
                    (600302, "Failure", "Low", "TOPIC_AUTHORIZATION_FAILED")),
    "denied write": ({"api": "Produce", "operation": None, "result": "denied", "error": "X"},
                     (600303, "Failure", "Low", "X")),
    "failed": ({"operation": "Delete", "result": "failed", "error_code": 36, "error": "TOPIC_ALREADY_EXISTS"},
               (600304, "Failure", "Informational", "TOPIC_ALREADY_EXISTS")),
    "a code of the future": ({"operation": "Alter", "result": "failed", "error_code": 999},
                             (600303, "Failure", "Informational", "999")),
    "no answer": ({"operation": "AlterConfigs", "result": "unknown", "error_code": -1, "error": "UNKNOWN_SERVER_ERROR"},
                  (600303, "Unknown", "Informational", "UNKNOWN_SERVER_ERROR")),
    "another operation": ({"operation": "ClusterAction"}, (600399, "Success", "Informational", None)),
}  # fmt: skip


@pytest.mark.parametrize(("changed", "expected"), WHAT.values(), ids=WHAT)
def test_what_happened(tmp_path: Path, changed: dict[str, Any], expected: tuple[Any, ...]) -> None:
    write(tmp_path, "changes", ROW | changed)
    (event,) = exported(tmp_path)
    assert (event["type_uid"], event["status"], event["severity"], event.get("status_code")) == expected
    assert event["unmapped"]["validate_only"] is False


def test_a_setting_has_its_topic(tmp_path: Path) -> None:
    of = {"resource_type": "config", "resource_name": "retention.ms", "parent_type": "topic", "parent_name": "orders"}
    write(tmp_path, "changes", ROW | of)
    (event,) = exported(tmp_path)
    assert event["resources"] == [{"type": "config", "name": "retention.ms"}, {"type": "topic", "name": "orders"}]


def test_an_acl_says_who_may_do_what(tmp_path: Path) -> None:
    acl = {"acl_permission_type": "ALLOW", "acl_operation": "Read", "acl_host": "*", "acl_pattern_type": "LITERAL"}
    of = {"resource_type": "user", "resource_name": "User:eve", "parent_type": "topic", "parent_name": "orders"}
    write(tmp_path, "changes", ROW | of | acl)
    (event,) = exported(tmp_path)
    assert event["resources"] == [
        {"type": "user", "name": "User:eve", "data": acl}, {"type": "topic", "name": "orders"},
    ]  # fmt: skip


def test_the_days_that_were_asked_for(tmp_path: Path) -> None:
    write(tmp_path, "changes", ROW, ROW | {"day": date(2026, 9, 24)})
    assert len(exported(tmp_path)) == 2
    assert len(exported(tmp_path, first=date(2026, 9, 23))) == 1
    assert len(exported(tmp_path, last=date(2026, 9, 23))) == 1
    with pytest.raises(QueryError, match="before the first one"):
        exported(tmp_path, first=date(2026, 9, 23), last=date(2026, 9, 22))


def test_without_the_table_the_error_says_what_makes_it(tmp_path: Path) -> None:
    write(tmp_path, "dead_letters", {"day": date(2026, 9, 22), "timestamp": AT, "reason": "not_json"})
    with pytest.raises(QueryError, match="changes"):
        exported(tmp_path)
