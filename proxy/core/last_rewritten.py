# cython: language_level=3, annotation_typing=False
"""The last rewritten body of one kind of response. Clients that connect all get the same ApiVersions response."""

from __future__ import annotations

import cython

from proxy.core.wire import Buffer

if not cython.compiled:
    from proxy.core.memory import equals

MAX_REUSE = 1.0
"""Seconds for which a rewritten body is used for other responses with the same body. Then their interceptor is called
again: it knows by that when the broker has answered."""

max_reuse = MAX_REUSE


@cython.cclass
class LastRewritten:
    """``rewritten``: what became of ``body``."""

    def __init__(self, body: bytes, rewritten: bytes) -> None:
        self.body = body
        self.rewritten = rewritten
        self.used_since = -1.0

    def replacement_of(self, data: Buffer, at: int, stop: int, now: float) -> bytes | None:
        """Return the replacement of ``data[at:stop]``; None if it is another body, or was used for too long."""
        if not equals(self.body, data, at, stop - at):
            return None
        if self.used_since < 0:
            self.used_since = now
        return None if now - self.used_since > max_reuse else self.rewritten
