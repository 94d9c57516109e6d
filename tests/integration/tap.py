"""A forwarder that keeps all bytes of each connection, for tests that compare what goes in with what comes out."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Tapped:
    requests: bytearray = field(default_factory=bytearray)
    responses: bytearray = field(default_factory=bytearray)


@contextlib.contextmanager
def tap(bind: str, onward: str) -> Iterator[list[Tapped]]:
    """Forward each connection to ``bind`` on to ``onward``; both host:port. Yields what has passed, as it passes."""
    tapped: list[Tapped] = []
    sockets: list[socket.socket] = []

    def pump(source: socket.socket, target: socket.socket, into: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                into += data
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def serve(server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = server.accept()
                one = Tapped()
                tapped.append(one)
                sockets.append(client)
                try:
                    broker = socket.create_connection(_address(onward))
                except OSError:  # nobody listens there yet
                    client.close()
                    continue
                sockets.append(broker)
                for arguments in ((client, broker, one.requests), (broker, client, one.responses)):
                    threading.Thread(target=pump, args=arguments, daemon=True).start()

    with socket.create_server(_address(bind)) as server:
        thread = threading.Thread(target=serve, args=(server,), daemon=True)
        thread.start()
        try:
            yield tapped
        finally:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            thread.join(10)
            for sock in sockets:
                sock.close()


def frames(data: bytes | bytearray) -> list[bytes]:
    """Whole frames of a direction, without their sizes."""
    found, pos = [], 0
    while len(data) - pos >= 4 and len(data) - pos - 4 >= (size := int.from_bytes(data[pos : pos + 4], "big")):
        found.append(bytes(data[pos + 4 : pos + 4 + size]))
        pos += 4 + size
    return found


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)
