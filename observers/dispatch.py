"""The only entry from the data path to observers: cheap on the event loop, with all other work on other threads.

On the loop an exchange costs one list append, as does a change of a connection. A timer of the data path calls
``flush`` every 50 ms, or 10 ms under load, which hands both lists to each observer's thread; throttle reports go there
at once, behind what was recorded before them. Levels of features go beside the queue. There is no asyncio here, and
nothing here ever waits except ``close``.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from observers.api import ConnectionChange, ExchangeObserver, ObservedExchange, Observer, ThrottleReport
from observers.background import BackgroundThreads
from observers.errors import ObserverError
from observers.observed_counter import ObservedCounter
from observers.observer_loader import LoadedObserver, describe_error, load_observers
from observers.observer_thread import (
    MAX_LIGHT_WEIGHT,
    ObserverBatch,
    ObserverStats,
    ObserverThread,
    add_stats,
    queue_weight_of_changes,
)
from observers.queue_weight import queue_weight
from observers.subscription import Subscription, combine_interests
from observers.topic_id_learner import TopicIdLearner
from observers.topic_names import TopicNames
from proxy.core.observation_interest import ObservationInterest
from proxy.core.schema import private_versions, response_prefix

__all__ = ["Dispatcher", "ObserverError", "ObserverStats"]

MAX_BATCH_EXCHANGES = 500
"""Exchanges in one batch. A thread frees a batch at once, and the event loop waits for the GIL meanwhile: 50 µs."""

MAX_BATCH_BYTES = 4_194_304
"""Bytes of kept bodies in one batch. A larger exchange is a batch by itself."""

THREAD_SWITCH_INTERVAL = 0.0005
"""Seconds after which a busy observer's thread gives the GIL to the event loop. With Python's default of 0.005, an
observer that always uses the CPU raises the p99 latency of small requests from 4 ms to 22 ms."""


class ConfiguredObserver(NamedTuple):
    """An observer that is configured, and what it wants."""

    loaded: LoadedObserver
    subscription: Subscription


class Dispatcher:
    """Owns the observers of one sidecar. Its methods may only be called on the event loop's thread."""

    record_exchange: Callable[[ObservedExchange], None]
    """Record one finished exchange. This is a bound ``list.append`` that stays valid as long as the dispatcher."""
    record_change: Callable[[ConnectionChange], None]
    """Record one change of a connection. This, too, is a bound ``list.append``."""
    interest: ObservationInterest
    """What observers want of each api key and version. Set by ``start``."""
    observed: memoryview
    """A counter of 64 bits. The caller increments it for each call of ``record_exchange`` and ``record_change``;
    ``record_throttles`` counts its reports itself. Set by ``start``."""

    def __init__(
        self,
        names: Sequence[str],
        configs: Mapping[str, Any],
        *,
        settings: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
        clock: Callable[[], float] = time.monotonic,
        thread: Callable[..., ObserverThread] = ObserverThread,
        fetch_names: Callable[[], Mapping[bytes, str]] | None = None,
    ) -> None:
        """Construct the observers ``names`` (``package.module:Class``). ``settings``: those of each, by name. ``clock``
        paces the circuit breakers. ``thread`` calls them. ``fetch_names`` returns the names of all topics; without
        it the cluster is asked.

        Raises ObserverError for a class that is missing, cannot be constructed, does not fit the observer interface or
        is named twice.
        """
        self._loaded = load_observers(names)
        self.observers: Mapping[str, Observer | ExchangeObserver] = MappingProxyType(
            {one.name: one.observer for one in self._loaded}
        )
        self._names = TopicNames(fetch_names or _topic_name_fetcher(configs))
        self._topic_id_learner = TopicIdLearner(self._names)
        self._observed = ObservedCounter(configs.get("boot.id", ""))
        self._configs = MappingProxyType({**configs, "topic.names": self._names, "observed": self._observed})
        self._private = {key: name for key, name in configs.get("api.names", {}).items() if private_versions(name)}
        self._settings = settings
        self._clock = clock
        self._make_thread = thread
        self._configured: dict[str, ConfiguredObserver] = {}
        self._threads: dict[str, ObserverThread] = {}
        self._lock = threading.Lock()  # guards the threads and what ended: any thread may ask for ``stats``
        self._replaced: list[ObserverThread] = []  # that have not ended, as far as is known
        self._ended: dict[str, ObserverStats] = {}  # of replaced observers
        self._pending: list[ObservedExchange] = []
        self._changes: list[ConnectionChange] = []
        self._levels: Mapping[str, int] = {}
        self._flushed = 0
        self._running = False
        self.record_exchange = self._pending.append
        self.record_change = self._changes.append

    def start(self) -> None:
        """Configure the observers in order, read their subscriptions, then start their threads.

        Raises ObserverError for an observer that refuses its configuration, and closes those configured before it.
        """
        configured = self._configure_observers({})
        self.observed = self._observed.memory
        self._threads = {one.loaded.name: self._start_thread(one) for one in configured}
        self._set_configured({one.loaded.name: one for one in configured})
        sys.setswitchinterval(THREAD_SWITCH_INTERVAL)
        self._running = True

    def configure_beside(
        self, settings: Mapping[str, Mapping[str, Any]], more: Mapping[str, Any] = MappingProxyType({})
    ) -> list[ConfiguredObserver]:
        """Construct and configure those observers anew that have other ``settings`` now, for ``replace``.

        Not for the event loop's thread: observers may wait. Running ones continue. ``more``: changed configs. Raises
        ObserverError as ``start`` does, or if an observer cannot run twice in a process.
        """
        changed = [name for name in self.observers if settings.get(name, {}) != self._settings.get(name, {})]
        for name in changed:
            if hasattr(self.observers[name], "observed"):
                raise ObserverError(f"observer {name!r} numbers what it gets: other settings need a restart")
        return self._configure(load_observers(changed), settings, more)

    def replace(
        self, configured: Sequence[ConfiguredObserver], settings: Mapping[str, Mapping[str, Any]], timeout: float
    ) -> None:
        """Let each of ``configured`` get what is recorded from now on, in place of the observer of the same name.

        That one gets what was recorded before, and is closed on its own thread within ``timeout`` seconds.
        """
        self.flush()
        deadline = time.monotonic() + timeout
        for one in configured:
            name = one.loaded.name
            new = self._start_thread(one)
            with self._lock:
                old, self._threads[name] = self._threads[name], new
                self._replaced.append(old)
            old.request_close(deadline)
            threading.Thread(target=old.join, args=[deadline], name=f"close {name}", daemon=True).start()
        self._settings = settings
        self._set_configured({**self._configured, **{one.loaded.name: one for one in configured}})

    @staticmethod
    def discard(configured: Sequence[ConfiguredObserver]) -> None:
        """Close observers of ``configure_beside`` that are not wanted any more. They may wait."""
        _close_observers([one.loaded for one in configured])

    def check(self) -> None:
        """Configure the observers with ``dry.run``: they start nothing. Then close them. Raises as ``start``."""
        self.discard(self._configure_observers({"dry.run": True}))

    def _configure_observers(self, more: Mapping[str, Any]) -> list[ConfiguredObserver]:
        return self._configure(self._loaded, self._settings, more)

    def _configure(
        self, loaded: Sequence[LoadedObserver], settings: Mapping[str, Mapping[str, Any]], more: Mapping[str, Any]
    ) -> list[ConfiguredObserver]:
        """Configure observers in order, ``more`` included, and read their subscriptions. Raises ObserverError."""
        configured: list[ConfiguredObserver] = []
        for one in loaded:
            doing = "refused its configuration"
            own = MappingProxyType(dict(settings.get(one.name, {})))
            try:
                with BackgroundThreads():
                    one.observer.configure(MappingProxyType({**self._configs, **more, "settings": own}))
                doing = "failed to answer wants or keeps"
                configured.append(ConfiguredObserver(one, Subscription(one.observer, self._private)))
            except (Exception, SystemExit) as error:
                self.discard(configured)
                raise ObserverError(f"observer {one.name!r} {doing}: {describe_error(error)}") from error
        return configured

    def _set_configured(self, configured: dict[str, ConfiguredObserver]) -> None:
        """Read what these observers want. They are all that run."""
        self._configured = configured
        self.observers = MappingProxyType({name: one.loaded.observer for name, one in configured.items()})
        self.interest = combine_interests([one.subscription.interest for one in configured.values()], response_prefix)

    def _start_thread(self, one: ConfiguredObserver) -> ObserverThread:
        thread = self._make_thread(
            one.loaded,
            one.subscription,
            clock=self._clock,
            name_of=self._names.name_of,
            broker_id=self._configs.get("broker.id", -1),
            private=self._private,
        )
        if self._levels:
            thread.set_finalized_levels(self._levels)
        with BackgroundThreads():
            thread.start()
        return thread

    def flush(self) -> None:
        """Enqueue what was recorded since the last flush for every observer."""
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

    def record_throttles(self, reports: Sequence[ThrottleReport]) -> None:
        """Enqueue throttle reports for the observers that have ``record_throttles``. Never waits."""
        if reports:
            self.flush()
            self.observed[0] += len(reports)
            self._enqueue(ObserverBatch(len(reports), reports=tuple(reports)))

    def set_finalized_levels(self, levels: Mapping[str, int]) -> None:
        """Let the observers that have ``finalized_levels`` know the levels in use, by feature. Never waits."""
        if levels != self._levels:
            self._levels = MappingProxyType(dict(levels))
            for thread in self._threads.values():
                thread.set_finalized_levels(self._levels)

    def close(self, timeout: float) -> None:
        """Flush, deliver what is queued and close all observers concurrently, within ``timeout`` seconds.

        An observer that is not closed by then is abandoned on its daemon thread. Call this once traffic has ended.
        """
        if not self._running:
            return
        self.flush()
        self._running = False
        deadline = time.monotonic() + timeout
        for thread in self._threads.values():
            thread.request_close(deadline)
        for thread in [*self._threads.values(), *self._replaced]:
            thread.join(deadline)

    def stats(self) -> list[ObserverStats]:
        """Counts of every observer, those of replaced ones included, in the order of ``observer.class.names``."""
        with self._lock:
            for thread in [thread for thread in self._replaced if thread.has_ended]:
                self._replaced.remove(thread)
                self._ended[thread.name] = self._add_ended(thread.stats())
            found = {name: self._add_ended(thread.stats()) for name, thread in self._threads.items()}
            for thread in self._replaced:
                found[thread.name] = add_stats(thread.stats(), found[thread.name])
            return list(found.values())

    def _add_ended(self, stats: ObserverStats) -> ObserverStats:
        """Return ``stats`` with those of the observers of the same name whose threads have ended."""
        ended = self._ended.get(stats.name)
        return stats if ended is None else add_stats(ended, stats)

    def _split(self, some: tuple[ObservedExchange, ...]) -> Iterator[tuple[tuple[ObservedExchange, ...], int, int]]:
        """Halve ``some`` until each part fits a batch or is one exchange, so that a large exchange displaces no other.

        Yields each part with its weight and the bytes of its kept bodies.
        """
        weight, kept = queue_weight(some)
        if len(some) > 1 and (weight > MAX_LIGHT_WEIGHT or kept > MAX_BATCH_BYTES):
            half = len(some) // 2
            yield from self._split(some[:half])
            yield from self._split(some[half:])
        else:
            yield some, weight, kept

    def _enqueue(self, batch: ObserverBatch) -> None:
        threads = self._threads.values()
        counts = [thread.count_wanted(batch) for thread in threads]  # before any observer can change the batch
        for thread, count in zip(threads, counts, strict=True):
            thread.enqueue(batch, count)


def _topic_name_fetcher(configs: Mapping[str, Any]) -> Callable[[], Mapping[bytes, str]]:
    """Return a function that fetches the names of all topics. It creates its admin client with the first call."""
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
