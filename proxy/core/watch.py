"""What a session needs of those who observe it: where finished exchanges go, and which bodies anybody wants."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from proxy.compiled.exchange import Exchange
from proxy.core.exchange import ConnectionChange

TOLD = 1
"""Somebody wants to be told of exchanges of this api and version."""

WALKED = 2
"""Somebody wants the facts of their bodies."""

KEEP_REQUEST = 4
"""Somebody wants the body of the request itself."""

KEEP_RESPONSE = 8
"""Somebody wants the body of the response itself."""

THROTTLE_FIRST = 16
"""The response's body begins with ``throttle_time_ms`` (int32)."""

ERROR_FIRST = 32
"""The response's body begins with ``error_code`` (int16)."""

ERROR_AFTER_THROTTLE = 64
"""``error_code`` stands right after ``throttle_time_ms``."""

KEYS, VERSIONS = 128, 32
"""Bounds of the table below: Kafka has 95 api keys and up to 19 versions of one."""


class Interest(Struct, frozen=True, gc=False):
    """What is wanted of each api key and version: a sum of the flags above.

    ``table``: one byte each, at ``key * VERSIONS + version``. ``others``: of those outside of the table.
    """

    table: bytes
    others: int

    def of(self, key: int, version: int) -> int:
        """The flags of this api key and version."""
        if 0 <= key < KEYS and 0 <= version < VERSIONS:
            return self.table[key * VERSIONS + version]
        return self.others


class Watch(Struct, frozen=True, gc=False):
    """Those who observe the sessions of a process, as the sessions see them. Nothing here waits or raises."""

    record: Callable[[Exchange], None]
    """Take one finished exchange."""
    note: Callable[[ConnectionChange], None]
    """Take one change of a connection."""
    interest: Interest
    observed: memoryview
    """One number of 64 bits, counted up for every call of ``record`` and ``note``; others may read it at any time."""
    max_body: int
    """Bytes of the longest body that is kept."""


def _nobody(_: object) -> None:
    pass


NOBODY = Watch(_nobody, _nobody, Interest(bytes(KEYS * VERSIONS), 0), memoryview(bytearray(8)).cast("q"), 0)
"""In place of those who observe, where a session has to know who its client is and nobody is to be told of it."""
