"""What each observer wants of each api key and version. Requests that no observer wants are not decoded or kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from types import MappingProxyType
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
from proxy.core.schema import private_versions

MAX_REMEMBERED_ANSWERS = 1_000
"""Answers that are remembered for api keys and versions outside of the table. Kafka defines none of them."""

APIS_WITH_TOPICS = (0, 1, 78)
"""Produce, Fetch, ShareFetch. An observer of one of these needs the names of topics."""

_API_VERSIONS = [(key, version) for key in range(KEYS) for version in range(VERSIONS)]


class Subscription:
    """What one observer wants. The constructor calls its ``wants`` and ``keeps`` and raises what they raise.

    ``private``: the names of the sidecar's own apis, by api key.
    """

    def __init__(self, observer: Any, private: Mapping[int, str] = MappingProxyType({})) -> None:
        self._wants: Callable[[int, int], bool] | None = getattr(observer, "wants", None)
        flags_of = _asking(observer)
        table = bytes([flags_of(*pair) for pair in _API_VERSIONS])
        own = [(key, version) for key, name in private.items() for version in private_versions(name)]
        asked = {pair: flags_of(*pair) for pair in own}
        self._remembered_answers = {pair: bool(flags) for pair, flags in asked.items()}
        base = min(private, default=0)
        rows = bytearray([WANT_EXCHANGE]) * (VERSIONS * (max(private, default=base - 1) + 1 - base))
        for (key, version), flags in asked.items():
            rows[(key - base) * VERSIONS + version] = flags
        self.interest = ObservationInterest(table, WANT_EXCHANGE, bytes(rows), base)

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
        """Whether the observer wants these. Calls it once for a pair that is new; raises what it raises."""
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
    interests: Sequence[ObservationInterest], prefix: Callable[[int, int], int]
) -> ObservationInterest:
    """Return what at least one interest wants, and what that needs: names of topics, errors, throttle times.

    ``interests``: at least one, all with the same private apis. ``prefix``: how the response of an api key and version
    begins, in flags of ``proxy.core.observation_interest``.
    """
    table = [reduce(or_, flags) for flags in zip(*(interest.table for interest in interests), strict=True)]
    private = [reduce(or_, flags) for flags in zip(*(interest.private for interest in interests), strict=True)]
    names = any(table[key * VERSIONS + version] for key in APIS_WITH_TOPICS for version in range(VERSIONS))
    for at, (key, version) in enumerate(_API_VERSIONS):
        if names and carries_topic_ids(key, version):
            table[at] |= WANT_EXCHANGE | WANT_RESPONSE_BODY
        if table[at]:
            table[at] |= prefix(key, version)
    return ObservationInterest(bytes(table), WANT_EXCHANGE, bytes(private), interests[0].private_base)


def _asking(observer: Any) -> Callable[[int, int], int]:
    """Return what asks the observer which flags an api key and version has."""
    wants = getattr(observer, "wants", None)
    keeps = getattr(observer, "keeps", None)
    kept_by_default = not isinstance(observer, ExchangeObserver)

    def flags_of(*pair: int) -> int:
        wanted = wants is None or bool(wants(*pair))
        kept = wanted and (kept_by_default if keeps is None else bool(keeps(*pair)))
        return (WANT_EXCHANGE | WANT_FACTS if wanted else 0) | (WANT_REQUEST_BODY | WANT_RESPONSE_BODY if kept else 0)

    return flags_of
