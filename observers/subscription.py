"""What each observer wants of each api key and version. Requests that no observer wants are not decoded or kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from operator import or_
from typing import Any

from observers.api import ExchangeObserver
from observers.topic_id_learner import carries_topic_ids
from proxy.core.observation_interest import (
    KEYS,
    VERSIONS,
    WANT_EXCHANGE,
    WANT_FACTS,
    WANT_REQUEST_BODY,
    WANT_RESPONSE_BODY,
    ObservationInterest,
)

MAX_REMEMBERED_ANSWERS = 1_000
"""Answers that are remembered for api keys and versions outside of the table. Kafka defines none of them."""

APIS_WITH_TOPICS = (0, 1, 78)
"""Produce, Fetch, ShareFetch. An observer of one of these needs the names of topics."""

_API_VERSIONS = [(key, version) for key in range(KEYS) for version in range(VERSIONS)]


class Subscription:
    """What one observer wants. The constructor calls its ``wants`` and ``keeps`` and raises what they raise."""

    def __init__(self, observer: Any) -> None:
        self._wants: Callable[[int, int], bool] | None = getattr(observer, "wants", None)
        self._remembered_answers: dict[tuple[int, int], bool] = {}
        self.interest = ObservationInterest(bytes(_interest_flags(observer)), WANT_EXCHANGE)

    @property
    def includes_all(self) -> bool:
        """Whether the observer wants every exchange."""
        return self._wants is None

    def may_want(self, api_key: int, api_version: int) -> bool:
        """Whether the observer wants these, or was not asked yet. Does not call the observer."""
        if self._is_in_table(api_key, api_version):
            return bool(self.interest.flags(api_key, api_version))
        return self._remembered_answers.get((api_key, api_version), True)

    def wants(self, api_key: int, api_version: int) -> bool:
        """Whether the observer wants these. Calls it once for a pair outside of the table; raises what it raises."""
        if self._wants is None or self._is_in_table(api_key, api_version):
            return bool(self.interest.flags(api_key, api_version))
        known = self._remembered_answers.get((api_key, api_version))
        if known is None:
            known = bool(self._wants(api_key, api_version))
            if len(self._remembered_answers) < MAX_REMEMBERED_ANSWERS:
                self._remembered_answers[api_key, api_version] = known
        return known

    @staticmethod
    def _is_in_table(api_key: int, api_version: int) -> bool:
        return 0 <= api_key < KEYS and 0 <= api_version < VERSIONS


def combine_interests(
    interests: Iterable[ObservationInterest], prefix: Callable[[int, int], int]
) -> ObservationInterest:
    """Return what at least one interest wants, and what that needs: names of topics, errors, throttle times.

    ``prefix``: how the response of an api key and version begins, in flags of ``proxy.core.observation_interest``.
    """
    table = [reduce(or_, flags) for flags in zip(*(interest.table for interest in interests), strict=True)]
    names = any(table[key * VERSIONS + version] for key in APIS_WITH_TOPICS for version in range(VERSIONS))
    for at, (key, version) in enumerate(_API_VERSIONS):
        if names and carries_topic_ids(key, version):
            table[at] |= WANT_EXCHANGE | WANT_RESPONSE_BODY
        if table[at]:
            table[at] |= prefix(key, version)
    return ObservationInterest(bytes(table), WANT_EXCHANGE)


def _interest_flags(observer: Any) -> list[int]:
    """Return the flags of every api key and version of the table."""
    wants = getattr(observer, "wants", None)
    keeps = getattr(observer, "keeps", None)
    kept_by_default = not isinstance(observer, ExchangeObserver)
    flags = []
    for pair in _API_VERSIONS:
        wanted = wants is None or bool(wants(*pair))
        kept = wanted and (kept_by_default if keeps is None else bool(keeps(*pair)))
        flags.append(
            (WANT_EXCHANGE | WANT_FACTS if wanted else 0) | (WANT_REQUEST_BODY | WANT_RESPONSE_BODY if kept else 0)
        )
    return flags
