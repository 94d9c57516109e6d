"""``changes``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tests.ledger.acts import CHANGING, DENIED, Act, Call
from tests.ledger.books import Book, add, day, instant, least, minute, most
from tests.ledger.books.traffic import calls

Details = tuple[str | None, ...]
ERRORS = {0: None, 29: "TOPIC_AUTHORIZATION_FAILED", 36: "TOPIC_ALREADY_EXISTS"}


def changes(acts: Iterable[Act]) -> Book:
    book: Book = defaultdict(dict)
    for call in calls(acts):
        for kind, name, parent_type, parent_name, details, code in dict.fromkeys(_touched(call)):
            run, who = call.visit.run, call.visit.client
            result = "denied" if code == DENIED else "unknown" if code == -1 else "failed" if code else "success"
            row = book[
                day(call.at), minute(call.at), run.cluster, run.broker, who.listener, who.principal, who.client_id,
                who.ip, call.api, call.operation, kind, name, parent_type, parent_name, *details, result, code,
                "UNKNOWN_SERVER_ERROR" if code == -1 else ERRORS[code], call.validate_only,
            ]  # fmt: skip
            add(row, requests=1, resources_not_listed=0)
            least(row, first_at=instant(call.at))
            most(row, last_at=instant(call.at), connection_id=call.visit.id)
    return dict(book)


def _touched(call: Call) -> Iterable[tuple[str | None, str | None, str | None, str | None, Details, int]]:
    """Type, name and parent of what a call changed or was denied, how, and the error code."""
    for one in call.about:
        code = one.error_code if call.answered else -1
        if call.operation in CHANGING or code == DENIED:
            details = (
                one.op_type, one.mechanism, one.acl_permission_type, one.acl_operation, one.acl_host,
                one.acl_pattern_type,
            )  # fmt: skip
            yield one.resource_type, one.resource_name, one.parent_type, one.parent_name, details, code
    for part in call.parts:
        if part.error == DENIED:
            yield "topic", part.topic, None, None, (None,) * 6, DENIED
