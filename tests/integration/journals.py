"""Journals of consumers: what each was handed out and when, and what follows from all of them together.

Times are nanoseconds of CLOCK_BOOTTIME, which all processes of a machine share.

``python -m tests.integration.journals FILE ARGUMENTS``: a consumer that writes one. ``ARGUMENTS``: JSON;
``topic_count`` and what else ``CoordinatedConsumer`` takes, and ``pause``: seconds between two looks at a stream that
was empty; messages wait in it meanwhile. Ends with SIGTERM. A line is in the file before the next message is asked for,
so that nothing is lost with a process that is killed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import struct
import sys
import threading
import time
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from proxy.client.consumer import ConsumerFailed, CoordinatedConsumer
from proxy.client.consumer.link import SIZE_BYTES, CoordinatorLink
from proxy.client.consumer.streams import MessageStream
from proxy.config.values import Endpoint
from proxy.coordinator.wire import START_FETCHER, ConsumerResponse, decode_response
from proxy.errors import PeerError
from proxy.fleet.boottime import boottime_ms
from tests.integration.feature_sidecars import read_to_end

MILLISECOND = 1_000_000

Source = tuple[str, int, int]
"""A topic, how often it was recreated before, and a partition."""


class HandedOut(NamedTuple):
    """A message was handed out later than ``before``, and earlier than ``after``."""

    source: Source
    offset: int
    before: int
    after: int


class Change(NamedTuple):
    """A partition was assigned, or revoked."""

    at: int
    topic: str
    partition: int


class Report(NamedTuple):
    """The coordinator was sent the offset to consume next, before ``at``."""

    at: int
    topic: str
    partition: int
    offset: int


class Journal(NamedTuple):
    """Of one process of a consumer, in the order of time. ``failure``: why the consumer has ended by itself.
    ``started``: when it has responded to StartFetcher."""

    name: str
    handed_out: Sequence[HandedOut]
    assigned: Sequence[Change]
    revoked: Sequence[Change]
    reported: Sequence[Report]
    failure: str | None
    started: Sequence[int] = ()


class Replay(NamedTuple):
    """A message that was handed out again later. ``name``, ``again``: of the journals."""

    name: str
    first: HandedOut
    again: str
    second: HandedOut


def read_journal(path: Path) -> Journal:
    """Read what a process has written so far."""
    found: dict[str, list[Any]] = defaultdict(list)
    whole, _, _ = path.read_text().rpartition("\n")
    for line in whole.splitlines():
        kind, *fields = msgspec.json.decode(line)
        found[kind].append(fields)
    return Journal(
        path.stem,
        [HandedOut((topic, recreated, number), *rest) for topic, recreated, number, *rest in found["handed_out"]],
        [Change(*one) for one in found["assigned"]],
        [Change(*one) for one in found["revoked"]],
        [Report(*one) for one in found["reported"]],
        next((why for (why,) in found["failed"]), None),
        [at for (at,) in found["started"]],
    )


def find_overlaps(journals: Iterable[Journal]) -> list[str]:
    """Return where two consumers have handed out messages of one partition at the same time.

    A consumer has a partition for certain from the end of its first message to the beginning of the last one before it
    is assigned to it anew. Nobody else may be handed out a message within that.
    """
    runs: dict[Source, list[tuple[str, list[HandedOut]]]] = defaultdict(list)
    for journal in journals:
        for source, messages in _runs(journal):
            runs[source].append((journal.name, messages))
    found = []
    for source, of_source in runs.items():
        for name, messages in of_source:
            since, until = messages[0].after, messages[-1].before
            for other, others in of_source:
                at = bisect_right(others, since, key=lambda one: one.before)
                if other != name and at < len(others) and others[at].after < until:
                    early = (until - others[at].after) // MILLISECOND
                    found.append(f"{source}: {other} got offset {others[at].offset} {early} ms before {name} ended")
    return found


def _runs(journal: Journal) -> list[tuple[Source, list[HandedOut]]]:
    """Return the messages of each partition between two assignments of it. Left out is what may belong to either."""
    assigned: dict[tuple[str, int], list[int]] = defaultdict(list)
    for change in journal.assigned:
        assigned[change.topic, change.partition].append(change.at)
    runs: dict[tuple[Source, int], list[HandedOut]] = defaultdict(list)
    for one in journal.handed_out:
        topic, _, partition = one.source
        times = assigned[topic, partition]
        number = bisect_left(times, one.before)
        if number == bisect_left(times, one.after):
            runs[one.source, number].append(one)
    return [(source, messages) for (source, _), messages in runs.items()]


def count_skipped(journals: Iterable[Journal], produced: Mapping[Source, int]) -> dict[Source, int]:
    """Return how many messages nobody was handed out, where some are missing. ``produced``: numbers of messages."""
    offsets: dict[Source, set[int]] = defaultdict(set)
    for journal in journals:
        for one in journal.handed_out:
            offsets[one.source].add(one.offset)
    missing = {source: count - len(offsets[source]) for source, count in produced.items()}
    return {source: count for source, count in missing.items() if count}


def find_replays(journals: Iterable[Journal]) -> list[Replay]:
    """Return what was handed out more than once; a message as often as it was repeated."""
    found: dict[tuple[Source, int], list[tuple[HandedOut, str]]] = defaultdict(list)
    for journal in journals:
        for one in journal.handed_out:
            found[one.source, one.offset].append((one, journal.name))
    return [
        Replay(name, first, again, second)
        for times in found.values()
        for (first, name), (second, again) in pairwise(sorted(times, key=lambda one: one[0].before))
    ]


def longest_pauses(journals: Iterable[Journal], since: int, until: int) -> dict[Source, int]:
    """Return the longest time in milliseconds between two messages of each partition, whoever got them; a pause counts
    if it lies between the two times at least in part."""
    times: dict[Source, list[int]] = defaultdict(list)
    for journal in journals:
        for one in journal.handed_out:
            times[one.source].append(one.after)
    return {
        source: max((b - a for a, b in pairwise(sorted(of_source)) if a < until and b > since), default=0)
        // MILLISECOND
        for source, of_source in times.items()
    }


# ---- why a message was handed out again ------------------------------------------------------------------------------
#
# The coordinator knows what a consumer was handed out from its next response, and Kafka from the next commit. So a
# message is handed out again only if its consumer was lost before it responded, or if the coordinator ended with the
# response before it committed, and the consumer was lost before it could report to the next one.

OFFSETS_TOPIC = "__consumer_offsets"

UNSURE = "unsure takeover"


class Loss(NamedTuple):
    """A consumer was lost. What it reports after ``at`` may not arrive, and it hands out nothing after ``until``.
    ``unreported``: for how long before ``at`` it may have been handed out what it has not reported."""

    name: str
    what: str
    at: int
    until: int
    unreported: int


class Outage(NamedTuple):
    """A coordinator has ended, or could not commit: what it heard until ``until``, and had not committed, is lost."""

    what: str
    at: int
    until: int


class Recreation(NamedTuple):
    """A topic is another one from ``at`` on. Until ``until`` it may be read from an offset of the one before."""

    topic: str
    at: int
    until: int


class UnsureTakeover(NamedTuple):
    """A coordinator has taken over, and does not know whether all owners had StartFetcher from its predecessor. What a
    consumer reports after ``at`` counts once it has responded to StartFetcher; after ``until`` it counts anyway."""

    at: int
    until: int


Event = Loss | Outage | Recreation | UnsureTakeover


class Explainer:
    """Knows what was done, and what was committed. Times are nanoseconds, as those of journals."""

    def __init__(
        self,
        journals: Iterable[Journal],
        events: Iterable[Event],
        commits: Iterable[Report],
        *,
        unreported: int,
        uncommitted: int,
        lease: int,
    ) -> None:
        """``commits``: see ``read_commits``. ``unreported``, ``uncommitted``: for how long, at most, a consumer has not
        reported what it was handed out, and its coordinator has not committed what was reported. ``lease``: for how
        long a consumer goes on without a coordinator."""
        found = list(events)
        self._losses = sorted((one for one in found if isinstance(one, Loss)), key=lambda one: one.at)
        self._outages = [one for one in found if isinstance(one, Outage)]
        self._recreations = [one for one in found if isinstance(one, Recreation)]
        self._unsure = sorted(one for one in found if isinstance(one, UnsureTakeover))
        self._journals = {one.name: one for one in journals}
        self._reports = {name: _by_partition(one.reported) for name, one in self._journals.items()}
        self._commits = _by_partition(commits)
        self._unreported, self._uncommitted, self._lease = unreported, uncommitted, lease

    def explain(self, replay: Replay) -> str | None:
        """Return the event that explains it, and the coordinator's end if it takes one; None if nothing does."""
        first, began = replay.first, self._begin_of(replay)
        topic = first.source[0]
        if any(one.topic == topic and one.at < first.after and first.before < one.until for one in self._recreations):
            return "recreate"
        if began < first.before or _covering(self._commits, replay, began):
            return None
        reported = _covering(self._reports[replay.name], replay, began)
        for loss in self._losses:
            heard = [at for at in reported if at < loss.at]
            fits = loss.name == replay.name and loss.at < began and first.before < loss.until
            if fits and (reason := self._by(loss, replay, heard, began)) is not None:
                return reason
        # The consumer lives: it begins anew after its lease, or another one has its partition.
        reasons = [self._why_not_committed(replay, at, began) for at in reported]
        return UNSURE if UNSURE in reasons and None not in reasons else None

    def _begin_of(self, replay: Replay) -> int:
        """When the partition was assigned to the consumer that was handed the message out again."""
        topic, _, partition = replay.first.source
        assigned = self._journals[replay.again].assigned
        times = [one.at for one in assigned if (one.topic, one.partition) == (topic, partition)]
        return max((at for at in times if at < replay.second.after), default=0)

    def _by(self, loss: Loss, replay: Replay, heard: Sequence[int], began: int) -> str | None:
        """``heard``: when coordinators heard of the message."""
        handed_out = replay.first.after
        if not heard and handed_out > loss.at - loss.unreported:
            return loss.what
        if heard:
            reasons = [self._why_not_committed(replay, at, began) for at in heard]
            return None if None in reasons else f"{loss.what}, {reasons[0]}"
        for one in self._outages:
            is_before = one.at < min(began, loss.at)
            if is_before and one.at - self._unreported < handed_out < one.until + self._lease:
                return f"{loss.what}, {one.what}"
        return None

    def _why_not_committed(self, replay: Replay, at: int, began: int) -> str | None:
        """Why what the consumer has reported at a time was not committed before the message was handed out again."""
        takeover = max((one for one in self._unsure if one.at < at), default=None)
        if takeover is not None and at < takeover.until:
            started = self._journals[replay.name].started
            if not any(takeover.at < one < at for one in started):
                return UNSURE
        for one in self._outages:
            if one.at < began and one.at - self._uncommitted < at < one.until:
                return one.what
        return None


