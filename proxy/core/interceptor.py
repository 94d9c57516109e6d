"""The contract of interceptors: they answer requests in the broker's place, or rewrite its responses.

An interceptor names the api keys and versions that it wants, and how. All other bytes are forwarded unread, and without
interceptors a session reads headers only. Responses reach the client in the order of their requests, whoever made them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol

from proxy.core.exchange import Connection
from proxy.core.last_rewritten import LastRewritten
from proxy.core.observation_interest import KEYS, VERSIONS
from proxy.core.protected_topics import Partitions, ProtectedTopics

ON_HEADER = 1
"""The header of the request alone decides (``Interceptor.on_header``). If the verdict is not to forward it, its body is
dropped as it comes."""

ON_BODY = 2
"""The request is held until it is complete. Then its body decides (``Interceptor.on_body``)."""

REWRITE = 4
"""The response is held until it is complete. Then its body is replaced (``Interceptor.rewrite``)."""

REWRITE_STREAM = 8
"""The body of the response passes through a ``Stream`` piece by piece: for bodies that are too large to be held."""

ON_TOPICS = 16
"""For Produce: the topics in the request are compared with ``Interceptor.topics`` while it is read. Only the bytes
before its first topic are held. From a protected topic on nothing is forwarded."""

UNKNOWN_VERSION = 32
"""Together with ON_HEADER: a version that Kafka does not have yet. It must not pass as a raw SASL token either."""

REWRITE_PREFIX = 64
"""The beginning of the response's body is held until the part that is replaced has come
(``Interceptor.rewrite_prefix``). The rest is forwarded as it comes."""

MAX_HELD_REQUEST = 65_536
"""Bytes of the longest request that is held, also before a login, unless its interceptor sets another bound:
BrokerMetadata for 16,000 brokers. A longer one closes the connection, as a broker does above its own bound."""


class Disposition(Enum):
    """What happens to a request that the sidecar does not answer."""

    FORWARD = "forward"
    CLOSE = "close"
    """The connection is closed once all responses before it are sent, as a broker does."""


class Denied(NamedTuple):
    """The request would change a protected topic: its exchange has Kafka's error code 29."""

    body: bytes | None
    """As ``bytes`` in a verdict; None: the connection is closed, as by ``Disposition.CLOSE``."""


BrokerCall = Callable[[int, int, bytes], Awaitable[bytes]]
"""Sends a request (api key, version, body) to the broker on the client's own connection. Returns the body of the
response: the bytes after its header."""


class GivenUp(NamedTuple):
    """The connection is given up: both of its sockets leave the data path as they are, with what the client has sent
    behind the request, which gets no response here. Possible where neither side has TLS.

    ``registration``: for whoever serves the connection from then on.
    """

    registration: Any


Served = bytes | GivenUp | None
"""What comes of a deferred request. ``bytes``: as in a verdict; None: the connection is closed, as by
``Disposition.CLOSE``."""


class Deferred(NamedTuple):
    """The request waits, and with it all that the client sends after it, until ``serve`` has returned.

    ``serve`` starts when all responses before it are sent (see ``proxy.net.deferred_requests``).
    """

    serve: Callable[[BrokerCall], Awaitable[Served]]


Verdict = Disposition | bytes | Denied | Deferred
"""``bytes``: what follows the correlation id in the response: the tagged fields of its header, if it has any, and its
body. ``Deferred`` only from ``on_body``."""


class Request(NamedTuple):
    """The fields of a request's header that can decide."""

    connection: Connection
    """As known now: ``principal_source`` is "unauthenticated" on a listener with SASL until the client logs in."""
    api_key: int
    api_version: int
    client_id: str | None
    acks: int
    """Of a Produce; 1 for all other requests. 0: the client expects no response."""
    consecutive: int
    """How many requests in a row of this connection, up to this one, were ON_HEADER; 0 if this one is not."""


class Stream(Protocol):
    """The body of one response on its way to the client. It keeps the length of the body."""

    def feed(self, piece: bytes) -> bytes:
        """Take the next piece of the body and return what can be sent now. The last piece returns all that is left."""


class Interceptor:
    """Intercepts some requests or responses of one listener in one process. The event loop's thread calls it.

    For each flag that ``flags`` returns, the method that belongs to it is overridden.
    """

    max_held_request: int = MAX_HELD_REQUEST
    """Bytes of the longest request that is held for it; a longer one closes the connection."""
    on_error: Disposition = Disposition.FORWARD
    """What happens to a request if ``on_body`` raises."""
    topics: ProtectedTopics | None = None
    """For ON_TOPICS."""
    rewrites_alike = False
    """Whether ``rewrite`` makes the same of the same body until ``InterceptorChain.forget_rewritten`` is called, or
    ``update``. Then it is not called for each response that equals the last one."""

    def flags(self, api_key: int, api_version: int) -> int:
        """Return the flags above for this api key and version; 0: not intercepted. Called for every pair of the table
        when the chain is made, and for pairs outside of it with each request."""
        raise NotImplementedError

    def on_header(self, request: Request) -> Verdict:
        """Return the verdict for ON_HEADER."""
        raise NotImplementedError

    def on_body(self, request: Request, body: bytes) -> Verdict:
        """Return the verdict for ON_BODY. ``body``: the bytes after the header. Raises PeerError if it is malformed.

        A ``Deferred`` of a request without a response (``acks`` 0) closes the connection.
        """
        raise NotImplementedError

    def on_protected_topic(self, request: Request, partitions: Partitions | None) -> Verdict:
        """Return the verdict for ON_TOPICS about a Produce with a protected topic. ``partitions``: all that it names;
        None if they are not to be answered."""
        raise NotImplementedError

    def rewrite(self, api_key: int, api_version: int, body: bytes) -> bytes:
        """Return the body for REWRITE. ``body``: the bytes after the response's header. If it raises, the error is
        counted and the body stays as it is."""
        raise NotImplementedError

    def rewrite_prefix(self, api_key: int, api_version: int, body: bytes, whole: bool) -> tuple[bytes, int] | None:
        """Return, for REWRITE_PREFIX, the new beginning and how many bytes it replaces; None if more bytes are needed.

        ``body``: the bytes that have come; ``whole``: there are no more. If it raises, the error is counted and the
        body stays as it is.
        """
        raise NotImplementedError

    def stream(self, api_key: int, api_version: int, length: int) -> Stream:
        """Return the stream for REWRITE_STREAM. ``length``: bytes of the body. Together with REWRITE it is used for
        responses of more than ``interception.STREAM_THRESHOLD`` bytes. If it raises, the error is counted and the body
        stays as it is."""
        raise NotImplementedError


