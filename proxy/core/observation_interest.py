"""What observers want of sessions: which exchanges, which facts and bodies; and where a session hands them over."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from proxy.compiled.exchange import Exchange
from proxy.core.exchange import ConnectionTransition

WANT_EXCHANGE = 1
"""An observer wants the exchanges of this api and version."""

WANT_FACTS = 2
"""An observer wants the facts in their bodies."""

WANT_REQUEST_BODY = 4
"""An observer wants the bytes of the request's body."""

WANT_RESPONSE_BODY = 8
"""An observer wants the bytes of the response's body."""

THROTTLE_FIRST = 16
"""The response's body begins with ``throttle_time_ms`` (int32)."""

ERROR_FIRST = 32
"""The response's body begins with ``error_code`` (int16)."""

ERROR_AFTER_THROTTLE = 64
"""``error_code`` stands right after ``throttle_time_ms``."""

KEYS, VERSIONS = 128, 32
"""Bounds of the table: Kafka has 95 api keys and up to 19 versions of one."""


class ObservationInterest(Struct, frozen=True, gc=False):
    """The flags of each api key and version: a sum of those above.

    ``table``: one byte each, at ``key * VERSIONS + version``. ``private``: the same of the sidecar's own apis, whose
    keys begin at ``private_base``. ``others``: the flags of pairs outside of both.
    """

    table: bytes
    others: int
    private: bytes = b""
    private_base: int = 0

    def flags(self, key: int, version: int) -> int:
        """Return the flags of this api key and version."""
        if 0 <= key < KEYS and 0 <= version < VERSIONS:
            return self.table[key * VERSIONS + version]
        if 0 <= key - self.private_base < len(self.private) // VERSIONS and 0 <= version < VERSIONS:
            return self.private[(key - self.private_base) * VERSIONS + version]
        return self.others


class ObservationSink(Struct, frozen=True, gc=False):
    """Where the sessions of a process hand over what they observed. Neither callback blocks or raises."""

    record: Callable[[Exchange], None]
    """Takes one finished exchange."""
    record_change: Callable[[ConnectionTransition], None]
    """Takes one change of a connection: a login, its failure, the client's software."""
    interest: ObservationInterest
    observed: memoryview
    """One number of 64 bits, incremented by each call of ``record`` and ``record_change``; any thread may read it."""
    max_body: int
    """Bytes of the longest body whose bytes are kept."""


def _discard(_: object) -> None:
    pass


NO_SINK = ObservationSink(
    _discard, _discard, ObservationInterest(bytes(KEYS * VERSIONS), 0), memoryview(bytearray(8)).cast("q"), 0
)
"""For a session that has to know its client's principal while there is no observer."""
