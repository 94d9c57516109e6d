"""The audit event, schema level 1: what one Kafka record of the audit topic holds.

One record is an ``Envelope``: who wrote it, which sequence numbers it holds, and the events. Events never hold a
record's key or value. There are several kinds; of each a reader takes what it knows, and passes over a kind that it
does not know: so every event has ``kind`` and ``seq``, and a field that several kinds have is of one type in all of
them. An event's id is ``(cluster_id, broker_id, boot_id, seq)``; ``seq`` grows by one for each event
of one run of a sidecar, so a gap in it is a loss, and its size says how much was lost.

Field names follow Kafka's request log (KIP-673) and Redpanda's ``KafkaConnection``. Fields that hold their default
are left out on the wire.
"""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA_LEVEL = 1
"""The level this module writes. Readers accept every level up to their own and treat a higher one as a dead letter."""

MAX_STRING = 256
"""Longest string an event carries, in characters; longer ones (a hostile client id) are cut and end in ``…``."""

EVENTS_PER_RECORD = 200
"""Events in one Kafka record at most; fewer where the flush interval ends first. See docs/audit-format.md."""

Outcome = Literal["answered", "no_response", "connection_lost"]
Decode = Literal["none", "full", "malformed", "unsupported"]
ThrottleScope = Literal["broker", "listener", "ip"]
ThrottleQuota = Literal["connection_creation_rate", "connections"]
ThrottleAction = Literal["delay", "hold", "drop", "observe"]


class TopicPartition(msgspec.Struct, omit_defaults=True, gc=False):
    """What one request did to one partition."""

    topic: str
    """Topic name; ``id:<topic id>`` where the wire carried only the id and the cluster did not tell its name."""
    partition: int
    """Partition number."""
    topic_id: str | None = None
    """Topic id as Kafka prints it (URL-safe base64, 22 characters), where the wire carried one."""
    bytes: int = 0
    """Size of the record set as sent, compressed."""
    records: int = 0
    """Records in whole data batches, by their headers."""
    error_code: int = 0
    """Kafka's error code for this partition. Of an answered Produce, 0 means that the broker acknowledged it, and −1
    also that the answer could not be read."""
    producer_id: int = -1
    """Produce: producer id of the first batch; −1 for a producer that is not idempotent."""
    producer_epoch: int = -1
    """Produce: producer epoch of the first batch."""
    base_sequence: int = -1
    """Produce: producer's sequence number of the first record."""
    base_offset: int = -1
    """Produce: offset the broker gave to the first record. Fetch: offset of the first batch returned."""
    claimed: bool = False
    """True where ``records`` is a lower bound (compressed message sets of Kafka < 0.11)."""


class RequestEvent(msgspec.Struct, omit_defaults=True, gc=False, tag_field="kind", tag="request"):
    """One request and what became of it."""

    seq: int
    """Number of the event within one run of a sidecar, from 1, without gaps but for losses."""
    listener: str
    """Name of the listener the client came in by."""
    connection_id: str
    """Id of the client's connection, unique within one run of a sidecar."""
    correlation_id: int
    """As the client chose it: need not be unique, not even within a connection."""
    api_key: int
    """Kafka's number of the kind of request."""
    api: str
    """Kafka's name of the api key (``Produce``, ``Fetch``, …); ``ApiKey(<n>)`` where unknown."""
    api_version: int
    """Version of the request and its response."""
    principal: str
    """Who the client is, as ``User:<name>``; ``User:ANONYMOUS`` on a listener without authentication."""
    client_ip: str
    """Address of the client."""
    ts_request: int
    """Last byte of the request received."""
    latency_us: int
    """From the last byte of the request to the last byte of the response; 0 without a response."""
    request_bytes: int
    """The whole frame, size prefix included."""
    response_bytes: int = 0
    """The whole frame, size prefix included; 0 without a response."""
    outcome: Outcome = "answered"
    """``no_response``: there is none by design (acks=0). ``connection_lost``: it ended before the response did."""
    decode: Decode = "none"
    """How far the bodies were read: ``none`` (not asked for), ``full``, ``malformed``, or ``unsupported`` (newer than
    this sidecar knows). Unless ``full``, ``topics`` and what else stands in bodies may be missing."""
    client_id: str | None = None
    """As the client chose it."""
    client_software_name: str | None = None
    """As the client told with ApiVersions."""
    client_software_version: str | None = None
    """As the client told with ApiVersions."""
    throttle_ms: int = 0
    """How long the broker asked the client to wait."""
    max_wait_ms: int = 0
    """Fetch: how long the client let the broker wait for data."""
    acks: int | None = None
    """Produce: −1, 0 or 1."""
    error_code: int = 0
    """Top-level error code of the response, where its version has one (Fetch)."""
    topics: tuple[TopicPartition, ...] = ()
    """Produce: every partition sent. Fetch: every partition that returned records or an error."""


class ThrottleEvent(msgspec.Struct, omit_defaults=True, gc=False, tag_field="kind", tag="throttle"):
    """Connections of one client address that met the same limit with the same result, within about a second."""

    seq: int
    """Number of the event, as for every kind."""
    listener: str
    """Name of the listener the clients came in by."""
    client_ip: str
    """Address of the clients; ``*`` for those of all addresses that are not told one by one, because too many were
    throttled in that second."""
    scope: ThrottleScope
    """Whose limit it is: the whole broker's, the listener's, or that of each address."""
    quota: ThrottleQuota
    """What is limited: connections accepted per second, or connections open at a time."""
    action: ThrottleAction
    """``delay``: the listener accepted nothing until there was room. ``hold``: they were set aside, unread, for
    ``delay_ms``. ``drop``: they were closed. ``observe``: nothing, they only would have been throttled. One that was
    held and then closed counts in two events."""
    count: int
    """How many connections."""
    limit: int
    """Connections per second, or connections."""
    observed: float
    """The highest rate, or number of connections, that was compared with ``limit``; to three digits."""
    ts_first: int
    """When the first of them met the limit."""
    ts_last: int
    """When the last of them did."""
    delay_ms: int = 0
    """The longest time that one of them was to wait; 0 for what was dropped, and where it waits for another
    connection's end."""


class Envelope(msgspec.Struct, gc=False):
    """The value of one Kafka record of the audit topic. The record has no key."""

    schema_level: int
    """``SCHEMA_LEVEL`` of the writer."""
    cluster_id: str
    """The Kafka cluster's own id."""
    broker_id: int
    """The broker this sidecar stands in front of."""
    boot_id: str
    """New at each start of a sidecar, and of each of its workers; sequence numbers begin at 1 with it."""
    sidecar_version: str
    """Version of the writer's software."""
    first_seq: int
    """``seq`` of the first event."""
    last_seq: int
    """``last_seq − first_seq + 1 = len(events)``: an envelope has no gaps inside."""
    dropped: int
    """Events of this boot that were lost so far, in total, for whatever reason: the sum of the gaps. One that was lost
    before it was looked at counts, even if it would have been excluded."""
    sent_at: int
    """When the record was handed to the producer."""
    events: list[RequestEvent | ThrottleEvent]
    """The events of all kinds, by ``seq``; at least one."""


encoder = msgspec.json.Encoder()
decoder = msgspec.json.Decoder(Envelope)


def clip(text: str) -> str:
    """Return ``text`` cut to ``MAX_STRING`` characters."""
    return text if len(text) <= MAX_STRING else text[: MAX_STRING - 1] + "…"
