"""The audit event, schema levels 1 and 2: what one Kafka record of the audit topic holds.

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

from observers.account_events import GapEvent, StatusEvent
from observers.cluster_events import EndOffsetsEvent, GroupEvent, InventoryEvent

SCHEMA_FEATURE = "brokerside.audit.event.schema"
"""The feature of the fleet (docs/features.md) whose levels are those of records."""

SCHEMA_LEVEL = 1
"""The level of records without rollups. Readers accept every level up to their own, and treat a higher one as a dead
letter."""

ROLLUP_LEVEL = 2
"""The level of every record of a sidecar while it rolls up: a reader that knew only requests would count nothing."""

ROLLUP_BUCKETS = tuple(int(64 * 2 ** (n / 2)) for n in range(39))
"""Ends of a rollup's latency buckets but for the last, which has none; whole µs, the end included."""

EVENTS_PER_RECORD = 200
"""Events in one Kafka record at most; fewer where the flush interval ends first. See docs/audit-format.md."""

Outcome = Literal["answered", "no_response", "connection_lost"]
Decode = Literal["none", "full", "malformed", "unsupported", "not_kept"]
ThrottleScope = Literal["broker", "listener", "ip", "principal"]
ThrottleQuota = Literal["connection_creation_rate", "connections"]
ThrottleAction = Literal["delay", "hold", "drop", "observe"]
PrincipalSource = Literal["anonymous", "unauthenticated", "sasl", "mtls", "unknown"]
ConnectionChangeKind = Literal["opened", "authenticated", "authentication_failed", "closed"]


class TopicPartition(msgspec.Struct, omit_defaults=True, gc=False):
    """What one request did to one partition."""

    topic: str
    """Topic name; ``id:<topic id>`` where the wire carried only the id and the cluster did not know its name."""
    partition: int
    """Partition number."""
    topic_id: str | None = None
    """Topic id as Kafka prints it (URL-safe base64, 22 characters), where the wire carried one."""
    bytes: int = 0
    """Size of the record set as sent, compressed."""
    records: int = 0
    """Produce: records in whole data batches, by their headers. Fetch: those of them from the fetch offset on, without
    those of aborted transactions where the client reads committed records only. ShareFetch: in all batches returned."""
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
    upper_bound: bool = False
    """True where ``records`` is an upper bound: the fetch began inside a batch with gaps in its offsets (a compacted
    topic), or its offset is not known; the response lists more than 65,536 aborted transactions of the partition; the
    records of compressed message sets of Kafka < 0.11 were counted; or it is a ShareFetch."""


class ItemError(msgspec.Struct, omit_defaults=True, gc=False):
    """The error of one item of a response: of a topic, a partition, a group, a resource."""

    error_code: int
    """Kafka's error code of this item."""
    resource_type: str
    """What the item is: as Kafka's ``ResourceType`` in lower case (``topic``, ``group``, ``transactional_id``,
    ``user``, ``broker``, …), or ``acl``, ``client_quota``, ``coordinator``, ``feature``, ``log_dir``, ``member``."""
    resource_name: str | None = None
    """Its name; ``id:<topic id>`` where the wire carried only the id and the cluster did not know its name; None for
    an item that has no name, as one of CreateAcls."""
    topic_id: str | None = None
    """Topic id as Kafka prints it, where the wire carried one."""
    partition: int = -1
    """Partition number, where the item is a partition."""
    index: int = -1
    """Place of the item in its array, from 0, where it has no name."""
    parent_type: str | None = None
    """Type of what the item is in, where that has a name: ``group``, ``transactional_id`` or ``log_dir``."""
    parent_name: str | None = None
    """Name of what the item is in."""


