"""The table ``changes``: who changed what, and who was denied what."""

from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

import msgspec
import pytest
from kio.schema.errors import ErrorCode

from observers.event import ItemError, RequestEvent, Resource
from proxy.core import request_resources, response_errors
from spark_jobs import kafka_errors
from spark_jobs.tables.changes import CHANGE_OPERATIONS
from tests.spark.decoded import decoded
from tests.spark.envelopes import FETCH, METADATA, MINUTE, NOON, PRODUCE, encoded, event, partition
from tests.spark.stored import Row


def rows_of(*reported: Any) -> list[Row]:
    return sorted(decoded("changes", [encoded(*reported)]), key=str)


def request(api: str = "CreateTopics", operation: str | None = "Create", **fields: Any) -> RequestEvent:
    return event(METADATA, api=api, operation=operation, **fields)


def what(rows: Sequence[Row], *names: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[name] for name in names) for row in rows), key=str)


@pytest.mark.promise("changes.md", "Each change has a row in `changes` for each resource that it names.")
def test_a_change_has_a_row_for_each_resource() -> None:
    named = (Resource("topic", "orders"), Resource("config", "retention.ms", None, "topic", "orders"))
    rows = rows_of(request(resources=named, resource_count=2, ts_request=NOON + 7), request("Metadata", "Describe"))
    assert what(rows, "resource_type", "resource_name", "parent_type", "parent_name") == [
        ("config", "retention.ms", "topic", "orders"),
        ("topic", "orders", None, None),
    ]
    assert rows[0] | {"resource_type": None, "resource_name": None} == {
        "day": date(2026, 9, 22), "minute": datetime(2026, 9, 22, 12), "cluster_id": "cluster", "broker_id": 1,
        "listener": "CLIENT", "principal": "User:ANONYMOUS", "client_id": "app", "client_ip": "10.0.0.7",
        "api": "CreateTopics", "operation": "Create", "resource_type": None, "resource_name": None,
        "parent_type": rows[0].parent_type, "parent_name": rows[0].parent_name, "op_type": None, "mechanism": None,
        "acl_permission_type": None, "acl_operation": None, "acl_host": None, "acl_pattern_type": None,
        "result": "success", "error_code": 0, "error": None, "validate_only": False, "requests": 1,
        "resources_not_listed": 0, "first_at": datetime(2026, 9, 22, 12, 0, 0, 7),
        "last_at": datetime(2026, 9, 22, 12, 0, 0, 7), "connection_id": "c1",
    }  # fmt: skip


@pytest.mark.promise(
    "changes.md",
    "Resources that an event does not list share a row of `changes` without a name, and are counted there.",
)
def test_resources_that_are_not_listed_have_a_row_together() -> None:
    listed = tuple(Resource("topic", f"junk{number}") for number in range(3))
    rows = rows_of(*[request("DeleteTopics", "Delete", resources=listed, resource_count=8)] * 2)
    assert what(rows, "resource_name", "result", "resources_not_listed", "requests") == [
        *[(f"junk{number}", "success", 0, 2) for number in range(3)], (None, "unknown", 10, 2),
    ]  # fmt: skip


ACL = {"acl_permission_type": "ALLOW", "acl_operation": "Read", "acl_host": "*", "acl_pattern_type": "LITERAL"}


@pytest.mark.promise(
    "changes.md", "The row of an ACL says whom it allows or denies which operation, from where, on what."
)
def test_what_an_acl_says_distinguishes_its_rows() -> None:
    user = Resource("user", "User:eve", None, "topic", "orders", **ACL)
    other = msgspec.structs.replace(user, acl_operation="Write", acl_host="10.0.0.7", acl_pattern_type="PREFIXED")
    denial = msgspec.structs.replace(user, acl_permission_type="DENY", error_code=31)
    rows = rows_of(request("CreateAcls", "Alter", resources=(user, other)),
                   request("CreateAcls", "Alter", resources=(user, denial)))  # fmt: skip
    assert what(rows, "requests", "result", *ACL) == [
        (1, "denied", "DENY", "Read", "*", "LITERAL"),
        (1, "success", "ALLOW", "Write", "10.0.0.7", "PREFIXED"),
        (2, "success", "ALLOW", "Read", "*", "LITERAL"),
    ]


