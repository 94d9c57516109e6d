"""The only door from the data path to observers: cheap on the event loop, everything else on other threads.

On the loop an exchange costs one list append. A timer of the data path calls ``flush`` about every 50 ms, which hands
the list to each observer's lane; throttle reports go there at once, behind what was recorded before them. There is no
asyncio here, and nothing here ever waits except ``close``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any

from observers.api import ExchangeObserver, ObservedExchange, Observer, ThrottleReport
from observers.errors import ObserverError
from observers.lane import Batch, Lane, ObserverStats
from observers.topics import TopicNames
from observers.views import NameOf

try:  # asked for its facts here on the loop, a compiled exchange would build all of them
    from observers.compiled import weight_of
except ImportError:  # installed without a compiler
    from observers.lane import weight_of

__all__ = ["Dispatcher", "ObserverError", "ObserverStats"]

MAX_BATCH = 500
"""Exchanges in one batch: a lane lets go of a whole batch at once, for which the loop waits, 50 µs for these."""


class Dispatcher:
    """Owns the observers of one sidecar. Its methods belong to one thread (the loop's)."""

    record: Callable[[ObservedExchange], None]
    """Take one finished exchange. A bound ``list.append`` that stays valid for the dispatcher's life."""

    def __init__(
        self,
        names: Sequence[str],
        configs: Mapping[str, Any],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Construct the observers ``names`` (``package.module:Class``); ``clock`` paces the circuit breakers.

        Raises ObserverError for a class that is missing, does not construct, has the wrong shape or is named twice.
        """
        self.observers: Mapping[str, Observer | ExchangeObserver] = MappingProxyType(_construct(names))
        self._configs = MappingProxyType(dict(configs))
        self._lanes = [
            Lane(name, observer, clock=clock, name_of=_name_of(self._configs))
            for name, observer in self.observers.items()
        ]
        self._pending: list[ObservedExchange] = []
        self._flushed = 0
        self._running = False
        self.record = self._pending.append

    def start(self) -> None:
        """Configure the observers in order, then start their threads.

        Raises ObserverError for an observer that refuses; those configured before it are closed again.
        """
        configured: list[Observer | ExchangeObserver] = []
        for name, observer in self.observers.items():
            try:
                observer.configure(self._configs)
            except (Exception, SystemExit) as error:
                _close_all(configured)
                raise ObserverError(f"observer {name!r} refused its configuration: {_text(error)}") from error
            configured.append(observer)
        for lane in self._lanes:
            lane.start()
        self._running = True

    def flush(self) -> None:
        """Hand what was recorded since the last flush to every lane."""
        if not self._pending:
            return
        recorded = tuple(self._pending)
        self._pending.clear()
        for at in range(0, len(recorded), MAX_BATCH):
            exchanges = recorded[at : at + MAX_BATCH]
            self._offer(Batch(weight_of(exchanges), exchanges, self._flushed))
            self._flushed += len(exchanges)

    def report(self, reports: Sequence[ThrottleReport]) -> None:
        """Tell those observers of throttled connections that have ``record_throttles``. Never waits."""
        if reports:
            self.flush()
            self._offer(Batch(len(reports), reports=tuple(reports)))

    def close(self, timeout: float) -> None:
        """Flush, feed what is queued, close the observers: all within ``timeout`` seconds, all at the same time.

        An observer that is not done by then is abandoned on its daemon thread. Call it once traffic has ended.
        """
        self.flush()
        if not self._running:
            return
        self._running = False
        deadline = time.monotonic() + timeout
        for lane in self._lanes:
            lane.stop(deadline)
        for lane in self._lanes:
            lane.join(deadline)

    def stats(self) -> list[ObserverStats]:
        """Counts of every observer, in the order of ``observer.class.names``."""
        return [lane.stats() for lane in self._lanes]

    def _offer(self, batch: Batch) -> None:
        for lane in self._lanes:
            lane.offer(batch)


def _construct(names: Sequence[str]) -> dict[str, Observer | ExchangeObserver]:
    observers: dict[str, Observer | ExchangeObserver] = {}
    for name in names:
        if name in observers:
            raise ObserverError(f"observer {name!r} is named twice in observer.class.names")
        observers[name] = _construct_one(name)
    return observers


def _construct_one(name: str) -> Observer | ExchangeObserver:
    module_name, colon, class_name = name.partition(":")
    if not (module_name and colon and class_name):
        raise ObserverError(f"observer {name!r} is not of the form package.module:Class")
    try:
        module = import_module(module_name)
    except (Exception, SystemExit) as error:
        raise ObserverError(f"observer {name!r}: module {module_name!r} cannot be imported: {_text(error)}") from error
    factory = getattr(module, class_name, None)
    if not isinstance(factory, type):
        raise ObserverError(f"observer {name!r}: module {module_name!r} has no class {class_name!r}")
    try:
        observer = factory()
    except (Exception, SystemExit) as error:
        raise ObserverError(f"observer {name!r} cannot be constructed without arguments: {_text(error)}") from error
    if isinstance(observer, Observer | ExchangeObserver):
        return observer
    raise ObserverError(
        f"observer {name!r} has the wrong shape: it needs configure, close and either "
        "record_request and record_response (KIP-388), or record_exchanges; see observers/api.py"
    )


def _name_of(configs: Mapping[str, Any]) -> NameOf:
    """Names for KIP-388 views; what it takes to look them up is made for the first topic id that needs one."""

    @cache
    def names() -> TopicNames:
        from observers.cluster import Cluster, client_id_of  # with librdkafka, which few observers need

        return TopicNames(Cluster(configs.get("internal", {}), client_id_of(configs.get("broker.id", -1))).topic_names)

    return lambda topic_id: names().name_of(topic_id)


def _close_all(observers: Sequence[Observer | ExchangeObserver]) -> None:
    for observer in observers:
        try:
            observer.close(0.0)
        except (Exception, SystemExit):  # noqa: S112 - the start has failed already, with a better reason
            continue


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
