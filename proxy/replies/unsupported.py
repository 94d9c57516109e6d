"""The answer to a request that the upstream does not support: an empty one in place of a closed connection.

Kafka's brokers close a connection without a word when its client asks for what they do not know (KIP-35, its draft).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from proxy.core.intercept import DECIDED, Interceptor, Request, Verdict, Way
from proxy.replies.upstream import Supported

Policy = Literal["empty", "close", "forward"]
"""``empty``: a response of the correlation id alone. ``close``: what the broker would do, without asking it.
``forward``: the broker is asked."""


class Unsupported(Interceptor):
    """Of one listener. ``limit``: requests in a row that a connection may have answered; the next one ends it.
    ``refused`` is called for each request that is not forwarded.

    After a change of ``policy``, or of what is supported, the rules want to be updated.
    """

    def __init__(self, supported: Supported, policy: Policy, limit: int, refused: Callable[[Request], None]) -> None:
        self.policy = policy
        self.limit = limit
        self._supported = supported
        self._refused = refused

    def wants(self, api_key: int, api_version: int) -> int:
        """Whatever is not supported."""
        return 0 if self.policy == "forward" or self._supported.has(api_key, api_version) else DECIDED

    def decide(self, request: Request) -> Verdict:
        """Refuse it, unless the client is not logged in: the broker itself closes then, as it always did."""
        if request.connection.principal_source == "unauthenticated":
            return Way.FORWARD
        self._refused(request)
        # A producer that wants no acks reads no answer, and would take this one for that of its next request.
        answered = self.policy == "empty" and request.acks and request.consecutive <= self.limit
        return b"" if answered else Way.CLOSE