def _by_partition(offsets: Iterable[Report]) -> Mapping[tuple[str, int], list[Report]]:
    found: dict[tuple[str, int], list[Report]] = defaultdict(list)
    for one in offsets:
        found[one.topic, one.partition].append(one)
    return found


def _covering(offsets: Mapping[tuple[str, int], list[Report]], replay: Replay, until: int) -> list[int]:
    """Return when the message was reported, or committed, before ``until``."""
    topic, _, partition = replay.first.source
    first = replay.first
    of_partition = offsets.get((topic, partition), ())
    return [one.at for one in of_partition if one.offset > first.offset and first.before < one.at < until]


def read_commits(bootstrap: str, group: str) -> list[Report]:
    """Return the offsets of a group that were committed, in the order of each partition."""
    booted = time.time_ns() - boottime_ns()
    found: list[Report] = []
    # The beginning of an OffsetCommitKey, of either version; the keys of other records have others.
    keys = tuple(struct.pack(f">hh{len(group)}s", version, len(group), group.encode()) for version in (0, 1))
    for message in read_to_end(bootstrap, OFFSETS_TOPIC):
        key, value = message.key() or b"", message.value()
        if value is not None and key.startswith(keys):
            topic, partition = key[len(keys[0]) + 2 : -4].decode(), int.from_bytes(key[-4:], "big")
            offset = int.from_bytes(value[2:10], "big")
            found.append(Report(message.timestamp()[1] * MILLISECOND - booted, topic, partition, offset))
    return found


