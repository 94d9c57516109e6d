"""Whether a broker is ready: it answers one Metadata request, as it would a client's."""

from __future__ import annotations

import asyncio

from proxy.errors import PeerError
from proxy.rpc import messages
from proxy.rpc.call import call_once

READINESS_TIMEOUT = 2.0
"""Seconds for the connection and the response."""

MAX_RESPONSE_BYTES = 1 << 20
"""Bytes; a broker takes some 50 bytes, topics are not asked for."""


def known_brokers(address: str) -> set[int]:
    """Return the ids of the brokers that the one at ``address`` (host:port) knows; empty while it does not answer."""
    try:
        return asyncio.run(_known_brokers(address))
    except (OSError, EOFError, PeerError):
        return set()


async def _known_brokers(address: str) -> set[int]:
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(READINESS_TIMEOUT):
        streams = await asyncio.open_connection(host, int(port))
        answer = await call_once(streams, messages.metadata_request(), client_id=None, max_size=MAX_RESPONSE_BYTES)
    return set(messages.decode_brokers(answer))
