"""The only door from the data path to observers: cheap on the event loop, everything else on other threads.

On the loop an exchange costs one list append, as does a change of a connection. A timer of the data path calls
``flush`` about every 50 ms, which hands both lists to each observer's thread; throttle reports go there at once, behind
what was recorded before them. There is no asyncio here, and nothing here ever waits except ``close``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from observers.api import ConnectionChange, ExchangeObserver, ObservedExchange, Observer, ThrottleReport
from observers.errors import ObserverError
from observers.observer_loader import LoadedObserver, describe_error, load_observers
from observers.observer_thread import (
    MAX_LIGHT_WEIGHT,
    ObserverBatch,
    ObserverStats,
    ObserverThread,
    queue_weight_of_changes,
)
from observers.queue_weight import queue_weight
from observers.subscription import Subscription, combine_interests
from observers.topic_id_learner import TopicIdLearner
from observers.topic_names import TopicNames
from proxy.core.observation_interest import WANT_REQUEST_BODY, WANT_RESPONSE_BODY, ObservationInterest
from proxy.core.schema import response_prefix

__all__ = ["Dispatcher", "ObserverError", "ObserverStats"]

MAX_BATCH_EXCHANGES = 500
"""Exchanges in one batch: a thread frees a whole batch at once and holds the GIL meanwhile: 50 µs for these, in which the event loop waits."""

MAX_BATCH_BYTES = 4_194_304
"""Bytes of kept bodies in one batch, or those of one exchange."""

THREAD_SWITCH_INTERVAL = 0.0005
"""Seconds after which a busy observer's thread lets the loop go on. With Python's own, 0.005, one that uses the
processor all the time makes small requests wait five times as long (99th percentile 22 ms against 4 ms)."""


class Dispatcher:
    """Owns the observers of one sidecar. Its methods belong to one thread (the loop's)."""

    record: Callable[[ObservedExchange], None]
    """Take one finished exchange. A bound ``list.append`` that stays valid for the dispatcher's life."""
    note: Callable[[ConnectionChange], None]
    """Take one change of a connection. Likewise."""
    interest: ObservationInterest
    """What is wanted of each api key and version. There is none before ``start``."""
    observed: memoryview
    """One number of 64 bits, to be counted up for each call of ``record`` and ``note``; reports are counted here. It
    is the one that an observer has as ``observed``, if one has. There is none before ``start``."""

    def __init__(
        self,
        names: Sequence[str],
        configs: Mapping[str, Any],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Construct the observers ``names`` (``package.module:Class``); ``clock`` paces the circuit breakers.

        Raises ObserverError for a class that is missing, does not construct, does not fit the observer interface or is named twice.
        """
        self._loaded = load_observers(names)
        self.observers: Mapping[str, Observer | ExchangeObserver] = MappingProxyType(
            {one.name: one.observer for one in self._loaded}
        )
        self._names = TopicNames(_topic_name_fetcher(configs))
        self._topic_id_learner = TopicIdLearner(self._names)
        self._configs = MappingProxyType({**configs, "topic.names": self._names})
        self._clock = clock
        self._threads: list[ObserverThread] = []
        self._pending: list[ObservedExchange] = []
        self._changes: list[ConnectionChange] = []
        self._flushed = 0
        self._running = False
        self.record = self._pending.append
        self.note = self._changes.append

    def start(self) -> None:
        """Configure the observers in order, ask each what it wants, then start their threads.

        Raises ObserverError for an observer that refuses; those configured before it are closed again.
        """
        subscriptions = []
        for number, one in enumerate(self._loaded):
            doing = "refused its configuration"
            try:
                one.observer.configure(self._configs)
                doing = "could not say what it wants"
                subscriptions.append(Subscription(one.observer))
            except (Exception, SystemExit) as error:
                _close_observers(self._loaded[:number])
                raise ObserverError(f"observer {one.name!r} {doing}: {describe_error(error)}") from error
        self.interest = combine_interests((one.interest for one in subscriptions), response_prefix)
        self._keeps = any(flags & (WANT_REQUEST_BODY | WANT_RESPONSE_BODY) for flags in self.interest.table)
        counters = [getattr(one.observer, "observed", None) for one in self._loaded]
        self.observed = next((one for one in counters if one is not None), memoryview(bytearray(8)).cast("q"))
        broker_id = self._configs.get("broker.id", -1)
        for one, subscription in zip(self._loaded, subscriptions, strict=True):
            thread = ObserverThread(
                one, subscription, clock=self._clock, name_of=self._names.name_of, broker_id=broker_id
            )
            self._threads.append(thread)
            thread.start()
        sys.setswitchinterval(THREAD_SWITCH_INTERVAL)
        self._running = True

    def flush(self) -> None:
        """Hand what was recorded since the last flush to every thread."""
        if self._pending:
            recorded = tuple(self._pending)
            self._pending.clear()
            for at in range(0, len(recorded), MAX_BATCH_EXCHANGES):
                for exchanges, weight, kept in self._split(recorded[at : at + MAX_BATCH_EXCHANGES]):
                    topic_ids = self._topic_id_learner.select_responses(exchanges) if kept else None
                    self._enqueue(ObserverBatch(weight, exchanges, self._flushed, kept=kept, topic_ids=topic_ids))
                    self._flushed += len(exchanges)
        if self._changes:
            changes = tuple(self._changes)
            self._changes.clear()
            for at in range(0, len(changes), MAX_BATCH_EXCHANGES):
                some = changes[at : at + MAX_BATCH_EXCHANGES]
                self._enqueue(ObserverBatch(queue_weight_of_changes(some), changes=some))

    def report(self, reports: Sequence[ThrottleReport]) -> None:
        """Tell those observers of throttled connections that have ``record_throttles``. Never waits."""
        if reports:
            self.flush()
            self.observed[0] += len(reports)
            self._enqueue(ObserverBatch(len(reports), reports=tuple(reports)))

    def close(self, timeout: float) -> None:
        """Flush, feed what is queued, close the observers: all within ``timeout`` seconds, all at the same time.

        An observer that is not done by then is abandoned on its daemon thread. Call it once traffic has ended.
        """
        if not self._running:
            return
        self.flush()
        self._running = False
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.request_close(deadline)
        for thread in self._threads:
            thread.join(deadline)

    def stats(self) -> list[ObserverStats]:
        """Counts of every observer, in the order of ``observer.class.names``."""
        return [thread.stats() for thread in self._threads]

    def _split(self, some: tuple[ObservedExchange, ...]) -> Iterator[tuple[tuple[ObservedExchange, ...], int, int]]:
        """Halve ``some`` until no half is too large, or is one exchange: one that is shall cost no other its place.

        Yields each with its weight and the bytes of its kept bodies.
        """
        weight, kept = queue_weight(some), _kept_bytes(some) if self._keeps else 0
        if len(some) > 1 and (weight > MAX_LIGHT_WEIGHT or kept > MAX_BATCH_BYTES):
            half = len(some) // 2
            yield from self._split(some[:half])
            yield from self._split(some[half:])
        else:
            yield some, weight, kept

    def _enqueue(self, batch: ObserverBatch) -> None:
        counts = [thread.count_wanted(batch) for thread in self._threads]  # before anyone else can reach what is in it
        for thread, count in zip(self._threads, counts, strict=True):
            thread.enqueue(batch, count)


def _kept_bytes(exchanges: Sequence[ObservedExchange]) -> int:
    return sum([len(one.request_raw or b"") + len(one.response_raw or b"") for one in exchanges])


def _topic_name_fetcher(configs: Mapping[str, Any]) -> Callable[[], Mapping[bytes, str]]:
    """Names of all topics; what it takes to ask for them is made for the first topic id that needs one."""
    clusters: list[Any] = []

    def fetch_names() -> Mapping[bytes, str]:
        if not clusters:
            from observers.kafka_admin import KafkaAdmin, client_id_of  # with librdkafka, which few observers need

            clusters.append(KafkaAdmin(configs.get("internal", {}), client_id_of(configs.get("broker.id", -1))))
        names: Mapping[bytes, str] = clusters[0].list_topic_names()
        return names

    return fetch_names


def _close_observers(configured: Sequence[LoadedObserver]) -> None:
    for one in configured:
        try:
            one.close(0.0)
        except (Exception, SystemExit):  # noqa: S112 - the start has failed already, with a better reason
            continue