class Resource(msgspec.Struct, omit_defaults=True, gc=False):
    """One resource that a request reads or changes, and the result of it."""

    resource_type: str
    """As in ``item_errors``; ``config`` for the name of a setting, whose value is in no event."""
    resource_name: str | None = None
    """Its name; ``id:<topic id>`` where the wire carried only the id and the cluster did not know its name; None for a
    resource without a name, as the cluster or a default quota."""
    topic_id: str | None = None
    """Topic id as Kafka prints it, where the wire carried one."""
    parent_type: str | None = None
    """Type of what it belongs to: the topic or broker of a ``config``, the resource of an ACL's ``user``."""
    parent_name: str | None = None
    """Name of what it belongs to."""
    error_code: int = 0
    """Its result: Kafka's error code of this resource, or of the whole response; 0 where it succeeded. −1 where that
    is not known: the response did not come, could not be read, or has more errors than are kept. 35 where the sidecar
    answered an unsupported request itself."""
    op_type: str | None = None
    """How it is changed, where the request says that of each resource: ``SET``, ``DELETE``, ``APPEND`` or ``SUBTRACT``
    of a ``config`` (Kafka's ``AlterConfigOp.OpType``); ``SET`` or ``DELETE`` of a SCRAM user. DeleteAcls has its
    filters first, without one, then the ``user`` of each ACL that the response lists, with ``DELETE``."""
    mechanism: str | None = None
    """Of a SCRAM user: ``SCRAM-SHA-256`` or ``SCRAM-SHA-512``."""
    acl_pattern_type: str | None = None
    """Of the ``user`` of an ACL: how its resource is named, by Kafka's ``PatternType``: ``LITERAL``, ``PREFIXED``; of a
    filter also ``ANY``, ``MATCH``. ``resource_name`` None: any user."""
    acl_host: str | None = None
    """Likewise: host from which the user may do so, ``*`` for all; None of a filter: any."""
    acl_operation: str | None = None
    """Likewise: what the user may do, by Kafka's ``AclOperation``: ``Read``, ``Write``, …, ``All``; of a filter also
    ``Any``."""
    acl_permission_type: str | None = None
    """Likewise: ``ALLOW`` or ``DENY``; of a filter also ``ANY``."""


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
    """From the last byte of the request read to the last byte of the response written; 0 without a response."""
    request_bytes: int
    """The whole frame, size prefix included."""
    response_bytes: int = 0
    """The whole frame, size prefix included; 0 without a response."""
    outcome: Outcome = "answered"
    """``no_response``: there is none by design (acks=0). ``connection_lost``: it ended before the response did."""
    decode: Decode = "none"
    """How far the bodies were read: ``none`` (not asked for), ``full``, ``malformed``, ``unsupported`` (newer than this
    sidecar knows), or ``not_kept`` (clients made it hold too much memory at the time). Unless ``full``, ``topics`` and
    what else stands in bodies may be missing; the sizes are always right."""
    client_id: str | None = None
    """As the client chose it."""
    client_software_name: str | None = None
    """As in the client's ApiVersions request."""
    client_software_version: str | None = None
    """As in the client's ApiVersions request."""
    throttle_ms: int = 0
    """How long the broker asked the client to wait, of every api whose responses say so."""
    max_wait_ms: int = 0
    """Fetch and ShareFetch: how long the client let the broker wait for data. Where an answered one has no ``topics``,
    most of ``latency_us`` may be that wait."""
    acks: int | None = None
    """Produce: −1, 0 or 1."""
    error_code: int = 0
    """Top-level error code of the response, where it stands at a fixed place near its start. 29 with
    ``synthesized``: denied, because it would have changed a topic of the sidecars."""
    topics: tuple[TopicPartition, ...] = ()
    """Produce: every partition sent. Fetch and ShareFetch: every partition that returned records or an error."""
    upstream_us: int = 0
    """The broker's part of ``latency_us``: from the request handed to it to the last byte of its response read; 0
    without a response. The rest is the sidecar's own."""
    principal_source: PrincipalSource = "anonymous"
    """How ``principal`` is known. ``anonymous``: the listener authenticates nobody. ``unauthenticated``: it does, and
    the client is not through yet. ``sasl``: the client said so and the broker agreed. ``mtls``: its certificate says
    so, and the sidecar has verified that. ``unknown``: it cannot be seen here."""
    polled: tuple[str, ...] = ()
    """Fetch: topics that were asked for and returned no records; listed at most once a minute for each connection."""
    muted_us: int = 0
    """The part of ``latency_us`` in which the broker read nothing of this connection, because it had asked it to wait
    (``throttle_ms`` of earlier responses, from when they came; brokers do so since Kafka 2.0)."""
    synthesized: bool = False
    """True where the broker never had the whole request: the sidecar itself answered it, or closed the connection
    because of it. ``response_bytes`` are always what the client got."""
    item_errors: tuple[ItemError, ...] = ()
    """Errors of single items of the response, of every api but those of ``topics``: the first 100 failures, the first
    20 retriable ones and the first 20 steps of a protocol. Items of an excluded topic are left out."""
    item_failures: int = 0
    """Items whose error is a failure, listed or not."""
    item_retriable: int = 0
    """Items whose error is retriable: a leader or coordinator moves, and clients ask again."""
    item_protocol: int = 0
    """Items whose error is a step of a protocol, as a rebalance."""
    operation: str | None = None
    """What the request does to its ``resources``, by Kafka's ``AclOperation``: ``Create``, ``Delete``, ``Alter``,
    ``AlterConfigs``, ``Describe``, ``DescribeConfigs``, ``Read``, ``Write`` …; None without them."""
    resources: tuple[Resource, ...] = ()
    """What the request reads or changes, of every api but those of ``topics``: the first 100 resources it names, and
    the first 100 ACLs that the response of DeleteAcls lists."""
    resource_count: int = 0
    """How many those are, listed or not."""
    validate_only: bool = False
    """True where the broker was asked to check the request, and to change nothing."""
    group_id: str | None = None
    """Consumer, share or streams group of the request."""
    group_instance_id: str | None = None
    """Static member of the group (KIP-345)."""
    member_id: str | None = None
    """Member of the group."""
    generation_id: int = -1
    """Generation of the group that the member knows, or its member epoch (KIP-848)."""
    transactional_id: str | None = None
    """Transactional producer of the request."""


