"""What a request reads or changes, how, and with which result, as an event has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from observers.event import Resource
from observers.request_events import UNKNOWN_ERROR_CODE
from proxy.core.names import clip
from proxy.core.request_resources import OPERATIONS

if TYPE_CHECKING:
    from observers.api import ObservedExchange
    from observers.audit_filter import AuditFilter
    from observers.topic_names import TopicNames
    from proxy.core.exchange import ItemErrors, RequestResource, RequestResources

UNSUPPORTED_VERSION = 35
"""Result of what only the sidecar has seen, and answered with an empty response."""

EMPTY_RESPONSE = 8
"""Bytes of such a response: its size and its correlation id."""

DENIED_TYPES = {30: "group", 53: "transactional_id", 65: "delegation_token"}
"""Errors that the response has at a topic or partition, and type of the resource that the client has no right to."""

CLUSTER_NAME = "kafka-cluster"
"""Name of the resource of type ``cluster``, as Kafka's authorizer has it."""


def resource_fields(exchange: ObservedExchange, names: TopicNames, audit_filter: AuditFilter) -> dict[str, Any]:
    """Return the fields of an event that say what ``exchange`` is about, without those that have their default.

    Resources of topics that ``audit_filter`` hides are left out.
    """
    found: RequestResources = exchange.resources
    errors: ItemErrors | None = exchange.item_errors
    matching, matching_count = ((), 0) if errors is None else (errors.matching_acls, errors.matching_acl_count)
    results = _Results(exchange)
    made = [_resource(one, results, names, audit_filter) for one in (*found.items, *matching)]
    listed = tuple(one for one in made if one is not None)
    hidden = len(made) - len(listed)
    fields = {
        "operation": OPERATIONS.get(exchange.api_key),
        "resources": listed,
        "resource_count": found.count + matching_count - hidden,
        "validate_only": found.validate_only,
        "group_id": _text(found.group_id),
        "group_instance_id": _text(found.group_instance_id),
        "member_id": _text(found.member_id) or None,
        "generation_id": None if found.generation_id == -1 else found.generation_id,
        "transactional_id": _text(found.transactional_id),
    }
    return {name: value for name, value in fields.items() if value or (name, value) == ("generation_id", 0)}


class _Results:
    """Error codes of the resources of a request, found in its response."""

    def __init__(self, exchange: ObservedExchange) -> None:
        errors: ItemErrors | None = exchange.item_errors
        items = () if errors is None else errors.items
        self._by_name = {(one.resource_type, one.resource_name): one.error_code for one in reversed(items)}
        self._by_id = {one.topic_id: one.error_code for one in reversed(items) if one.topic_id is not None}
        self._by_index = {one.index: one.error_code for one in reversed(items) if one.resource_name is None}
        self._by_type: dict[str, int] = {}
        for one in items:
            denied = DENIED_TYPES.get(one.error_code)
            if denied is not None and denied == one.parent_type:
                self._by_name[denied, one.parent_name] = one.error_code
            elif denied is not None and one.resource_type == "topic":
                self._by_type[denied] = one.error_code
        self._whole = exchange.error_code or _code_without_error(exchange)

    def code_of(self, one: RequestResource) -> int:
        """Return the error code of a resource, of what it belongs to, or of the whole response."""
        if one.acl is not None and one.op_type is not None:
            return one.acl.error_code or self._whole
        for key in ((one.resource_type, one.resource_name), (one.parent_type, one.parent_name)):
            if key[1] is not None and key in self._by_name:
                return self._by_name[key]
        if one.topic_id is not None and one.topic_id in self._by_id:
            return self._by_id[one.topic_id]
        if one.index in self._by_index:
            return self._by_index[one.index]
        return self._by_type.get(one.resource_type, self._whole)


def _code_without_error(exchange: ObservedExchange) -> int:
    """Return the result of resources of which no error is known."""
    if exchange.synthesized and exchange.response_bytes == EMPTY_RESPONSE:
        return UNSUPPORTED_VERSION
    errors: ItemErrors | None = exchange.item_errors
    all_listed = errors is None or errors.failures + errors.retriable + errors.protocol <= len(errors.items)
    is_read = exchange.outcome == "answered" and exchange.decode in ("none", "full")
    return 0 if is_read and all_listed else UNKNOWN_ERROR_CODE


def _resource(
    found: RequestResource, results: _Results, names: TopicNames, audit_filter: AuditFilter
) -> Resource | None:
    name, topic_id = _text(found.resource_name), None
    if found.topic_id is not None:
        known, topic_id = names.label_of(found.topic_id, True)
        name = name or known
    if found.resource_type == "cluster":
        name = name or CLUSTER_NAME
    topics = (found.resource_type, name), (found.parent_type, _text(found.parent_name))
    if any(kind == "topic" and topic is not None and audit_filter.leaves_out(topic) for kind, topic in topics):
        return None
    resource = Resource(
        found.resource_type,
        name,
        topic_id,
        found.parent_type,
        _text(found.parent_name),
        results.code_of(found),
        found.op_type,
        found.mechanism,
    )
    if found.acl is not None:
        resource.acl_pattern_type = found.acl.pattern_type
        resource.acl_host = _text(found.acl.host)
        resource.acl_operation = found.acl.operation
        resource.acl_permission_type = found.acl.permission_type
    return resource


def _text(name: bytes | None) -> str | None:
    return None if name is None else clip(name.decode("utf-8", "replace"))