def test_each_resource_has_its_result() -> None:
    twice = (Resource("topic", "orders"), Resource("topic", "orders", error_code=36), Resource("topic", "orders"))
    assert what(rows_of(request(resources=twice)), "error_code", "requests") == [(0, 1), (36, 1)], "one request"
    # What no response says is unknown.
    named = (Resource("topic", "a", error_code=29), Resource("topic", "b", error_code=-1))
    more = {"item_errors": (ItemError(29, "topic", "a"),), "item_failures": 200}
    found = what(rows_of(request(resources=named, **more)), "resource_name", "result")
    assert found == [("a", "denied"), ("b", "unknown")]
    for unknown in (
        request(resources=named[1:], decode="not_kept"), request(outcome="connection_lost"),
        request(resources=(Resource("topic", "orders", error_code=-1),), outcome="connection_lost"),
    ):  # fmt: skip
        assert what(rows_of(unknown), "result") == [("unknown",)], unknown
    # What the broker has not seen has failed.
    ghost = (Resource("topic", "ghost", error_code=35),)
    assert what(rows_of(request(synthesized=True)), "result", "error") == [("failed", "UNSUPPORTED_VERSION")]
    assert what(rows_of(request(synthesized=True, resources=ghost)), "result") == [("failed",)]
    # The response has a denial at the topic, which is not what the client has no right to.
    named = (Resource("transactional_id", "pay", error_code=53), Resource("topic", "t", error_code=53))
    refused = (ItemError(53, "topic", "t", partition=0),)
    rows = rows_of(request("AddPartitionsToTxn", "Write", resources=named, item_errors=refused, item_failures=1))
    assert what(rows, "resource_type", "resource_name", "result") == [("transactional_id", "pay", "denied")]


DENIED = {
    "a topic to read": (
        request("Metadata", "Describe", resources=(Resource("topic", "a", error_code=29), Resource("topic", "b"))),
        [("Metadata", "topic", "a")],
    ),
    "a group": (
        request("JoinGroup", "Read", error_code=30, resources=(Resource("group", "g", error_code=30),)),
        [("JoinGroup", "group", "g")],
    ),
    "the cluster": (request("ListGroups", "Describe", error_code=31), [("ListGroups", "cluster", None)]),
    "partitions to write": (
        event(PRODUCE, partition("a", error_code=29), partition("a", partition=1, error_code=29), partition("b")),
        [("Produce", "topic", "a")],
    ),
    "partitions to read": (event(FETCH, partition("a", error_code=29)), [("Fetch", "topic", "a")]),
    "an item that the request does not name": (
        event(METADATA, operation="Describe", item_errors=(ItemError(29, "topic", "a"), ItemError(3, "topic", "b"))),
        [("Metadata", "topic", "a")],
    ),
}  # fmt: skip


@pytest.mark.promise("changes.md", "Denied requests of every kind are in `changes`, also Produce and Fetch.")
def test_denied_requests_of_every_kind_have_rows() -> None:
    for case, (reported, expected) in DENIED.items():
        rows = rows_of(reported)
        assert what(rows, "api", "resource_type", "resource_name") == expected, case
        assert {row.result for row in rows} == {"denied"}, case


@pytest.mark.promise(
    "changes.md",
    "A client that is denied again and again has one row a minute in `changes`, with the number of its requests.",
)
def test_denials_of_a_minute_are_one_row() -> None:
    reported = [event(FETCH, partition("a", error_code=29), ts_request=NOON + n * MINUTE // 50) for n in range(100)]
    rows = rows_of(*reported)
    assert [row.requests for row in rows] == [50, 50]
    assert rows[0].first_at == datetime(2026, 9, 22, 12)


@pytest.mark.promise(
    "tables/changes.md", "Changes that the broker was only asked to check are marked as `validate_only`."
)
def test_a_request_that_only_checks_says_so() -> None:
    rows = rows_of(
        request(validate_only=True, resources=(Resource("topic", "a"),)), request(resources=(Resource("topic", "a"),))
    )
    assert what(rows, "validate_only", "requests") == [(False, 1), (True, 1)]


def test_the_jobs_and_the_sidecars_mean_the_same() -> None:
    assert set(CHANGE_OPERATIONS) == request_resources.CHANGES
    assert kafka_errors.AUTHORIZATION_ERRORS == response_errors.AUTHORIZATION_ERRORS
    assert {one.value: one.name.upper() for one in ErrorCode} == kafka_errors.ERROR_NAMES
