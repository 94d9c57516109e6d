import socket

def accept(listening: int) -> tuple[socket.socket, tuple[str, int]] | None:
    """Return a client of the listening socket with this descriptor, and its address; None if none waits.

    The socket does not block, and has the options of the listening one. The address is without an IPv6 zone. Raises
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
