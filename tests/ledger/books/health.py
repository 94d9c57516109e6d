"""``completeness`` and ``dead_letters``."""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from observers.account_events import GapEvent, StatusEvent
from observers.event import Envelope
from tests.ledger.acts import Run
from tests.ledger.books import Book, add, day, instant, least, minute, most
from tests.ledger.wire import Record


def completeness(envelopes: Iterable[tuple[Run, Envelope]]) -> Book:
    book: Book = defaultdict(dict)
    for _, envelope in envelopes:
        sidecar = (envelope.cluster_id, envelope.broker_id, envelope.boot_id)
        sent = (day(envelope.sent_at), minute(envelope.sent_at))
        row = book[*sent, *sidecar, None, None]
        add(row, envelopes=1, events=len(envelope.events))
        least(row, first_seq=envelope.first_seq)
        most(row, last_seq=envelope.last_seq)
        for event in envelope.events:
            if isinstance(event, GapEvent):
                row = book[*sent, *sidecar[:2], event.lost_boot_id, event.reason, None]
                add(row, lost=event.lost_last_seq - event.lost_first_seq + 1)
                least(row, lost_first_seq=event.lost_first_seq)
                most(row, lost_last_seq=event.lost_last_seq)
            elif isinstance(event, StatusEvent):
                row = book[day(event.ts), minute(event.ts), *sidecar, None, None]
                add(row, statuses=1)
                if "last_status" not in row or row["last_status"] < instant(event.ts):
                    row["waiting"] = event.waiting + event.queued + event.spooled
                most(row, last_status=instant(event.ts), seen=event.seen, emitted=event.emitted,
                     delivered=event.delivered, hidden=event.hidden, partly_hidden=event.partly_hidden,
                     dropped=sum(event.dropped.values()), ended=event.last)  # fmt: skip
                row["started_at"] = instant(event.started_at)
                for name, count in event.hidden_by.items():
                    most(book[day(event.ts), minute(event.ts), *sidecar, None, name], hidden=count)
                for name, count in event.partly_hidden_by.items():
                    most(book[day(event.ts), minute(event.ts), *sidecar, None, name], partly_hidden=count)
    return dict(book)


def dead_letters(topics: Mapping[str, Sequence[Record]]) -> Book:
    """``topics``: records by the name of their audit topic."""
    book: Book = {}
    for topic, records in topics.items():
        for record in records:
            if record.poison is not None:
                value = record.value or b""
                at = record.at - record.at % 1000
                book[topic, record.partition, record.offset] = {
                    "day": day(at), "timestamp": instant(at), "reason": record.poison[0], "detail": record.poison[1],
                    "value_bytes": len(value),
                    "value_sample": None if record.value is None else base64.b64encode(value[:1024]).decode(),
                }  # fmt: skip
    return book
