"""The audit event, schema level 1: what one Kafka record of the audit topic holds.

One record is an ``Envelope``: who wrote it, which sequence numbers it holds, and the events. Events never hold a
record's key or value. An event's id is ``(cluster_id, broker_id, boot_id, seq)``; ``seq`` grows by one for each event
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


class TopicPartition(msgspec.Struct, omit_defaults=True, gc=False):
    """What one request did to one partition."""

    topic: str
    """Topic name; ``id:<uuid>`` where the wire carried only the id and the cluster did not tell its name."""
    partition: int
    topic_id: str | None = None
    """Topic id as Kafka prints it (URL-safe base64, 22 characters), where the wire carried one."""
    bytes: int = 0
    """Size of the record set as sent, compressed, in bytes."""
    records: int = 0
    """Records in whole data batches, by their headers."""
    error_code: int = 0
    """Kafka's error code for this partition; 0 means the broker acknowledged it."""
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    base_offset: int = -1
    """Produce: offset the broker gave to the first record. Fetch: offset of the first batch returned."""
    claimed: bool = False
    """True where ``records`` is a lower bound (compressed message sets of Kafka < 0.11)."""


class RequestEvent(msgspec.Struct, omit_defaults=True, gc=False, tag_field="kind", tag="request"):
    """One request and what became of it."""

    seq: int
    listener: str
    connection_id: str
    correlation_id: int
    api_key: int
    api: str
    """Kafka's name of the api key (``Produce``, ``Fetch``, …); ``ApiKey(<n>)`` where unknown."""
    api_version: int
    principal: str
    client_ip: str
    ts_request: int
    """Last byte of the request received: microseconds since the epoch, UTC."""
    latency_us: int
    """From the last byte of the request to the last byte of the response, microseconds; 0 without a response."""
    request_bytes: int
    """The whole frame, size prefix included."""
    response_bytes: int = 0
    outcome: Outcome = "answered"
    decode: Decode = "none"
    client_id: str | None = None
    client_software_name: str | None = None
    client_software_version: str | None = None
    throttle_ms: int = 0
    max_wait_ms: int = 0
    """Fetch: how long the client let the broker wait for data, milliseconds."""
    acks: int | None = None
    """Produce: −1, 0 or 1."""
    error_code: int = 0
    """Top-level error code of the response, where its version has one."""
    topics: tuple[TopicPartition, ...] = ()
    """Produce: every partition sent. Fetch: every partition that returned records or an error."""


class Envelope(msgspec.Struct, gc=False):
    """The value of one Kafka record of the audit topic."""

    schema_level: int
    cluster_id: str
    broker_id: int
    boot_id: str
    """New at each start of a sidecar; sequence numbers begin at 1 with it."""
    sidecar_version: str
    first_seq: int
    last_seq: int
    """``last_seq − first_seq + 1 = len(events)``: an envelope has no gaps inside."""
    dropped: int
    """Events of this boot that were lost so far, in total, for whatever reason; equals the sum of the gaps."""
    sent_at: int
    """Microseconds since the epoch, UTC."""
    events: list[RequestEvent]


encoder = msgspec.json.Encoder()
decoder = msgspec.json.Decoder(Envelope)


def clip(text: str) -> str:
    """Return ``text`` cut to ``MAX_STRING`` characters."""
    return text if len(text) <= MAX_STRING else text[: MAX_STRING - 1] + "…"
