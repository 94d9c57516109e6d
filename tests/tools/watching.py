"""A watch for tests that observe sessions without a dispatcher."""

from __future__ import annotations

from collections.abc import Callable

from proxy.compiled.exchange import Exchange
from proxy.core.exchange import ConnectionChange
from proxy.core.watch import KEYS, TOLD, VERSIONS, WALKED, Interest, Watch

MAX_BODY = 1 << 20
"""Bytes of the longest body that is kept, unless a test says otherwise."""


def watching(
    record: Callable[[Exchange], None],
    note: Callable[[ConnectionChange], None] = lambda change: None,
    *,
    wanted: int | bytes = TOLD | WALKED,
    max_body: int = MAX_BODY,
) -> Watch:
    """Watch every api and version for ``wanted``, a sum of the flags of ``proxy.core.watch``, or a whole table."""
    table = wanted if isinstance(wanted, bytes) else bytes([wanted]) * (KEYS * VERSIONS)
    others = TOLD if isinstance(wanted, bytes) else wanted
    observed = memoryview(bytearray(8)).cast("q")
    return Watch(record, note, Interest(table, others), observed, max_body)