class ConnectionEvent(msgspec.Struct, omit_defaults=True, gc=False, tag_field="kind", tag="connection"):
    """Something happened to a connection as a whole."""

    seq: int
    """Number of the event, as for every kind."""
    change: ConnectionChangeKind
    """``opened``, ``authenticated`` (again, where the client does so again), ``authentication_failed``, ``closed``."""
    ts: int
    """When."""
    listener: str
    """Name of the listener the client came in by."""
    connection_id: str
    """Id of the client's connection, unique within one run of a sidecar."""
    principal: str
    """Who the client is, as ``User:<name>``, right after the change. Of a failed authentication: who it said to be."""
    client_ip: str
    """Address of the client."""
    client_port: int
    """Port of the client."""
    principal_source: PrincipalSource = "anonymous"
    """How ``principal`` is known, as in a request."""
    sasl_mechanism: str | None = None
    """SASL mechanism the client chose, as in ``sasl.mechanism``."""
    tls_version: str | None = None
    """Version of TLS, as in ``ssl.enabled.protocols``, where the sidecar terminates it. It is not known yet when a
    connection is ``opened``."""
    tls_cipher: str | None = None
    """Likewise: cipher suite, as in ``ssl.cipher.suites``."""
    tls_client_serial: str | None = None
    """Likewise: serial number of the client's certificate, as ``openssl x509 -serial`` prints it."""
    client_id: str | None = None
    """``closed``: the client id of its last request; null where the listener's bytes are not read."""
    client_software_name: str | None = None
    """As in the client's ApiVersions request."""
    client_software_version: str | None = None
    """As in the client's ApiVersions request."""
    cause: str = ""
    """``closed``: why, as in the label of ``brokerside_connections_closed_total``."""
    error_code: int = 0
    """``authentication_failed``: Kafka's error code; 0 where the broker just closed the connection."""
    session_lifetime_ms: int = 0
    """``authenticated``: how long the broker lets it last before the client has to do so again; 0: for ever."""
    duration_ms: int = 0
    """``closed``: how long it was open."""
    requests: int = 0
    """``closed``: requests it carried."""
    received_bytes: int = 0
    """``closed``: bytes that came from the client."""
    sent_bytes: int = 0
    """``closed``: bytes that were sent to it."""


class RollupTopic(msgspec.Struct, omit_defaults=True, gc=False):
    """What all requests of a rollup did to one topic."""

    topic: str
    """Its name, as in a partition of a request."""
    topic_requests: int = 0
    """Requests that touched it."""
    records: int = 0
    """Records acknowledged (Produce), or consumed (Fetch, ShareFetch), as a partition of a request counts them."""
    bytes: int = 0
    """Their record sets."""
    unconfirmed_records: int = 0
    """Produce without an answer: acks=0, or the connection was lost."""
    unconfirmed_bytes: int = 0
    """Their record sets."""
    rejected_records: int = 0
    """Produce answered with an error, or with an answer that could not be read."""
    rejected_bytes: int = 0
    """Their record sets."""
    latencies: tuple[int, ...] = ()
    """As of the whole rollup, of the requests that touched it."""
    service_latencies: tuple[int, ...] = ()
    """Likewise."""
    errors: int = 0
    """Requests in which one of its partitions had an error that is a failure."""
    estimated_records: int = 0
    """The part of ``records`` whose number is a lower or an upper bound."""