# ---- the process -----------------------------------------------------------------------------------------------------

POLL_SECONDS = 0.01
"""Between two times of which it is known that a message was handed out between them, at most, while nothing stops."""


class ReportingLink(CoordinatorLink):
    """Calls ``responded`` with a response when the kernel has it."""

    responded: Callable[[ConsumerResponse], None]

    def send(self, frame: bytes) -> None:
        super().send(frame)
        with contextlib.suppress(PeerError):  # a request of its own
            self.responded(decode_response(frame[SIZE_BYTES:]))


class ReportingConsumer(CoordinatedConsumer):
    """``responded``: see ``ReportingLink``."""

    responded: Callable[[ConsumerResponse], None]

    def _open_link(self, address: Endpoint) -> CoordinatorLink:
        link = ReportingLink(address, self._security, self._settings.client_id, boottime_ms)
        link.responded = self.responded
        return link


class JournalingConsumer:
    """Runs from its making to ``shut_down``."""

    def __init__(self, path: str, arguments: dict[str, Any]) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._is_ended = threading.Event()
        self._pause = arguments.pop("pause")
        topic_count = arguments.pop("topic_count")
        self._consumer = ReportingConsumer(
            **arguments,
            on_assigned=lambda found: self._note_all("assigned", found),
            on_revoked=lambda found: self._note_all("revoked", found),
        )
        self._consumer.responded = self._note_response
        streams = self._consumer.create_message_streams(topic_count)
        self._threads = [threading.Thread(target=self._read, args=[one]) for each in streams.values() for one in each]
        for thread in self._threads:
            thread.start()

    def shut_down(self) -> None:
        """Leave the group."""
        self._consumer.shutdown()
        self._is_ended.set()
        for thread in self._threads:
            thread.join()

    def _note(self, *fields: object) -> None:
        os.write(self._file, msgspec.json.encode(fields) + b"\n")

    def _note_all(self, what: str, partitions: list[tuple[str, int]]) -> None:
        now = boottime_ns()
        for topic, partition in partitions:
            self._note(what, now, topic, partition)

    def _note_response(self, response: ConsumerResponse) -> None:
        now = boottime_ns()
        if response.api_key == START_FETCHER:
            self._note("started", now)
        for one in response.offsets or ():
            self._note("reported", now, one.topic, one.partition, one.offset)

    def _read(self, stream: MessageStream) -> None:
        try:
            while not self._is_ended.is_set():
                before = boottime_ns()
                message = stream.poll(POLL_SECONDS)
                if message is None:
                    self._is_ended.wait(self._pause)
                else:
                    where = message.topic(), int(message.value() or b""), message.partition(), message.offset()
                    self._note("handed_out", *where, before, boottime_ns())
        except ConsumerFailed as error:
            self._note("failed", str(error))


def boottime_ns() -> int:
    """Return the time since the machine was booted."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def main() -> None:
    """Consume until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    consumer = JournalingConsumer(sys.argv[1], json.loads(sys.argv[2]))
    signal.sigwait([signal.SIGTERM])
    consumer.shut_down()


if __name__ == "__main__":
    main()
