"""Answers requests that the upstream does not support with an empty response instead of a closed connection.

Kafka's brokers close the connection without a response to an unknown request (draft of KIP-35).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from proxy.core.interceptor import ON_HEADER, Disposition, Interceptor, Request, Verdict
from proxy.interceptors.supported_versions import SupportedVersions

UnsupportedPolicy = Literal["empty", "close", "forward"]
"""What happens to an unsupported request.

* ``empty``: a response with nothing but the correlation id.
* ``close``: the connection is closed, as the broker would do.
* ``forward``: the request is sent to the broker.
"""


class UnsupportedRequests(Interceptor):
    """Handles unsupported requests on one listener.

    ``limit``: consecutive requests of a connection that get a response; the next one closes it. ``on_refused`` is
    called for each request that is not forwarded. After ``policy`` or the supported versions have changed, the rules
    have to be updated.
    """

    def __init__(
        self, supported: SupportedVersions, policy: UnsupportedPolicy, limit: int, on_refused: Callable[[Request], None]
    ) -> None:
        self.policy = policy
        self.limit = limit
        self._supported = supported
        self._on_refused = on_refused

    def flags(self, api_key: int, api_version: int) -> int:
        """All requests that are not supported."""
        return 0 if self.policy == "forward" or self._supported.supports(api_key, api_version) else ON_HEADER

    def on_header(self, request: Request) -> Verdict:
        """Refuse the request. That of an unauthenticated client is forwarded, and the broker closes the connection."""
        if request.connection.principal_source == "unauthenticated":
            return Disposition.FORWARD
        self._on_refused(request)
        # A producer with acks=0 expects no response, and would take it for that of its next request.
        answered = self.policy == "empty" and request.acks and request.consecutive <= self.limit
        return b"" if answered else Disposition.CLOSE