class InterceptorChain:
    """The interceptors of one listener, in their order.

    For ON_HEADER the first that does not forward decides. For REWRITE each rewrites what the one before it returned.
    For every other flag the first that has it is called.

    ``topics``: the protected topics for ON_TOPICS. ``table``: one byte of flags at ``api_key * VERSIONS +
    api_version``; ``update`` changes it in place, so that all sessions see it at once.
    """

    def __init__(self, interceptors: Sequence[Interceptor]) -> None:
        self._interceptors = interceptors
        self.topics = next((each.topics for each in interceptors if each.topics is not None), None)
        self.table = bytearray(KEYS * VERSIONS)
        self._rewriting: dict[tuple[int, int], list[Interceptor]] = {}  # by key and version, as far as they came
        self.last_rewritten: dict[int, LastRewritten] = {}
        """Of interceptors that rewrite alike, by place in ``table``."""
        self.update()

    def update(self) -> None:
        """Compute the table again, after an interceptor wants others."""
        self._rewriting.clear()
        self.forget_rewritten()
        for key in range(KEYS):
            for version in range(VERSIONS):
                self.table[key * VERSIONS + version] = self._compute_flags(key, version)

    def forget_rewritten(self) -> None:
        """Rewrite the next response of each kind, even if it equals the last one."""
        self.last_rewritten.clear()

    def flags(self, api_key: int, api_version: int) -> int:
        """Return the flags of this api key and version."""
        if 0 <= api_key < KEYS and 0 <= api_version < VERSIONS:
            return self.table[api_key * VERSIONS + api_version]
        return self._compute_flags(api_key, api_version)

    def on_header(self, request: Request) -> Verdict:
        """Return the verdict about a request by its header."""
        for interceptor in self._interceptors:
            if interceptor.flags(request.api_key, request.api_version) & ON_HEADER:
                verdict = interceptor.on_header(request)
                if verdict is not Disposition.FORWARD:
                    return verdict
        return Disposition.FORWARD

    def max_held_request(self, api_key: int, api_version: int) -> int:
        """Return the bytes of the longest such request that is held."""
        return self._first(api_key, api_version, ON_BODY).max_held_request

    def on_error(self, request: Request) -> Disposition:
        """Return what happens to a request after ``on_body`` has raised."""
        return self._first(request.api_key, request.api_version, ON_BODY).on_error

    def on_body(self, request: Request, body: bytes) -> Verdict:
        """Return the verdict about a complete request. It is forwarded if it was held for an interceptor that does not
        want it any more, as after a reload."""
        if not self.flags(request.api_key, request.api_version) & ON_BODY:
            return Disposition.FORWARD
        return self._first(request.api_key, request.api_version, ON_BODY).on_body(request, body)

    def on_protected_topic(self, request: Request, partitions: Partitions | None) -> Verdict:
        """Return the verdict about a Produce with a protected topic."""
        return self._first(request.api_key, request.api_version, ON_TOPICS).on_protected_topic(request, partitions)

    def rewrite(self, api_key: int, api_version: int, body: bytes) -> bytes:
        """Return the body that the client gets."""
        rewriting = self._rewriting.get((api_key, api_version))
        if rewriting is None:
            rewriting = [each for each in self._interceptors if each.flags(api_key, api_version) & REWRITE]
            self._rewriting[api_key, api_version] = rewriting
        rewritten = body
        for interceptor in rewriting:
            rewritten = interceptor.rewrite(api_key, api_version, rewritten)
        if all(each.rewrites_alike for each in rewriting) and 0 <= api_key < KEYS and 0 <= api_version < VERSIONS:
            self.last_rewritten[api_key * VERSIONS + api_version] = LastRewritten(body, rewritten)
        return rewritten

    def rewrite_prefix(self, api_key: int, api_version: int, body: bytes, whole: bool) -> tuple[bytes, int] | None:
        """Return the new beginning of the body, as ``Interceptor.rewrite_prefix`` does."""
        return self._first(api_key, api_version, REWRITE_PREFIX).rewrite_prefix(api_key, api_version, body, whole)

    def stream(self, api_key: int, api_version: int, length: int) -> Stream:
        """Return the stream for a response's body."""
        return self._first(api_key, api_version, REWRITE_STREAM).stream(api_key, api_version, length)

    def _compute_flags(self, api_key: int, api_version: int) -> int:
        flags = 0
        for interceptor in self._interceptors:
            flags |= interceptor.flags(api_key, api_version)
        return flags

    def _first(self, api_key: int, api_version: int, flag: int) -> Interceptor:
        return next(each for each in self._interceptors if each.flags(api_key, api_version) & flag)
