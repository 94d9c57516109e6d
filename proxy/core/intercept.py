"""Requests that the sidecar answers itself, and responses that it changes: who wants which, asked by the session.

An interceptor names the api keys and versions it wants. Nothing else is held back for it: all other bytes go on as they
came, and where there is no interceptor a session does not even look. What an interceptor says keeps its place: answers
reach the client in the order of their requests, whoever gave them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from proxy.core.exchange import Connection
from proxy.core.protected import Partitions, ProtectedTopics
from proxy.core.watch import KEYS, VERSIONS

DECIDED = 1
"""The request's header alone decides (``Interceptor.decide``). It is not forwarded unless the verdict says so; a body
that is not forwarded is dropped as it comes."""

ASKED = 2
"""The request is held back until it is whole, then its body decides (``Interceptor.ask``)."""

EDITED = 4
"""The response is held back until it is whole, then its body is replaced (``Interceptor.edit``)."""

STREAMED = 8
"""The response's body passes through a ``Stream``, piece by piece: for bodies that are too large to be held back."""

CHECKED = 16
"""Of Produce: the topics that it names are compared with ``Interceptor.topics`` as its bytes come. Nothing is held back
but the bytes before its first topic; from a protected one on nothing is forwarded."""

UNREAD = 32
"""Beside DECIDED: a version of the future, which must not pass as a raw SASL token either."""

LED = 64
"""The beginning of the response's body is held back until what is replaced in it is there (``Interceptor.lead``); all
that comes after it passes as it came."""

MAX_ASKED = 65_536
"""Bytes of the longest request that is held back, before a login too, where its interceptor says nothing else:
BrokerMetadata for 16,000 brokers. A longer one closes the connection, as what no broker would take."""


class Way(Enum):
    """What becomes of a request that the sidecar does not answer."""

    FORWARD = "forward"
    CLOSE = "close"
    """The connection ends once all answers before it have gone out, as at a broker."""


class Denied(NamedTuple):
    """The request would change a protected topic: its exchange has Kafka's error 29."""

    body: bytes | None
    """As ``bytes`` in a verdict; None: the connection ends, as with ``Way.CLOSE``."""


Verdict = Way | bytes | Denied
"""``bytes``: what follows the correlation id in the response: its header's tagged fields, where it has any, and its
body."""


class Request(NamedTuple):
    """The header of a request, as far as it decides anything."""

    connection: Connection
    """As it is known now: ``principal_source`` is "unauthenticated" on a listener with SASL until the client is in."""
    api_key: int
    api_version: int
    client_id: str | None
    acks: int
    """Of a Produce; 1 for everything else. 0: the client expects no response at all."""
    consecutive: int
    """Requests of this connection in a row, up to this one, that were for DECIDED; 0 where this one is not."""


class Stream(Protocol):
    """One response's body on its way to the client. What comes out has as many bytes in the end as what went in."""

    def feed(self, piece: bytes) -> bytes:
        """Take the next piece of the body; return what may go out now. Called until the body has ended: with its last
        piece everything comes out."""


class Interceptor:
    """One subject that is answered or changed here, on one listener of one process. Called by the loop's thread.

    Who asks for a flag overrides the method that belongs to it.
    """

    max_asked: int = MAX_ASKED
    """Bytes of the longest request that is held back for it; a longer one closes the connection."""
    on_error: Way = Way.FORWARD
    """What becomes of a request where ``ask`` raises by mistake."""
    topics: ProtectedTopics | None = None
    """Where it wants CHECKED."""

    def wants(self, api_key: int, api_version: int) -> int:
        """The flags above for this api key and version; 0: it stays opaque. Asked for every pair of the table when
        the rules are made, and for pairs outside of it with each request."""
        raise NotImplementedError

    def decide(self, request: Request) -> Verdict:
        """Where it wants DECIDED."""
        raise NotImplementedError

    def ask(self, request: Request, body: bytes) -> Verdict:
        """Where it wants ASKED; ``body``: after the header. May raise PeerError for a body that cannot be read."""
        raise NotImplementedError

    def deny(self, request: Request, partitions: Partitions | None) -> Verdict:
        """Where it wants CHECKED: the Produce names a protected topic. ``partitions``: all that it names; None where
        they are not to be answered."""
        raise NotImplementedError

    def edit(self, api_key: int, api_version: int, body: bytes) -> bytes:
        """Where it wants EDITED; ``body``: after the response's header. What it raises counts; the body stays then."""
        raise NotImplementedError

    def lead(self, api_key: int, api_version: int, body: bytes, whole: bool) -> tuple[bytes, int] | None:
        """Where it wants LED; ``body``: as much of it as has come, ``whole``: that is all. Returns what replaces its
        beginning, and how many bytes that was; None where more of it is needed. As ``edit`` where something raises."""
        raise NotImplementedError

    def stream(self, api_key: int, api_version: int, length: int) -> Stream:
        """Where it wants STREAMED; ``length``: bytes of the body. As ``edit`` where something raises. With EDITED: only
        responses of more than ``answers.STREAMED_FROM`` bytes."""
        raise NotImplementedError


