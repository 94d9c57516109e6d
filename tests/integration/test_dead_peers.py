"""The real kernel's account of sockets distinguishes peers that are gone from peers that live and do not read."""

import contextlib
import errno
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from proxy.net.dead_peers import is_dead
from tests.integration.own_network import Direction, OwnNetwork, own_network
from tests.integration.sidecars import until

SOON_MS = 1500
"""What stands for 30 s here."""

DIAL = """
import socket, sys, time
sock = socket.socket()
sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
sock.connect(("127.0.0.1", int(sys.argv[1])))
time.sleep(600)
"""


@pytest.fixture
def network():
    with own_network() as network:
        if network is None:
            pytest.skip("a network namespace needs root")
        yield network


@contextlib.contextmanager
def connected(network: OwnNetwork, server: socket.socket) -> Iterator[tuple[socket.socket, int]]:
    """A connection from another host, and the pid of who has dialled; it reads nothing."""
    port = str(server.getsockname()[1])
    process = subprocess.Popen([*network.command("peer"), sys.executable, "-c", DIAL, port])
    try:
        server.settimeout(60)
        sock, _ = server.accept()
        sock.setblocking(False)
        with contextlib.closing(sock):
            yield sock, process.pid
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


def fill(sock: socket.socket) -> None:
    for _ in range(20):
        with contextlib.suppress(BlockingIOError):
            while True:
                sock.send(bytes(65_536))
        time.sleep(0.02)


@pytest.mark.promise(
    "security.md",
    "A peer that confirms nothing is taken for dead after its time; one that lives and does not read is not.",
)
def test_a_peer_that_is_gone_is_lost_and_one_that_does_not_read_is_not(network):
    """The latter also where its process is stopped."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        connected(network, server) as (unread, pid),
        connected(network, server) as (sent, _),
    ):
        fill(unread)
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        while time.monotonic() < began + 3 * SOON_MS / 1000:
            assert not is_dead(unread.fileno(), SOON_MS)
            assert not is_dead(sent.fileno(), SOON_MS)
            time.sleep(0.05)
        with network.cut("peer", [server.getsockname()[1]], Direction.BOTH):
            began = time.monotonic()
            sent.send(b"x")
            until(lambda: is_dead(sent.fileno(), SOON_MS))
            assert time.monotonic() - began >= SOON_MS / 1000 - 0.5
            until(lambda: is_dead(unread.fileno(), SOON_MS))


@pytest.mark.promise(
    "coordinator.md", "`TCP_USER_TIMEOUT` works: what is not acknowledged in its time is never delivered to a consumer."
)
def test_tcp_user_timeout_begins_with_the_first_retransmission_and_ends_what_was_sent(network):
    """A consumer's lease stands on this. The time that was set is not the whole: it begins when the kernel has waited
    for an acknowledgement, twice its retransmission timeout at most."""
    with socket.create_server(("127.0.0.1", 0)) as server, connected(network, server) as (sock, _):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SOON_MS)
        poller = select.poll()
        poller.register(sock, select.POLLIN)
        with network.cut("peer", [server.getsockname()[1]], Direction.BOTH):
            sent = time.monotonic()
            sock.send(b"x")
            if not poller.poll(SOON_MS / 2):  # else this process was paused for longer
                sock.send(b"y")  # it does not begin a new time
                assert poller.poll(60_000)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ETIMEDOUT
        assert time.monotonic() - sent >= SOON_MS / 1000
        with pytest.raises(BrokenPipeError):  # the path is back: too late
            sock.send(b"z")
