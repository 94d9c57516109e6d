"""The table ``changes``: who changed what, and who was denied what. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from spark_jobs.events import DAY_US, MAX_SUM, MINUTE_US
from spark_jobs.kafka_errors import AUTHORIZATION_ERRORS, ERROR_NAMES
from spark_jobs.partial_rows import PartialRows

CHANGE_OPERATIONS = frozenset(("Create", "Delete", "Alter", "AlterConfigs", "CreateTokens"))
"""Operations that change something but records and offsets of a group; they are those of the sidecars."""

UNSUPPORTED_VERSION = 35
"""Result of a request that the sidecar answered itself, without an error."""

NEVER_OF_A_TOPIC = (30, 53, 65)
"""GROUP, TRANSACTIONAL_ID and DELEGATION_TOKEN_AUTHORIZATION_FAILED. A response may have them at a topic: the client
has no right to the group, transactional id or token, which has the same code in the event."""


class _Resource(NamedTuple):
    """A resource that has a row."""

    type: str | None
    name: str | None
    code: int
    parent_type: str | None = None
    parent_name: str | None = None
    op_type: str | None = None
    mechanism: str | None = None
    acl_permission_type: str | None = None
    acl_operation: str | None = None
    acl_host: str | None = None
    acl_pattern_type: str | None = None
    not_listed: int = 0


def is_denied(event: Any) -> bool:
    """Return whether the request, or a part of it, was denied."""
    return event.error_code in AUTHORIZATION_ERRORS or any(
        each.error_code in AUTHORIZATION_ERRORS
        for parts in (event.resources, event.item_errors, event.topics)
        for each in parts
    )


def add_changes(rows: PartialRows, cluster_id: str, broker_id: int, event: Any) -> None:
    """Add the rows of a request that changes something, or of which a part was denied."""
    at = event.ts_request
    known = (
        event.outcome == "answered"
        and event.decode in ("none", "full")
        and event.item_failures + event.item_retriable + event.item_protocol <= len(event.item_errors)
    )
    of_request = (
        at // DAY_US, at - at % MINUTE_US, cluster_id, broker_id, event.listener, event.principal, event.client_id,
        event.client_ip, event.api, event.operation,
    )  # fmt: skip
    for resource in _resources(event):
        code = resource.code
        if code in AUTHORIZATION_ERRORS:
            result = "denied"
        elif code == 0:
            result = "success"
        else:
            result = "unknown" if code == -1 and (resource.not_listed > 0 or not known) else "failed"
        named = (resource.type, resource.name, *resource[3:-1])
        error = ERROR_NAMES.get(code) if code else None
        key = (*of_request, *named, result, code, error, event.validate_only)
        rows.add("changes", key, [1, resource.not_listed, at, at, event.connection_id])


def _resources(event: Any) -> Iterator[_Resource]:
    """Yield the resources of a request that have a row, each once.

    Of a change those that it names, and of a denied request those that were denied. Without any, what the error codes
    say. One more, without a name, for those of a change that are not listed.
    """
    is_change = event.operation in CHANGE_OPERATIONS
    named = [
        _Resource(
            each.resource_type, each.resource_name, each.error_code, each.parent_type, each.parent_name, each.op_type,
            each.mechanism, each.acl_permission_type, each.acl_operation, each.acl_host, each.acl_pattern_type,
        )
        for each in event.resources
        if is_change
        or (
            each.error_code in AUTHORIZATION_ERRORS
            and not (each.error_code in NEVER_OF_A_TOPIC and each.resource_type == "topic")
        )
    ]  # fmt: skip
    if not named:
        named = [
            _Resource(each.resource_type, each.resource_name, each.error_code, each.parent_type, each.parent_name)
            for each in event.item_errors
            if each.error_code in AUTHORIZATION_ERRORS
        ]
        named += [
            _Resource("topic", each.topic, each.error_code)
            for each in event.topics
            if each.error_code in AUTHORIZATION_ERRORS
        ]
    yield from dict.fromkeys(named or [_whole(event)])
    not_listed = min(event.resource_count - len(event.resources), MAX_SUM) if is_change else 0
    if not_listed > 0:
        yield _Resource(None, None, -1, not_listed=not_listed)


def _whole(event: Any) -> _Resource:
    code = event.error_code
    type = AUTHORIZATION_ERRORS.get(code)
    if event.outcome == "answered":
        return _Resource(type, None, UNSUPPORTED_VERSION if code == 0 and event.synthesized else code)
    return _Resource(type, None, code or -1)