class RollupEvent(msgspec.Struct, omit_defaults=True, gc=False, tag_field="kind", tag="rollup"):
    """All requests of the same minute, client, api and its version that ended within one interval (``audit.mode:
    rollup``).

    Where they touched very many topics, more rollups follow of the same key, with further topics and nothing else.
    """

    seq: int
    """Number of the event, as for every kind."""
    minute: int
    """Start of the minute in which the requests arrived."""
    listener: str
    """Name of the listener the client came in by."""
    api_key: int
    """Kafka's number of the kind of request."""
    api: str
    """Kafka's name of the api key."""
    principal: str
    """Who the client is, as in a request."""
    client_ip: str
    """Address of the client."""
    requests: int
    """How many."""
    request_bytes: int
    """Sum of their frames."""
    client_id: str | None = None
    """As the client chose it."""
    principal_source: PrincipalSource = "anonymous"
    """How ``principal`` is known, as in a request."""
    api_version: int = -1
    """Version of the requests and their responses."""
    client_software_name: str | None = None
    """As in a request."""
    client_software_version: str | None = None
    """As in a request."""
    response_bytes: int = 0
    """Sum of their responses' frames."""
    errors: int = 0
    """Those with a failure, of the whole, of any partition or of any item."""
    retriable: int = 0
    """Those with no failure and with a retriable error: a leader or coordinator moves, and clients ask again."""
    protocol: int = 0
    """Those whose errors are all steps of a protocol, as a rebalance."""
    connection_lost: int = 0
    """Those whose connection ended before their response did."""
    throttle_ms: int = 0
    """Sum of how long the broker asked the client to wait."""
    idle: int = 0
    """Fetches and share fetches that were answered with neither records nor an error: the broker let them wait for
    data."""
    latencies: tuple[int, ...] = ()
    """How many were answered within each ``latency_us``, those in ``idle`` left out. There are 40 buckets: bucket i
    ends at 64 µs · √2^i, rounded down, the last has no end. Trailing zeros are left out."""
    upstream_latencies: tuple[int, ...] = ()
    """The same of ``upstream_us``."""
    service_latencies: tuple[int, ...] = ()
    """The same of ``latency_us`` less what the client or a quota asked for: ``max_wait_ms``, where that is above 0, and
    ``muted_us``; of what is below 0 then, of 0. Left out where it is the same as ``latencies``."""
    per_topic: tuple[RollupTopic, ...] = ()
    """By topic."""
    polled: tuple[str, ...] = ()
    """As in a request."""


class ThrottleEvent(msgspec.Struct, omit_defaults=True, gc=False, tag_field="kind", tag="throttle"):
    """Connections of one client address that met the same limit with the same result, within about a second.

    Of the scope ``principal`` those of one principal at that address.
    """

    seq: int
    """Number of the event, as for every kind."""
    listener: str
    """Name of the listener the clients came in by."""
    client_ip: str
    """Address of the clients, or their IPv6 network; ``*`` for all that are not counted one by one, because too many
    were throttled in that second."""
    scope: ThrottleScope
    """Whose limit it is: the whole broker's, the listener's, that of each address, or of each principal that has
    authenticated."""
    quota: ThrottleQuota
    """What is limited: connections accepted per second, or connections open at a time."""
    action: ThrottleAction
    """``delay``: the listener accepted nothing until there was room. ``hold``: they were set aside, unread, for
    ``delay_ms``; those of a principal were open, and their clients were not read for that time. ``drop``: they were
    closed. ``observe``: nothing, they only would have been throttled. One that was
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
    principal: str = ""
    """Of the scope ``principal``: who had authenticated, or ``*`` for many together; else left out."""


Event = (
    RequestEvent
    | RollupEvent
    | ConnectionEvent
    | ThrottleEvent
    | InventoryEvent
    | GroupEvent
    | EndOffsetsEvent
    | GapEvent
    | StatusEvent
)
"""One event, of whatever kind."""


class Envelope(msgspec.Struct, gc=False):
    """The value of one Kafka record of the audit topic. The record has no key."""

    schema_level: int
    """1, or 2 while a sidecar in ``audit.mode: rollup`` rolls up. A reader that knows only lower ones must not read the
    record."""
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
    events: list[Event]
    """The events of all kinds, by ``seq``; at least one."""


encoder = msgspec.json.Encoder()
decoder = msgspec.json.Decoder(Envelope)
