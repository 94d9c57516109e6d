import socket
from collections.abc import Callable

from proxy.core.causes import Cause
from proxy.core.exchange import Connection
from proxy.core.session import Session
from proxy.core.tally import Tally
from proxy.errors import Side
from proxy.telemetry import Repeated

repeated: Repeated

class Relay:
    """Both ends of one connection. Closing happens once, by ``close``, and calls ``on_closed``; ``on_gone`` follows
    when everything written has been taken, or cut.

    ``ended_by``: whoever said first that it sends no more. ``received_bytes``: from the client; ``sent_bytes``: to the
    client. ``last_byte_at``: of either side, seconds of the monotonic clock; until there is one, when it was made.
    """

    on_gone: Callable[[Relay], None] | None

    def __init__(
        self,
        connection: Connection,
        session: Session | None,
        tally: Tally,
        on_closed: Callable[[Relay, Cause, str], None],
        on_gone: Callable[[Relay], None],
    ) -> None: ...
    @property
    def tally(self) -> Tally: ...
    @property
    def session(self) -> Session | None: ...
    @property
    def ended_by(self) -> Cause | None: ...
    @property
    def received_bytes(self) -> int: ...
    @property
    def sent_bytes(self) -> int: ...
    @property
    def last_byte_at(self) -> float: ...
    @property
    def id(self) -> str:
        """Of the connection."""

    @property
    def connection(self) -> Connection:
        """As it is known now."""

    @property
    def requests(self) -> int:
        """How many have begun, where they can be told apart."""

    @property
    def client_id(self) -> str | None:
        """As the last request has it, where they can be told apart."""

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""

    @property
    def quiet(self) -> bool:
        """Whether closing now would cut nothing short that this process knows of."""

    @property
    def gone(self) -> bool:
        """Whether both sides have ended and nothing waits to be written any more."""

    def unsent(self, side: Side) -> int:
        """Bytes written to ``side`` that the kernel has not taken yet."""

    def descriptor(self, side: Side) -> int:
        """Of the socket of ``side``; -1 before it is attached and after it is closed."""

    async def attach(self, client: socket.socket, broker: socket.socket) -> None:
        """Take over both connections and carry from now on. Raises OSError; the sockets are taken care of then too."""

    def stop_reading_requests(self) -> None:
        """For a drain: let a request that has begun come to its end, and read no further one.

        Where requests cannot be told apart, reading goes on until the connection is silent.
        """

    def abort(self) -> None:
        """Cut both sides at once, whatever was still to be written."""

    def close(self, cause: Cause, detail: str = "", *, abort: bool = False) -> None:
        """End both sides for ``cause``: what was written is flushed, unless ``abort``. Later calls change nothing."""
