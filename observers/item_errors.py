"""Errors of single items of a response, as an event has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from observers.event import ItemError
from proxy.core.names import clip

if TYPE_CHECKING:
    from observers.audit_filter import AuditFilter
    from observers.topic_names import TopicNames
    from proxy.core.exchange import ItemErrorFacts, ItemErrors


def item_errors_of(found: ItemErrors, names: TopicNames, audit_filter: AuditFilter) -> tuple[ItemError, ...]:
    """Return the errors of ``found`` but for those of topics that ``audit_filter`` hides."""
    return tuple(error for one in found.items if (error := _item_error(one, names, audit_filter)) is not None)


def _item_error(found: ItemErrorFacts, names: TopicNames, audit_filter: AuditFilter) -> ItemError | None:
    name, topic_id = _text(found.resource_name), None
    if found.topic_id is not None:
        known, topic_id = names.label_of(found.topic_id, True)
        name = name or known
    if found.resource_type == "topic" and name is not None and audit_filter.leaves_out(name):
        return None
    return ItemError(
        found.error_code,
        found.resource_type,
        name,
        topic_id,
        found.partition,
        found.index if name is None else -1,
        found.parent_type,
        _text(found.parent_name),
    )


def _text(name: bytes | None) -> str | None:
    return None if name is None else clip(name.decode("utf-8", "replace"))
