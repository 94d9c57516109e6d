from collections.abc import Sequence

from proxy.compiled.exchange import Exchange
from proxy.core.answers import Answers
from proxy.core.budget import Budget
from proxy.core.exchange import Connection
from proxy.core.identity import Identity
from proxy.core.intercept import Rules
from proxy.core.tally import Tally
from proxy.core.watch import Watch
from proxy.errors import Side

class Account:
    """What one session holds of the ``budget``: ``held`` bytes."""

    def __init__(self, budget: Budget) -> None: ...
    @property
    def budget(self) -> Budget: ...
    @property
    def held(self) -> int: ...
    def is_full(self) -> bool:
        """Whether this connection holds more than its free share, while all together hold too much."""

    def charge(self, size: int) -> int:
        """Hold ``size`` bytes more, or fewer where it is negative."""

    def take(self, size: int) -> bool:
        """Hold ``size`` bytes more of what may be left out; returns False, and holds none of them, without room."""

    def record(self, size: int) -> None:
        """``size`` of the bytes that are held belong to an exchange that was recorded."""

    def close(self) -> None:
        """The session has ended: it holds nothing any more."""

class Session:
    """One per connection. ``watch``: those who observe; None means that nobody does, so no body is read. ``identity``:
    learns for them, and for ``rules``, who the client is. ``rules``: what is answered or changed here; None: nothing.
    ``budget``: what all sessions of the process hold is charged to; None: one of its own.

    Where there are rules the caller looks after each chunk whether it is ``diverted``: then ``answers`` says what goes
    on in its place, what the client is told, and whether the connection is to end.

    ``requests``: how many have begun; ``client_id``: as the last of them has it. ``clean``: how many bytes of the chunk
    that raised PeerError precede the refused frame.
    """

    def __init__(
        self,
        connection: Connection,
        tally: Tally,
        watch: Watch | None = None,
        max_frame: int = ...,
        identity: Identity | None = None,
        rules: Rules | None = None,
        budget: Budget | None = None,
    ) -> None: ...
    @property
    def account(self) -> Account: ...
    @property
    def answers(self) -> Answers | None: ...
    @property
    def requests(self) -> int: ...
    @property
    def clean(self) -> int: ...
    @property
    def client_id(self) -> str | None: ...
    @property
    def connection(self) -> Connection:
        """As it is known now."""

    @property
    def saturated(self) -> bool:
        """Whether so many requests are open that the client should not be read for now, or one of them ends it all."""

    @property
    def diverted(self) -> bool:
        """Whether ``answers`` has something to say of the last chunk."""

    @property
    def rest(self) -> bytes:
        """What of the client's last chunk is to be given again: in the next turn, once there is room for answers."""

    @property
    def untouched(self) -> bool:
        """Whether all that came has gone on, or is in the chunk at hand, just as it came."""

    @property
    def between_requests(self) -> bool:
        """Whether no request has been read in part."""

    @property
    def quiet(self) -> bool:
        """Whether no request is open and no frame of either direction is under way."""

    @property
    def in_flight(self) -> Sequence[Exchange]:
        """Requests that wait for their response, in their order."""

    def must_wait(self, side: Side) -> bool:
        """Whether this side should not be read for now, because connections hold too much memory: of the broker only
        while a response is held back, for every other one makes room."""

    def client_data(self, data: bytes, now: float) -> bool:
        """Read sizes and headers of the requests in ``data``; ``now``: seconds, monotonic.

        Returns whether ``walk`` has something to do. Raises PeerError(client) where a broker closes too: a size out of
        bounds, a header that does not fit its frame.
        """

    def broker_data(self, data: bytes, now: float) -> bool:
        """Read sizes and correlation ids of the responses in ``data``; as ``client_data``.

        Raises PeerError(broker) for a response that no request asked for: from there on nothing can be matched.
        """

    def walk(self, now: float) -> None:
        """The last chunk was handed on at ``now``: read its bodies that somebody asked for, and record what ended in
        it. Never raises."""

    def lost(self, now: float) -> None:
        """The connection ended at ``now``: every open exchange is finished without a response."""
