"""Replaces the broker addresses in responses by those that the clients of a listener can dial.

For brokers that do not advertise their sidecars. Seven responses have addresses. Hosts and ports are replaced where
they stand; node ids and all other bytes stay as the broker sent them. Requests of an unknown version are refused,
because the addresses in their responses could not be found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from types import MappingProxyType

from proxy.core.apis import APIS
from proxy.core.interceptor import (
    ON_HEADER,
    REWRITE,
    REWRITE_PREFIX,
    REWRITE_STREAM,
    Disposition,
    Interceptor,
    Request,
    Stream,
    Verdict,
)
from proxy.core.schema import Field, Layout, layout
from proxy.core.wire import TRUNCATED, DecodeError
from proxy.errors import MalformedBody
from proxy.interceptors.address_stream import TailRewriter
from proxy.interceptors.address_walk import AddressProgram, AddressWalk, program_of
from proxy.interceptors.broker_metadata import HostPort
from proxy.interceptors.tagged_nodes import rewrite_tagged_nodes, rewrite_tail

PRODUCE, FETCH, METADATA, FIND_COORDINATOR, DESCRIBE_CLUSTER, SHARE_FETCH, SHARE_ACKNOWLEDGE = 0, 1, 3, 10, 60, 78, 79

FIRST_VERSIONS: Mapping[int, int] = MappingProxyType(
    {
        PRODUCE: 10,
        FETCH: 16,
        METADATA: 0,
        FIND_COORDINATOR: 0,
        DESCRIBE_CLUSTER: 0,
        SHARE_FETCH: 0,
        SHARE_ACKNOWLEDGE: 0,
    }
)
"""The apis whose responses have addresses, with the first version of each that does."""

BUFFERING: Mapping[int, int] = MappingProxyType(
    {
        PRODUCE: REWRITE | REWRITE_STREAM,  # its length depends on the client's request
        FETCH: REWRITE_STREAM,  # has records
        METADATA: REWRITE_PREFIX,
        FIND_COORDINATOR: REWRITE,
        DESCRIBE_CLUSTER: REWRITE_PREFIX,
        SHARE_FETCH: REWRITE_STREAM,
        SHARE_ACKNOWLEDGE: REWRITE | REWRITE_STREAM,
    }
)
"""How much of each response is buffered: all of it, its end (the nodes come last, and the length must not change), or
its beginning (the nodes come first)."""

UNMAPPED_ADDRESS = "node-{}.unmapped.invalid", 1
"""The address of a node whose address for clients is unknown. The name never resolves (RFC 6761) and contains the node
id. Clients retry later, as for a broker that is down."""


def max_version(api_key: int) -> int | None:
    """Return the last version of this api that may pass if addresses are rewritten; None for any."""
    return APIS[api_key].max_version if api_key in FIRST_VERSIONS else None


class AddressRewriter(Interceptor):
    """Rewrites the addresses in the responses of one listener.

    ``addresses``: what clients dial, by node id; it may change at any time. ``on_unmapped(node_id)`` is called for each
    node of a response whose address is unknown.
    """

    def __init__(self, addresses: Mapping[int, HostPort], on_unmapped: Callable[[int], None]) -> None:
        self._addresses = addresses
        self._on_unmapped = on_unmapped

    def flags(self, api_key: int, api_version: int) -> int:
        """Responses with addresses, and the requests of unknown versions for such responses."""
        since = FIRST_VERSIONS.get(api_key)
        if since is None or api_version < since:
            return 0
        if api_version > APIS[api_key].max_version:
            return ON_HEADER
        return BUFFERING[api_key]

    def on_header(self, request: Request) -> Verdict:
        """Refuse the request, whatever the upstream supports. Unauthenticated clients learn nothing about the
        broker."""
        if request.connection.principal_source == "unauthenticated":
            return Disposition.FORWARD
        return b"" if request.acks else Disposition.CLOSE

    def rewrite(self, api_key: int, api_version: int, body: bytes) -> bytes:
        """Rewrite the addresses of a whole response. Raises MalformedBody."""
        message = layout(api_key, api_version, response=True)
        nodes = _nodes_field(message)
        try:
            if nodes is not None and nodes.tag is not None:
                return self._rewrite_tagged(message, nodes, body)
            last = nodes or message.named["port"]
            beginning, end = self._replace(program_of(message, last.index + 1), body)
        except TRUNCATED:
            raise MalformedBody("broker", "the body ends before its addresses do") from None
        except DecodeError as error:
            raise MalformedBody("broker", error.detail) from None
        return beginning + body[end:]

    def rewrite_prefix(self, api_key: int, api_version: int, body: bytes, whole: bool) -> tuple[bytes, int] | None:
        """Rewrite the nodes at the beginning of a response whose first bytes are ``body``. Raises MalformedBody."""
        message = layout(api_key, api_version, response=True)
        nodes = _nodes_field(message)
        assert nodes is not None, "what is led names its nodes in an array"
        try:
            return self._replace(program_of(message, nodes.index + 1), body)
        except TRUNCATED:
            if whole:
                raise MalformedBody("broker", "the body ends before its addresses do") from None
            return None
        except DecodeError as error:
            raise MalformedBody("broker", error.detail) from None

    def stream(self, api_key: int, api_version: int, length: int) -> Stream:
        """Rewrite the nodes at the end of a response of ``length`` bytes."""
        message = layout(api_key, api_version, response=True)
        nodes = _nodes_field(message)
        assert nodes is not None, "a response with records names its nodes in an array"
        return TailRewriter(message, nodes, length, partial(rewrite_tail, nodes=nodes, lookup=self._address_of_node))

    def _replace(self, program: AddressProgram, body: bytes) -> tuple[bytes, int]:
        return AddressWalk(program).replace(body, 0, self._address_of_node)

    def _rewrite_tagged(self, message: Layout, nodes: Field, body: bytes) -> bytes:
        found, pos = AddressWalk(program_of(message, len(message.ordered))).skip(body, 0)
        if not found:
            raise IndexError
        return rewrite_tagged_nodes(body, pos, nodes, self._address_of_node)

    def _address_of_node(self, node_id: int) -> HostPort:
        address = self._addresses.get(node_id)
        if address is not None:
            return address
        self._on_unmapped(node_id)
        host, port = UNMAPPED_ADDRESS
        return host.format(node_id), port


@cache
def _nodes_field(message: Layout) -> Field | None:
    """Return the array of nodes of this message; None if it has a single node, as FindCoordinator before version 4."""
    return next(
        (
            field
            for field in (*message.ordered, *message.tagged.values())
            if field.layout and "host" in field.layout.named
        ),
        None,
    )
