"""What observers want of each kind of request, asked once at the start. For nobody nothing is decoded, kept or told."""

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
"""Api keys and versions outside of the table (Kafka has none) of which an observer's answer is remembered."""

APIS_WITH_TOPICS = (0, 1, 78)
"""Produce, Fetch, ShareFetch: who is told of one of these needs the names of topics."""

_API_VERSIONS = [(key, version) for key in range(KEYS) for version in range(VERSIONS)]


class Subscription:
    """What one observer wants. Asks it where it is constructed; whatever that raises is the observer's."""

    def __init__(self, observer: Any) -> None:
        self._wants: Callable[[int, int], bool] | None = getattr(observer, "wants", None)
        self._remembered_answers: dict[tuple[int, int], bool] = {}
        self.interest = ObservationInterest(bytes(_interest_flags(observer)), WANT_EXCHANGE)

    @property
    def includes_all(self) -> bool:
        """Whether it chooses nothing."""
        return self._wants is None

    def may_want(self, api_key: int, api_version: int) -> bool:
        """Whether it wants these, or has not been asked yet. Calls nothing of the observer."""
        if self._is_in_table(api_key, api_version):
            return bool(self.interest.of(api_key, api_version))
        return self._remembered_answers.get((api_key, api_version), True)

    def wants(self, api_key: int, api_version: int) -> bool:
        """Whether it wants these. Asks for those outside of the table, once; may raise what the observer raises."""
        if self._wants is None or self._is_in_table(api_key, api_version):
            return bool(self.interest.of(api_key, api_version))
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
    """What at least one of them wants, and what is needed besides: names of topics, errors, throttles.

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
    """Flags of every pair of the table."""
    wants = getattr(observer, "wants", None)
    keeps = getattr(observer, "keeps", None)
    kept_by_default = not isinstance(observer, ExchangeObserver)
    flags = []
    for pair in _API_VERSIONS:
        told = wants is None or bool(wants(*pair))
        kept = told and (kept_by_default if keeps is None else bool(keeps(*pair)))
        flags.append(
            (WANT_EXCHANGE | WANT_FACTS if told else 0) | (WANT_REQUEST_BODY | WANT_RESPONSE_BODY if kept else 0)
        )
    return flags
