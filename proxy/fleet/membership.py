"""Which sidecars and readers run, from the records of the registry. Pure, without a clock.

A record's time is when the broker appended it, so the clocks of sidecars do not matter. Every sidecar writes every 3 s,
this one too, so the time of the newest record is the current time. While nothing can be written or read, the membership
stays as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

from proxy.features.records import ReaderRecord, decode_reader, reader_of_key
from proxy.fleet.sidecar_record import STOPPED, SidecarRecord, decode, node_id_of_key
from proxy.fleet.topic_spec import TopicRecord

HEARTBEAT_INTERVAL = 3.0
"""Seconds between two records of a sidecar or a reader."""

MEMBER_DEAD_AFTER_MS = 9000
"""Milliseconds. A member runs as long as its last record is not that much older than the newest record of all."""


MAX_MEMBERS = 1000
"""Most sidecars; records of further ones are dropped. Kafka's clusters have fewer brokers."""

MAX_MEMBER_BYTES = 4_194_304
"""Most bytes of all records of sidecars; a record beyond it is dropped. A usual record has 2,000."""

MAX_READERS = 1000
"""Most readers; records of further ones are dropped."""

MAX_READER_BYTES = 1_048_576
"""Most bytes of all records of readers. A usual record has 200."""


class Member(NamedTuple):
    """A sidecar's last record. ``alive``: whether the sidecar still runs."""

    record: SidecarRecord
    alive: bool


class ReaderMember(NamedTuple):
    """A reader's last record. ``alive``: whether the reader still runs."""

    record: ReaderRecord
    alive: bool


class RegistryContent(NamedTuple):
    """What the registry has: sidecars by node id, readers by name.

    ``seen``: when each wrote last, in milliseconds since 1970, by ``sidecar/ID`` and ``reader/NAME``.
    """

    sidecars: Mapping[int, Member]
    readers: Mapping[str, ReaderMember]
    seen: Mapping[str, int]


AnyMember = TypeVar("AnyMember", SidecarRecord, ReaderRecord)
AnyId = TypeVar("AnyId", int, str)


class _LastRecords(Generic[AnyId, AnyMember]):
    """The last record of each of one kind of member, and when the broker appended it."""

    def __init__(
        self,
        decode: Callable[[bytes], AnyMember | None],
        started: Callable[[AnyMember], int],
        most: int,
        most_bytes: int,
    ) -> None:
        self.found: dict[AnyId, tuple[bytes, AnyMember, int]] = {}
        self._decode: Callable[[bytes], AnyMember | None] = decode
        self._started: Callable[[AnyMember], int] = started
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0

    def put(self, member: AnyId, value: bytes, at: int, *, is_running: bool) -> str | None:
        """Keep a record; or return why it is dropped. ``is_running``: only a later run may replace the one before."""
        known = self.found.get(member)
        if known is not None and known[0] == value:
            self.found[member] = value, known[1], at
            return None
        if self._bytes + len(value) - (len(known[0]) if known else 0) > self._most_bytes or (
            known is None and len(self.found) >= self._most
        ):
            return "too_much"
        record = self._decode(value)
        if record is None:
            return "malformed"
        if is_running and known is not None and self._started(record) < self._started(known[1]):
            return "repeated"
        self.forget(member)
        self.found[member] = value, record, at
        self._bytes += len(value)
        return None

    def forget(self, member: AnyId) -> None:
        known = self.found.pop(member, None)
        if known is not None:
            self._bytes -= len(known[0])


class Membership:
    """The last record of each member. ``dropped``: numbers of records that were dropped, by reason.

    ``brokers``: ids of brokers that the cluster has, or had; records of sidecars of other brokers are dropped. None:
    not known yet. ``signed``: records are signed. A record of an earlier run of a member that still runs is then
    dropped as a replay.
    """

    def __init__(self, *, signed: bool = False) -> None:
        self._signed = signed
        self.brokers: Collection[int] | None = None
        self.dropped: Counter[str] = Counter()
        self._sidecars = _LastRecords[int, SidecarRecord](decode, started_ms, MAX_MEMBERS, MAX_MEMBER_BYTES)
        self._readers = _LastRecords[str, ReaderRecord](
            decode_reader, lambda record: record.started, MAX_READERS, MAX_READER_BYTES
        )
        self._newest = 0

    def apply(self, records: Iterable[TopicRecord]) -> None:
        """Apply records in the order of the topic. Records that no member can have written are dropped."""
        brokers = self.brokers
        if brokers is not None:
            for gone in [node_id for node_id in self._sidecars.found if node_id not in brokers]:
                self._sidecars.forget(gone)
        for key, value, written in records:
            node_id, reader = node_id_of_key(key), reader_of_key(key)
            if node_id is None and reader is None:
                self.dropped["key"] += 1
                continue
            at = written or 0
            self._newest = max(self._newest, at)
            problem = None
            if node_id is None:
                assert reader is not None
                problem = self._apply(self._readers, reader, value, at)
            elif brokers is not None and node_id not in brokers:
                problem = "unknown_broker"
            else:
                problem = self._apply(self._sidecars, node_id, value, at)
            if problem is not None:
                self.dropped[problem] += 1

    def content(self) -> RegistryContent:
        """Return all members."""
        sidecars, readers = self._sidecars.found, self._readers.found
        seen = {f"sidecar/{node_id}": at for node_id, (_, _, at) in sidecars.items()}
        return RegistryContent(
            {node_id: Member(record, self._is_alive(record, at)) for node_id, (_, record, at) in sidecars.items()},
            {name: ReaderMember(record, self._is_alive(record, at)) for name, (_, record, at) in readers.items()},
            seen | {f"reader/{name}": at for name, (_, _, at) in readers.items()},
        )

    def _apply(self, kept: _LastRecords[AnyId, AnyMember], member: AnyId, value: bytes | None, at: int) -> str | None:
        if value is None:
            kept.forget(member)
            return None
        known = kept.found.get(member)
        is_running = self._signed and known is not None and self._is_alive(known[1], known[2])
        return kept.put(member, value, at, is_running=is_running)

    def _is_alive(self, record: SidecarRecord | ReaderRecord, at: int) -> bool:
        return record.state != STOPPED and at >= self._newest - MEMBER_DEAD_AFTER_MS


def started_ms(record: SidecarRecord) -> int:
    """Return when the sidecar started, in milliseconds since 1970; 0 if its record does not say."""
    return int(record.timestamp) if record.timestamp.isascii() and record.timestamp.isdigit() else 0
