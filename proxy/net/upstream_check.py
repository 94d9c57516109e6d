"""Checks that the broker behind a listener is the configured one, and that it advertises this sidecar to its clients.

One Metadata response of the upstream answers both questions: the broker must advertise the listener's address under
``broker.id``. If it advertises another address, its clients bypass the sidecar unnoticed, unless the sidecar rewrites
addresses.
"""

from __future__ import annotations

import asyncio
import struct

from proxy import __version__
from proxy.config import Endpoint, Listener
from proxy.net.upstream import Upstream

CHECK_TIMEOUT = 5.0
"""Seconds within which the broker has to answer."""

MAX_METADATA_SIZE = 16 * 1024 * 1024
"""Bytes of a response. A broker takes about 50 bytes, and no topics are requested."""

METADATA, METADATA_VERSION = 3, 1
"""The api key, and the first version that can request no topics. Every broker from 0.10 to 4.x answers it."""


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
    client_id = f"brokerside-{__version__}".encode()
    body = struct.pack(">hhih", METADATA, METADATA_VERSION, 1, len(client_id)) + client_id + struct.pack(">i", 0)
    reader, writer = await asyncio.open_connection(sock=await upstream.connect())
    try:
        writer.write(struct.pack(">i", len(body)) + body)
        size = int.from_bytes(await reader.readexactly(4), "big")
        if not 8 <= size <= MAX_METADATA_SIZE:
            raise OSError(f"{upstream} does not speak Kafka's protocol")
        return _parse_brokers(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, struct.error, UnicodeDecodeError):
        raise OSError(f"{upstream} does not answer as a Kafka broker does") from None
    finally:
        writer.close()


def _parse_brokers(answer: bytes) -> dict[int, Endpoint]:
    """Return the brokers of a Metadata v1 response. Source: MetadataResponse.json."""
    brokers = {}
    _, count = struct.unpack_from(">ii", answer)
    pos = 8
    for _ in range(count):
        node_id, length = struct.unpack_from(">ih", answer, pos)
        host = answer[pos + 6 : pos + 6 + length].decode()
        pos += 6 + length
        port, rack = struct.unpack_from(">ih", answer, pos)
        pos += 6 + max(rack, 0)
        brokers[node_id] = Endpoint(host, port)
    return brokers
