"""Random responses that carry addresses, and what is to become of them."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from proxy.core.interceptor import REWRITE, REWRITE_PREFIX
from proxy.interceptors.address_rewriter import AddressRewriter
from proxy.interceptors.broker_metadata import HostPort
from tests.tools.random_messages import UNKNOWN_TAGS, Drawn, all_messages, draw

UNKNOWN = -(1 << 31)
"""A node id of which no address is known."""


class Dialled(dict[int, HostPort]):
    """An address of its own for every node id but ``UNKNOWN``: of 1 to 40 bytes, sometimes with others than ASCII's."""

    def __missing__(self, node_id: int) -> HostPort:
        return ("é" * (node_id % 7) + "x" * (1 + node_id % 27), 1 + node_id % 65_535)

    def get(self, node_id: int, default: Any = None) -> Any:
        return default if node_id == UNKNOWN else self[node_id]


def rewriting(known: Mapping[int, HostPort] | None = None) -> AddressRewriter:
    return AddressRewriter(Dialled() if known is None else known, lambda node_id: None)


def all_addressed() -> list[tuple[int, int]]:
    wants = rewriting().flags
    return [(key, version) for key, version, response in all_messages() if response and wants(key, version)]


def drawn(seed: object, key: int, version: int, *, tame: bool = False) -> Drawn:
    return draw(Random(f"{seed} {key} {version}"), key, version, True, tame=tame)


def rewritten(addresses: AddressRewriter, one: Drawn, pieces: int = 1, *, streamed: bool = False) -> bytes:
    """What the client gets, in as many pieces of about the same length where it is a stream.

    ``streamed``: as one that is too long to be held back.
    """
    wants = addresses.flags(one.key, one.version)
    if wants & REWRITE_PREFIX:
        led = addresses.rewrite_prefix(one.key, one.version, one.body, True)
        assert led is not None
        return led[0] + one.body[led[1] :]
    if wants & REWRITE and not streamed:
        return addresses.rewrite(one.key, one.version, one.body)
    stream = addresses.stream(one.key, one.version, len(one.body))
    step = -(-len(one.body) // pieces)
    return b"".join(stream.feed(one.body[at : at + step]) for at in range(0, len(one.body), step))


def expected(value: Any, known: Mapping[int, HostPort] | None = None) -> Any:
    """The values of a message, with the addresses that it is to have."""
    known = Dialled() if known is None else known
    if isinstance(value, tuple):
        return tuple(expected(one, known) for one in value)
    if not isinstance(value, dict):
        return value
    reported = {name: one if name == UNKNOWN_TAGS else expected(one, known) for name, one in value.items()}
    if value.get("Host"):
        node_id = value["NodeId"] if "NodeId" in value else value["BrokerId"]
        host, port = known.get(node_id) or (f"node-{node_id}.unmapped.invalid", 1)
        reported |= {"Host": host, "Port": port}
    return reported