class Rules:
    """All interceptors of one listener. Of those that want DECIDED the first that does not forward has the last word;
    of each other flag the first has it.

    ``topics``: what a Produce is CHECKED for. ``table``: one byte of flags at ``api_key * VERSIONS + api_version``;
    changed in place by ``update``, so that sessions of either data path see it at once.
    """

    def __init__(self, interceptors: Sequence[Interceptor]) -> None:
        self._interceptors = interceptors
        self.topics = next((each.topics for each in interceptors if each.topics is not None), None)
        self.table = bytearray(KEYS * VERSIONS)
        self.update()

    def update(self) -> None:
        """What an interceptor wants has changed."""
        for key in range(KEYS):
            for version in range(VERSIONS):
                self.table[key * VERSIONS + version] = self._flags(key, version)

    def of(self, api_key: int, api_version: int) -> int:
        """The flags of this api key and version."""
        if 0 <= api_key < KEYS and 0 <= api_version < VERSIONS:
            return self.table[api_key * VERSIONS + api_version]
        return self._flags(api_key, api_version)

    def decide(self, request: Request) -> Verdict:
        """What its interceptors say of the header."""
        for interceptor in self._interceptors:
            if interceptor.wants(request.api_key, request.api_version) & DECIDED:
                verdict = interceptor.decide(request)
                if verdict is not Way.FORWARD:
                    return verdict
        return Way.FORWARD

    def max_asked(self, api_key: int, api_version: int) -> int:
        """Bytes of the longest such request that is held back."""
        return self._first(api_key, api_version, ASKED).max_asked

    def on_error(self, request: Request) -> Way:
        """What becomes of a request that its interceptor failed to judge by its body."""
        return self._first(request.api_key, request.api_version, ASKED).on_error

    def ask(self, request: Request, body: bytes) -> Verdict:
        """What its interceptor says of the whole request."""
        return self._first(request.api_key, request.api_version, ASKED).ask(request, body)

    def deny(self, request: Request, partitions: Partitions | None) -> Verdict:
        """What becomes of a Produce that names a protected topic."""
        return self._first(request.api_key, request.api_version, CHECKED).deny(request, partitions)

    def edit(self, api_key: int, api_version: int, body: bytes) -> bytes:
        """The body that the client gets: every interceptor that wants it has its turn."""
        for interceptor in self._interceptors:
            if interceptor.wants(api_key, api_version) & EDITED:
                body = interceptor.edit(api_key, api_version, body)
        return body

    def lead(self, api_key: int, api_version: int, body: bytes, whole: bool) -> tuple[bytes, int] | None:
        """What replaces the beginning of this body."""
        return self._first(api_key, api_version, LED).lead(api_key, api_version, body, whole)

    def stream(self, api_key: int, api_version: int, length: int) -> Stream:
        """What this body passes through."""
        return self._first(api_key, api_version, STREAMED).stream(api_key, api_version, length)

    def _flags(self, api_key: int, api_version: int) -> int:
        flags = 0
        for interceptor in self._interceptors:
            flags |= interceptor.wants(api_key, api_version)
        return flags

    def _first(self, api_key: int, api_version: int, flag: int) -> Interceptor:
        return next(each for each in self._interceptors if each.wants(api_key, api_version) & flag)
