"""What a session emits with the ``Exchange`` of each request (``proxy.compiled.exchange``): who the client
is, and the facts that walkers read of bodies.

All of these are plain values (numbers, short bytes, tuples): none refers to a network buffer, so a consumer may keep
them. ``topic`` is the UTF-8 name as bytes, or the 16 raw bytes of the topic id where the version carries ids
(Produce ≥ 13, Fetch ≥ 13, ShareFetch); ``topics_are_ids`` of the enclosing facts says which.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Outcome = Literal["open", "answered", "no_response", "connection_lost"]
"""``no_response``: acks=0 has none by design. ``connection_lost``: the connection ended before the response did."""

Decode = Literal["none", "full", "malformed", "unsupported", "not_kept"]
"""``none``: nobody asked. ``unsupported``: a version newer than the walkers know. ``malformed``: not what its version
says. ``not_kept``: there was no memory for the facts of a body, see ``proxy.core.budget``."""


PrincipalSource = Literal["anonymous", "unauthenticated", "sasl", "mtls", "unknown"]
"""How the principal is known. ``anonymous``: the listener authenticates nobody. ``unauthenticated``: it does, and this
client is not through yet. ``sasl``: the client said so and the broker agreed. ``mtls``: the client's certificate says
so, which the sidecar has verified. ``unknown``: it cannot be seen here."""


class Connection(Struct, frozen=True, gc=False):
    """One client connection as observers see it. Never changed: once more is known of the client, the session continues
    with a new one, and exchanges before that keep the old one."""

    id: str
    listener: str
    client_ip: str
    client_port: int
    opened_at: float  # seconds, the loop's monotonic clock
    principal: str
    client_software_name: str | None = None
    client_software_version: str | None = None
    principal_source: PrincipalSource = "anonymous"
    sasl_mechanism: str | None = None
    tls_version: str | None = None  # where the sidecar terminates TLS, such as TLSv1.3
    tls_cipher: str | None = None  # likewise, by Kafka's name
    tls_client_serial: str | None = None  # of the client's certificate


Change = Literal["opened", "authenticated", "authentication_failed", "closed"]


class ConnectionTransition(Struct, frozen=True, gc=False):
    """What happened to a connection as a whole. ``connection``: as it is known right after the change."""

    connection: Connection
    change: Change
    at: float  # seconds, the loop's monotonic clock
    cause: str = ""  # closed: why, as in the metric's label
    error_code: int = 0  # authentication_failed: the broker's
    session_lifetime_ms: int = 0  # authenticated: how long the broker lets it last (KIP-368); 0: for ever
    requests: int = 0  # closed: requests whose header was read
    received_bytes: int = 0  # closed: from the client, of whatever kind
    sent_bytes: int = 0  # closed: from the broker, handed on to the client
    client_id: str | None = None  # closed: of its last request, where it could be read


class RecordSet(Struct, frozen=True, gc=False):
    """Sums over the record batches of one partition, read from batch headers alone (records stay untouched).

    ``size`` bytes on the wire, compressed as sent, a cut last batch included; ``batches`` whole batches;
    ``records`` in whole data batches (control batches do not count); ``claimed`` is true where that is a lower bound:
    a compressed wrapper of magic 0 or 1 is counted as one record.
    ``producer_id``, ``producer_epoch``, ``base_sequence``, ``base_offset``: of the first batch, −1 if none.
    Source: ``DefaultRecordBatch`` (magic 2), ``AbstractLegacyRecordBatch`` (magic 0, 1).
    """

    size: int
    batches: int
    records: int
    magic: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    base_offset: int = -1
    claimed: bool = False


EMPTY_RECORD_SET = RecordSet(0, 0, 0)


class ProducedPartition(Struct, frozen=True, gc=False):
    """One partition of a ProduceRequest."""

    topic: bytes
    partition: int
    records: RecordSet


class ProduceRequest(Struct, frozen=True, gc=False):
    """Source: ProduceRequest.json, versions 0–13. ``acks``: −1, 0 or 1; ``timeout_ms`` as the client asked."""

    acks: int
    timeout_ms: int
    transactional_id: bytes | None
    partitions: tuple[ProducedPartition, ...]
    topics_are_ids: bool


class AnsweredPartition(Struct, frozen=True, gc=False):
    """One partition of a ProduceResponse; ``base_offset`` is −1 where the append failed."""

    topic: bytes
    partition: int
    error_code: int
    base_offset: int


class ProduceResponse(Struct, frozen=True, gc=False):
    """Source: ProduceResponse.json, versions 0–13. ``throttle_ms``: milliseconds the broker asks the client to wait."""

    throttle_ms: int
    partitions: tuple[AnsweredPartition, ...]
    topics_are_ids: bool


class WantedPartition(Struct, frozen=True, gc=False):
    """One partition of a FetchRequest."""

    topic: bytes
    partition: int
    fetch_offset: int


class FetchRequest(Struct, frozen=True, gc=False):
    """Source: FetchRequest.json, versions 0–18. ``replica_id`` ≥ 0 marks a follower's fetch (tag 1 since v15).

    With a fetch session (``session_epoch`` > 0) ``partitions`` holds only what changed since the last request, and
    ``forgotten`` the (topic, partition) that left the session. Also of ShareFetchRequest.json, versions 0–2:
    ``session_epoch`` is the share session's, ``session_id`` 0, ``replica_id`` and every ``fetch_offset`` −1.
    ``isolation_level``: 0 is read_uncommitted, also before v4 and of ShareFetch; 1 is read_committed. ``group_id``: of
    ShareFetch alone, UTF-8.
    """

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    session_id: int
    session_epoch: int
    partitions: tuple[WantedPartition, ...]
    topics_are_ids: bool
    forgotten: tuple[tuple[bytes, int], ...] = ()
    isolation_level: int = 0
    group_id: bytes | None = None


class FetchedPartition(Struct, frozen=True, gc=False):
    """One partition of a FetchResponse.

    ``first_batch_records``: records of the first batch that a client is given if the fetch offset is not above
    ``records.base_offset``; 0 for a control batch, or one of an aborted transaction. ``last_offset_delta``: of the
    first batch, from its header; the batch has offsets without a record (compaction) where ``first_batch_records`` is
    less than this + 1. ``aborted_records``: the part of ``records.records`` in aborted transactions, which a
    read_committed client leaves out; −1 where it is not known: the response lists more than
    ``bodies.MAX_ABORTED_TRANSACTIONS`` of them, or the records of compressed message sets of magic 0 or 1 were counted,
    which the fetch may have begun inside.
    Source: ``CompletedFetch`` of the Java client.
    """

    topic: bytes
    partition: int
    error_code: int
    high_watermark: int
    records: RecordSet
    first_batch_records: int = 0
    last_offset_delta: int = 0
    aborted_records: int = 0


class FetchResponse(Struct, frozen=True, gc=False):
    """Source: FetchResponse.json, versions 0–18. ``error_code`` and ``session_id``: since v7, 0 before.

    Also of ShareFetchResponse.json, versions 0–2: ``session_id`` is 0, every ``high_watermark`` −1.
    """

    throttle_ms: int
    error_code: int
    session_id: int
    partitions: tuple[FetchedPartition, ...]
    topics_are_ids: bool


class ItemErrorFacts(Struct, frozen=True, gc=False):
    """The error of one item. ``resource_name`` is UTF-8, at most 256 bytes (``names.shorten``); None where only
    ``topic_id`` (16 bytes) or the place in the array, ``index``, identifies it. ``partition``: −1 where it is not about
    one.
    ``parent_type``, ``parent_name``: the group, transaction or log directory around a topic; else None.
    """

    error_code: int
    resource_type: str
    resource_name: bytes | None
    topic_id: bytes | None
    partition: int
    index: int
    parent_type: str | None
    parent_name: bytes | None


class Acl(Struct, frozen=True, gc=False):
    """What an ACL says besides its principal and the resource that it is on; or what a filter of ACLs matches.

    Names as Kafka's: ``PatternType``, ``AclOperation`` (``Read``), ``AclPermissionType`` (``ALLOW``). ``host``: UTF-8,
    at most 256 bytes; None of a filter that matches every host. ``error_code``: of one that DeleteAcls found.
    """

    pattern_type: str
    host: bytes | None
    operation: str
    permission_type: str
    error_code: int = 0


class RequestResource(Struct, frozen=True, gc=False):
    """One resource that a request names. ``resource_type`` as in ``proxy.core.request_resources``; ``resource_name`` is
    UTF-8, at most 256 bytes, None where only ``topic_id`` (16 bytes) says which it is, or its place in the request,
    ``index``. ``parent_type``, ``parent_name``: what it belongs to, such as the topic of a changed ``config``.
    ``op_type``: how it is changed, where the request says that of each resource. ``mechanism``: of a SCRAM credential.
    ``acl``: of the ``user`` of an ACL.
    """

    resource_type: str
    resource_name: bytes | None
    topic_id: bytes | None
    index: int
    parent_type: str | None
    parent_name: bytes | None
    op_type: str | None = None
    mechanism: str | None = None
    acl: Acl | None = None


class ItemErrors(Struct, frozen=True, gc=False):
    """Errors of the items of one response, and the ACLs that DeleteAcls found. ``items``: errors that are kept, in the
    order of the wire. ``failures``, ``retriable``, ``protocol``: how many items had an error of each class.
    ``matching_acls``: the first ACLs; ``matching_acl_count``: how many there are."""

    items: tuple[ItemErrorFacts, ...]
    failures: int
    retriable: int
    protocol: int
    matching_acls: tuple[RequestResource, ...] = ()
    matching_acl_count: int = 0


class CommittedOffset(Struct, frozen=True, gc=False):
    """An offset in OffsetCommit or TxnOffsetCommit: the next one that the group reads.

    ``topic``: UTF-8 name, or 16-byte id where ``topic_is_id``.
    """

    topic: bytes
    topic_is_id: bool
    partition: int
    offset: int


class RequestResources(Struct, frozen=True, gc=False):
    """What a request is about, of every api but Produce and Fetch.

    ``items``: the first resources that it names; ``count``: how many it names. ``commits`` and ``commit_count``: the
    same of committed offsets. ``group_id``, ``group_instance_id``, ``member_id``, ``transactional_id``: UTF-8, at most
    256 bytes; None where the request has none, or several. ``generation_id``: also the member epoch of KIP-848; −1
    where there is none. ``validate_only``: the broker was asked to check and to change nothing.
    """

    items: tuple[RequestResource, ...] = ()
    count: int = 0
    commits: tuple[CommittedOffset, ...] = ()
    commit_count: int = 0
    group_id: bytes | None = None
    group_instance_id: bytes | None = None
    member_id: bytes | None = None
    transactional_id: bytes | None = None
    generation_id: int = -1
    validate_only: bool = False


RequestFacts = ProduceRequest | FetchRequest
ResponseFacts = ProduceResponse | FetchResponse
