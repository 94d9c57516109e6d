"""Checks that the broker behind a listener is the configured one, and that it advertises this sidecar to its clients.

One Metadata response of the upstream answers both questions: the broker must advertise the listener's address under
``broker.id``. If it advertises another address, its clients bypass the sidecar unnoticed, unless the sidecar rewrites
addresses.
"""

from __future__ import annotations

import asyncio

from proxy.config import Endpoint, Listener
from proxy.errors import PeerError
from proxy.net.upstream import Upstream
from proxy.net.upstream_call import call_upstream
from proxy.rpc import messages

CHECK_TIMEOUT = 5.0
"""Seconds within which the broker has to answer."""

MAX_METADATA_SIZE = 16 * 1024 * 1024
"""Bytes of a response. A broker takes about 50 bytes, and no topics are requested."""


async def find_problem(listener: Listener, upstream: Upstream, broker_id: int) -> str | None:
    """Return what is wrong, in one sentence, or None. Raises OSError if the broker does not answer."""
    async with asyncio.timeout(CHECK_TIMEOUT):
        brokers = await _fetch_advertised(upstream)
    rewriting = listener.rewrite_addresses  # then only the broker's identity matters
    here = listener.upstream if rewriting else listener.advertised
    found = brokers.get(broker_id)
    if found == here:
        return None
    for other, address in brokers.items():
        if address == here:
            return (
                f"listener {listener.name}: {here} is what broker {other} advertises, but broker.id is {broker_id}; "
                "one of the two is wrong"
            )
    if found is None:
        ids = ", ".join(str(other) for other in sorted(brokers))
        return f"listener {listener.name}: the cluster behind {listener.upstream} has no broker {broker_id}, only {ids}"
    if rewriting:
        return None
    return (
        f"listener {listener.name}: broker {broker_id} advertises {found}, not {here}, so clients bypass "
        "this sidecar; set the broker's advertised.listeners, or this listener's advertised"
    )


async def _fetch_advertised(upstream: Upstream) -> dict[int, Endpoint]:
    """Return the address that each broker of the cluster advertises on this listener, by node id."""
    try:
        return messages.decode_brokers(await call_upstream(upstream, messages.metadata_request(), MAX_METADATA_SIZE))
    except (EOFError, PeerError) as error:
        detail = f": {error.detail}" if isinstance(error, PeerError) else ""
        raise OSError(f"{upstream} does not answer as a Kafka broker does{detail}") from None
