"""What bounds a session: how much of one connection it reads at once, holds, and leaves open.

The session itself is ``proxy.compiled.session``.
"""

from __future__ import annotations

MAX_IN_FLIGHT = 256
"""Unanswered requests after which a connection's client is no longer read (``saturated``); clients use 1 to 100."""

TURN = 100
"""Frames of a client that a session with rules reads at once. What a chunk has more of waits (``rest``) until the loop
has served the other connections: a chunk may hold 18,000 requests."""

ANSWER_COST = 4
"""As how many frames each one counts from the first on that is not forwarded as it came: Python has to do with these,
and 25 of them take up to half a millisecond."""

MIN_FRAME = 10
"""Smallest request in bytes: key, version, correlation id, null client id."""

MAX_FRAME = 104_857_600
"""Largest request in bytes (Kafka's ``socket.request.max.bytes``); a larger one ends the connection, as at a broker."""

MAX_PREFIX = 131_072
"""Most bytes kept of a request whose header is not complete. Client id and transactional id take up to 32 KiB each."""

CARRY_STEP = 1024
"""Bytes added to an incomplete prefix at a time; most prefixes are shorter than that."""

MAX_TOKEN = 524_288
"""Largest raw SASL token in bytes (Kafka's ``sasl.server.max.receive.size``)."""

MAX_LEARNED = 65_536
"""Bytes of the longest body that says who the client is, or raw SASL token, that is read. Of longer ones it is only
known that they passed."""
