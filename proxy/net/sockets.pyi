class AcceptedSocket:
    """The descriptor of a client's socket, which it owns. It does not block.

    An object of Python's ``socket`` costs ten times as much, and a system call. Methods are as there.
    """

    def __init__(self, fd: int) -> None: ...
    def fileno(self) -> int: ...
    def detach(self) -> int: ...
    def close(self) -> None: ...
    def dup(self) -> AcceptedSocket: ...
    def recv(self, size: int, flags: int = 0) -> bytes: ...
    def is_closed_by_peer(self) -> bool:
        """Return whether the peer has closed the connection, even if unread bytes remain; False if unknown."""

def accept(listening: int) -> tuple[AcceptedSocket, tuple[str, int]] | None:
    """Return a client of the listening socket with this descriptor, and its address; None if none waits.

    The socket has the options of the listening one. The address is without an IPv6 zone. Raises
    OSError.
    """

class NearBroker:
    """An address of loopback. The kernel connects to it in the system call, mostly."""

    def __init__(self, host: str, port: int) -> None:
        """Raises ValueError if ``host`` is no IP address."""

    def connect_at_once(self) -> int:
        """Return the descriptor of a connected, non-blocking socket; −1 if there is none without waiting.

        It has TCP_NODELAY, and no keepalive: the kernel itself is the peer, and reports its end.
        """
