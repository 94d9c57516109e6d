import socket
from collections.abc import Callable

from proxy.net.sockets import AcceptedSocket
from proxy.net.tls_stream import TlsStream

class TlsHandshake:
    """Shakes hands with the peer of ``sock``, a connected, non-blocking socket. Belongs to the event loop's thread.

    ``on_end(error)`` is called once, from the event loop: with None where TLS is established, with a PeerError of the
    reason ``tls_failed``, with EOFError or OSError where the connection ends before, with another exception after a
    mistake of this process. What it raises is logged. The socket is not closed.
    """

    def __init__(
        self, stream: TlsStream, sock: socket.socket | AcceptedSocket, on_end: Callable[[Exception | None], None]
    ) -> None: ...
    @property
    def sock(self) -> socket.socket | AcceptedSocket: ...
    @property
    def is_late(self) -> bool:
        """Whether it waits for this process, and not for the peer, such as one that does not read. The socket is still
        open."""

    def start(self) -> None:
        """Begin. Raises OSError if the kernel cannot watch the socket."""

    def abort(self) -> None:
        """Do not call ``on_end`` any more. To be called before the socket is closed; later calls do nothing."""
