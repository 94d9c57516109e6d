"""Which clients have had their time for a first request, by a clock of the test's own."""

import socket
from typing import cast

import pytest

from proxy.core.counters import ListenerCounters
from proxy.core.exchange import Connection
from proxy.core.session import Session
from proxy.net.connection_setup import MAX_TICK_GAP, SETUP_TIMEOUT, SetupDeadlines, has_unread_bytes, is_set_up
from proxy.net.relay import Relay
from proxy.net.ticker import TICK_INTERVAL
from tests.frames import METADATA, batch, produce, request, response

SECONDS = 10.0


class Client:
    """What is known of a connection. ``unread``: whether the kernel has bytes of it."""

    def __init__(self, sent: int = 0, *, unread: bool = False, fails: bool = False) -> None:
        self.session: Session | None = None
        self.received_bytes = sent
        self.sent_bytes = 0
        self.unread = unread
        self.causes: list[str] = []
        self._fails = fails

    def close(self, cause: str) -> None:
        self.causes.append(cause)
        if self._fails:
            raise OSError

    def send(self, data: bytes) -> bool:
        """Send bytes of the client through a session, and say whether it is set up now."""
        connection = Connection("c", "CLIENT", "127.0.0.1", 1, 0.0, "User:c")
        self.session = self.session or Session(connection, ListenerCounters())
        self.received_bytes += len(data)
        if data:
            self.session.read_client_data(data, 0.0)
        return is_set_up(cast(Relay, self))


class Site:
    """The clients of a process whose clock stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.setups = SetupDeadlines(int(SECONDS * 1000), lambda: self.now, lambda relay: cast(Client, relay).unread)

    def begin(self, *clients: Client) -> Client:
        for client in clients:
            self.setups.start(cast(Relay, client))
        return clients[-1]

    def run(self, seconds: float) -> None:
        """Let the process run, with a beat as often as usual."""
        for _ in range(round(seconds / TICK_INTERVAL)):
            self.now += TICK_INTERVAL
            self.setups.on_tick()

    def stand(self, seconds: float) -> None:
        """Let the process be stopped for so long; the beat is the first thing that it does then."""
        self.now += seconds
        self.setups.on_tick()


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.promise(
    "limits.md", "A client whose first request is not complete within `connection.setup.timeout.ms` is closed."
)
def test_a_client_that_sends_nothing_is_closed_when_its_time_is_over(site: Site) -> None:
    first = site.begin(Client())
    site.run(4)
    second = site.begin(Client())
    site.run(SECONDS - 4 - 0.1)
    assert (first.causes, len(site.setups)) == ([], 2)
    site.run(0.2)
    assert (first.causes, second.causes, len(site.setups)) == ([SETUP_TIMEOUT], [], 1)
    site.run(4)
    assert (second.causes, len(site.setups)) == ([SETUP_TIMEOUT], 0)


@pytest.mark.promise(
    "limits.md", "The deadline of the first request is extended while the sidecar itself does not read the client."
)
def test_a_client_of_which_bytes_wait_unread_gets_the_time_again(site: Site) -> None:
    client = site.begin(Client(unread=True))
    site.run(3.5 * SECONDS)
    assert not client.causes
    client.unread = False
    site.run(SECONDS / 2 - 0.2)
    assert not client.causes
    site.run(0.4)
    assert client.causes == [SETUP_TIMEOUT]


@pytest.mark.promise(
    "limits.md", "Time in which the sidecar was stopped does not count for `connection.setup.timeout.ms`."
)
def test_time_in_which_the_process_was_stopped_does_not_count(site: Site) -> None:
    client = site.begin(Client())
    site.run(1)
    for _ in range(4):
        site.stand(100 * SECONDS)
    site.run(SECONDS - 1 - 4 * MAX_TICK_GAP - 0.1)
    assert not client.causes
    site.run(0.2)
    assert client.causes == [SETUP_TIMEOUT]


def test_who_is_set_up_is_forgotten_and_who_cannot_be_closed_holds_up_nobody(site: Site) -> None:
    client = site.begin(set_up := Client(sent=1), failing := Client(fails=True), Client())
    site.run(SECONDS + 1)
    assert (failing.causes, client.causes, len(site.setups)) == ([SETUP_TIMEOUT], [SETUP_TIMEOUT], 0)
    assert set_up.causes == []


# ---- what counts as a first request --------------------------------------------------------------------------------


def test_no_byte_of_the_first_request_may_be_missing_and_later_ones_may_be_incomplete() -> None:
    metadata = request(METADATA, 1, 1, bytes(100))
    for frame in (metadata, produce(1, 1, batch(3)), produce(1, 0, batch(3))):
        send = Client().send
        assert not send(b""), frame
        assert not any(send(frame[at : at + 1]) for at in range(len(frame) - 1)), frame
        assert send(frame[-1:]), frame
    client = Client()
    assert client.send(metadata + metadata[:3])
    assert client.send(metadata[3:50]), "the second one has begun"
    client = Client()
    assert client.send(metadata)
    answer = response(1, bytes(10))
    client.session.read_broker_data(answer, 0.0)
    client.sent_bytes += len(answer)
    assert client.send(metadata[:3]), "who was answered is set up"


# ---- what the kernel has -------------------------------------------------------------------------------------------


class Accepted:
    """One end of a real connection."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def descriptor(self, side: str) -> int:
        assert side == "client"
        return self._sock.fileno()


def test_bytes_that_the_kernel_has_are_unread_until_they_are_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        sock, _ = server.accept()
        relay = cast(Relay, Accepted(sock))
        with sock:
            assert not has_unread_bytes(relay)
            client.sendall(b"x")
            assert sock.recv(1, socket.MSG_PEEK) == b"x"
            assert has_unread_bytes(relay)
            sock.recv(1)
            assert not has_unread_bytes(relay)
        assert not has_unread_bytes(relay)  # it is closed
