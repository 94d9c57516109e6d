"""The addresses in the broker's responses, replaced by those that the clients of a listener can dial.

For brokers that do not advertise their sidecars. Seven responses carry addresses; in each the hosts and ports are
replaced where they stand, node ids never, and every other byte goes on as the broker sent it. A version that is not
known here is refused: its addresses could not be found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from types import MappingProxyType

from proxy.core.apis import APIS
from proxy.core.fields import Plan, plan_of
from proxy.core.intercept import DECIDED, EDITED, LED, STREAMED, Interceptor, Request, Stream, Verdict, Way
from proxy.core.schema import Field, Layout, layout
from proxy.core.wire import TRUNCATED, Nonsense
from proxy.errors import MalformedBody
from proxy.replies.addresses_splice import Address, Splice, sealed, tagged
from proxy.replies.addresses_stream import Tail

PRODUCE, FETCH, METADATA, FIND_COORDINATOR, DESCRIBE_CLUSTER, SHARE_FETCH, SHARE_ACKNOWLEDGE = 0, 1, 3, 10, 60, 78, 79

SINCE: Mapping[int, int] = MappingProxyType(
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
"""The apis whose responses carry addresses, and the first version of each that does."""

HELD: Mapping[int, int] = MappingProxyType(
    {
        PRODUCE: EDITED | STREAMED,  # as long as the client's request makes it
        FETCH: STREAMED,  # with records
        METADATA: LED,
        FIND_COORDINATOR: EDITED,
        DESCRIBE_CLUSTER: LED,
        SHARE_FETCH: STREAMED,
        SHARE_ACKNOWLEDGE: EDITED | STREAMED,
    }
)
"""How much of each is held back: all of it; its end, where the nodes stand after all else, and then it keeps its
length; its beginning, where they stand before the rest."""

UNMAPPED = "node-{}.unmapped.invalid", 1
"""In place of a node whose address for clients is not known: a name that never resolves (RFC 6761), so that clients
try again later, as they do with a broker that is down, and say which one it is."""


def newest(api_key: int) -> int | None:
    """The last version of this api that may pass where addresses are rewritten; None where any may."""
    return APIS[api_key].max_version if api_key in SINCE else None


class Addresses(Interceptor):
    """Of one listener. ``known``: by node id, what its clients can dial; may change at any time. ``unmapped`` is called
    with the node id each time that an address is not known."""

    def __init__(self, known: Mapping[int, Address], unmapped: Callable[[int], None]) -> None:
        self._known = known
        self._unmapped = unmapped

    def wants(self, api_key: int, api_version: int) -> int:
        """The responses with addresses; and the requests for such responses in versions that are not known."""
        since = SINCE.get(api_key)
        if since is None or api_version < since:
            return 0
        if api_version > APIS[api_key].max_version:
            return DECIDED
        return HELD[api_key]

    def decide(self, request: Request) -> Verdict:
        """Refuse it, whatever the upstream supports. A client that is not logged in learns nothing of the broker."""
        if request.connection.principal_source == "unauthenticated":
            return Way.FORWARD
        return b"" if request.acks else Way.CLOSE

    def edit(self, api_key: int, api_version: int, body: bytes) -> bytes:
        """Replace the addresses of a whole response. Raises MalformedBody."""
        plan = plan_of(layout(api_key, api_version, response=True))
        try:
            return self._edited(plan, body)
        except TRUNCATED:
            raise MalformedBody("broker", "the body ends before its addresses do") from None
        except Nonsense as nonsense:
            raise MalformedBody("broker", nonsense.detail) from None

    def lead(self, api_key: int, api_version: int, body: bytes, whole: bool) -> tuple[bytes, int] | None:
        """Replace the addresses in the array of nodes of a response that begins with ``body``. Raises MalformedBody."""
        plan = plan_of(layout(api_key, api_version, response=True))
        nodes = _nodes(plan.layout)
        assert nodes is not None, "what is led names its nodes in an array"
        splice = Splice(body, self._dial, flexible=plan.layout.flexible)
        try:
            end = splice.nodes(_start(plan, body, nodes.index), nodes)
        except TRUNCATED:
            end = len(body) + 1
        except Nonsense as nonsense:
            raise MalformedBody("broker", nonsense.detail) from None
        if end <= len(body):
            return splice.done(end), end
        if whole:
            raise MalformedBody("broker", "the body ends before its addresses do")
        return None

    def stream(self, api_key: int, api_version: int, length: int) -> Stream:
        """Replace the addresses at the end of a response of ``length`` bytes."""
        made = layout(api_key, api_version, response=True)
        nodes = _nodes(made)
        assert nodes is not None, "a response with records names its nodes in an array"
        return Tail(made, nodes, length, partial(sealed, nodes=nodes, dial=self._dial))

    def _edited(self, plan: Plan, body: bytes) -> bytes:
        nodes = _nodes(plan.layout)
        if nodes is not None and nodes.tag is not None:
            return tagged(body, _start(plan, body, len(plan.ordered)), nodes, self._dial)
        splice = Splice(body, self._dial, flexible=plan.layout.flexible)
        if nodes is not None:
            splice.nodes(_start(plan, body, nodes.index), nodes)
        else:
            splice.node(_start(plan, body, plan.layout.named["nodeid"].index))
        return splice.done()

    def _dial(self, node_id: int) -> Address:
        address = self._known.get(node_id)
        if address is not None:
            return address
        self._unmapped(node_id)
        host, port = UNMAPPED
        return host.format(node_id), port


@cache
def _nodes(made: Layout) -> Field | None:
    """The array of nodes of this message; None where it has one node alone, as FindCoordinator before version 4."""
    return next(
        (field for field in (*made.ordered, *made.tagged.values()) if field.layout and "host" in field.layout.named),
        None,
    )


def _start(plan: Plan, body: bytes, index: int) -> int:
    """Where the field of this index begins."""
    pos = 0
    for reader in plan.ordered[:index]:
        pos = reader.skip(body, pos)
    return pos
