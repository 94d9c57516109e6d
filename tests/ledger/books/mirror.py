"""``mirror_check``, of the mirror in definitions/mirror.yaml."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from observers.account_events import GapEvent
from observers.event import Envelope
from tests.ledger.acts import DAY, MINUTE, Act, Call, Run
from tests.ledger.books import Book, day, instant
from tests.ledger.books.traffic import calls
from tests.ledger.cast import END

LAG = 5 * MINUTE
TOPICS = ("orders", "payments")
COUNTED = ("produced_records", "mirrored_records", "retried_records", "unconfirmed_records", "due_records")


def mirror_check(acts: Iterable[Act], envelopes: Iterable[tuple[Run, Envelope]]) -> Book:
    """Keyed by day and source topic."""
    written: dict[tuple[Any, ...], list[tuple[Call, int]]] = defaultdict(list)
    for call in calls(acts):
        source = call.visit.run.cluster == "east"
        for number, part in enumerate(call.parts):
            topic = part.topic.removeprefix("" if source else "east.")
            if call.api == "Produce" and topic in TOPICS and not part.error:
                batch: tuple[Any, ...] = (part.producer, part.sequence) if part.producer[0] >= 0 else (call, number)
                written[source, topic, part.partition, batch].append((call, part.records))
    rows: dict[tuple[str, Any], dict[str, int]] = defaultdict(lambda: dict.fromkeys(COUNTED, 0))
    rolled: dict[str, int] = {}
    ends: dict[str, dict[int, list[int]]] = {topic: defaultdict(lambda: [0, 0]) for topic in TOPICS}
    """By topic and end of a minute by how much more is overdue, and open."""
    for (source, topic, *_), copies in written.items():
        answered = [call for call, _ in copies if call.answered]
        kept, records = (answered or [copies[0][0]])[0], copies[0][1]
        at = kept.at // MINUTE * MINUTE if kept.visit.run.rolls_up else kept.at
        today = rows[topic, day(at)]
        if answered:
            today["produced_records" if source else "mirrored_records"] += records
            if source and at + LAG <= END:
                rows[topic, day(at + LAG)]["due_records"] += records
            end = -(-at // MINUTE) * MINUTE
            ends[topic][end + LAG if source else end][0] += records if source else -records
            ends[topic][end][1] += records if source else -records
        elif source:
            today["unconfirmed_records"] += records
        if kept.visit.run.rolls_up:
            rolled[topic] = min(rolled.get(topic, at), at)
        else:
            today["retried_records"] += (len(copies) - 1) * records
    lost = min(one.sent_at for _, one in envelopes if any(isinstance(event, GapEvent) for event in one.events))
    book: Book = {}
    totals: dict[str, dict[str, int]] = {topic: dict.fromkeys(COUNTED, 0) for topic in TOPICS}
    for topic, today in sorted(rows):
        so_far = totals[topic]
        for name in COUNTED:
            so_far[name] += rows[topic, today][name]
        produced, mirrored, due = (so_far[f"{name}_records"] for name in ("produced", "mirrored", "due"))
        midnight = next(at for at in range(END // DAY * DAY, 0, -DAY) if day(at) == today) + DAY
        stayed, behind = _followed(ends[topic], midnight)
        missing, surplus = max(0, due - mirrored, min(stayed, produced - mirrored)), max(0, mirrored - produced)
        book[today, topic] = {name: rows[topic, today][name] for name in COUNTED[:4]} | {
            "mirror": "east-west",
            "source_cluster_id": "east",
            "target_cluster_id": "west",
            "target_topic": f"east.{topic}",
            "since": min(of for _, of in rows),
            "produced_total": produced,
            "mirrored_total": mirrored,
            "due_total": due,
            "missing_records": missing,
            "behind_records": behind,
            "surplus_records": surplus,
            "state": "missing" if missing else "surplus" if surplus else "lagging" if mirrored < produced else "equal",
            "exact": min(lost, rolled.get(topic, lost)) >= midnight,
            "as_of": instant(min(midnight, END) - MINUTE),
        }
    return book


def _followed(ends: dict[int, list[int]], midnight: int) -> tuple[int, int | None]:
    """Return what of the overdue records never came up to ``midnight``, and the fewest that were open on its day."""
    overdue = opened = stayed = 0
    behind = None
    for end in sorted(end for end in ends if end <= min(midnight, END)):
        overdue, opened = overdue + ends[end][0], opened + ends[end][1]
        stayed = max(overdue, min(stayed, opened))
        if end > midnight - DAY:
            behind = min(opened if behind is None else behind, opened)
    return stayed, None if behind is None else max(0, behind)
