"""A watch for tests that observe sessions without a dispatcher."""

from __future__ import annotations

from collections.abc import Callable

from proxy.compiled.exchange import Exchange
from proxy.core.exchange import ConnectionTransition
from proxy.core.observation_interest import (
    KEYS,
    VERSIONS,
    WANT_EXCHANGE,
    WANT_FACTS,
    ObservationInterest,
    ObservationSink,
)

MAX_BODY = 1 << 20
"""Bytes of the longest body that is kept, unless a test says otherwise."""


def watching(
    record: Callable[[Exchange], None],
    record_change: Callable[[ConnectionTransition], None] = lambda change: None,
    *,
    wanted: int | bytes = WANT_EXCHANGE | WANT_FACTS,
    max_body: int = MAX_BODY,
) -> ObservationSink:
    """Observe every api and version for ``wanted``: a sum of flags of ``observation_interest``, or a table."""
    table = wanted if isinstance(wanted, bytes) else bytes([wanted]) * (KEYS * VERSIONS)
    others = WANT_EXCHANGE if isinstance(wanted, bytes) else wanted
    observed = memoryview(bytearray(8)).cast("q")
    return ObservationSink(record, record_change, ObservationInterest(table, others), observed, max_body)
