"""What the sidecar's audit events contain about a client, and the line of docs/clients.md that says it."""

import time
from collections import defaultdict
from collections.abc import Sequence

from observers.event import RequestEvent, decoder
from tests.interop.clients import Report
from tests.interop.conftest import DELIVERY_TIMEOUT, Proxied
from tests.tools.topic import messages

COLUMNS = (
    "ApiVersions",
    "Metadata",
    "CreateTopics",
    "InitProducerId",
    "Produce",
    "FindCoordinator",
    "JoinGroup",
    "ListOffsets",
    "Fetch",
    "OffsetCommit",
    "OffsetFetch",
)
"""The apis whose versions docs/clients.md lists, in the order in which a client meets them."""


def audited(internal_bootstrap: str, topic: str, client_id: str) -> list[RequestEvent]:
    """The events of ``client_id`` in the audit topic so far; none where the topic is not there yet."""
    return [event for event in audited_requests(internal_bootstrap, topic) if event.client_id == client_id]


def audited_requests(internal_bootstrap: str, topic: str) -> list[RequestEvent]:
    """The events of all requests in the audit topic so far; the same one again is left out."""
    found: dict[tuple[str, int], RequestEvent] = {}
    for message in messages(internal_bootstrap, topic):
        envelope = decoder.decode(message.value() or b"")
        found |= {(envelope.boot_id, event.seq): event for event in envelope.events if isinstance(event, RequestEvent)}
    return list(found.values())


def wait_audited(proxied: Proxied, client_id: str, requests: int) -> list[RequestEvent]:
    """The client's events in the audit topic, as soon as there is one for each of its requests."""
    deadline = time.monotonic() + DELIVERY_TIMEOUT
    while True:
        events = audited(proxied.state.internal_bootstrap, "brokerside-audit", client_id)
        if len(events) >= requests or time.monotonic() > deadline:
            assert len(events) == requests, f"{client_id}: {requests} requests, {len(events)} audit events"
            return events
        time.sleep(0.3)


def records(events: Sequence[RequestEvent], api: str, topic: str) -> int:
    """Records of ``topic`` that the broker took or gave; it may refuse a batch at first where a topic is new."""
    parts = (part for event in events if event.api == api for part in event.topics)
    return sum(part.records for part in parts if part.topic == topic and part.error_code == 0)


def row(report: Report, events: Sequence[RequestEvent]) -> str:
    """The client's line in the table of docs/clients.md, with the versions of each api that it used."""
    versions: defaultdict[str, set[int]] = defaultdict(set)
    for event in events:
        versions[event.api].add(event.api_version)
    counts = f"{report.consumed:,} of {report.produced:,}"
    apis = (", ".join(map(str, sorted(versions[api]))) or "–" for api in COLUMNS)
    return f"| {' | '.join((report.client, report.version, ', '.join(report.codecs), counts, *apis))} |"
