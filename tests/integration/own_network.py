"""A network namespace of this process's own, in which the packets between single processes can be dropped.

Its one interface is a loopback of its own, on which all servers listen as ever. A *host* is a process that runs under a
user of its own: routing rules find what it sends by the user, and what is sent to it by the source address that they
have given it. What is cut is lost without a word, as in a network: neither a connect nor a send fails at once.
"""

import ctypes
import os
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from itertools import count
from pathlib import Path

CLONE_NEWNET = 0x40000000

FIRST_USER = 20_000
"""The user of host 0; no such one needs to exist."""

LOST = 500
"""The routing table that leads to an interface behind which nobody is."""

FIRST_RULE, HOSTS, LOCAL = 1, 20_000, 30_000
"""Priorities of the rules of what is cut, of the hosts, and of what the kernel has as the first one."""

SETUP = f"""
ip link set lo up
ip rule add pref {LOCAL} lookup local
ip rule del pref 0
ip link add lost0 type veth peer name lost1
ip link set lost0 arp off
ip address add 192.0.2.1/32 dev lost0
ip link set lost0 up
ip link set lost1 up
ip route add default dev lost0 table {LOST}
"""

"""The address is never used. Without any that is not loopback's, AI_ADDRCONFIG of getaddrinfo finds no address at all,
and librdkafka resolves nothing."""

LOCAL_ROUTES = Path("/proc/sys/net/ipv4/conf/lost0/route_localnet")
"""Whether addresses of loopback may go to that interface."""


class Direction(Enum):
    """Of what is lost: what a host sends, what is sent to it, or both."""

    FROM = "from"
    TO = "to"
    BOTH = "both"


class OwnNetwork:
    def __init__(self) -> None:
        self._hosts: dict[str, int] = {}
        self._rules = count(FIRST_RULE)

    def command(self, name: str) -> list[str]:
        """What a command line begins with so that its process is the host of this name. It may write what root may."""
        if name not in self._hosts:
            number = self._hosts[name] = len(self._hosts)
            table, user = LOST + 1 + number, FIRST_USER + number
            _run(f"ip route add local 127.0.0.0/8 dev lo src {_address(number)} table {table}")
            _run(f"ip rule add pref {HOSTS} uidrange {user}-{user} lookup {table}")
        user = FIRST_USER + self._hosts[name]
        capability = "+dac_override"
        return ["/usr/bin/setpriv", f"--reuid={user}", f"--inh-caps={capability}", f"--ambient-caps={capability}"]

    def cut(self, name: str, ports: Iterable[int], direction: Direction) -> ExitStack:
        """Lose packets between a host and servers on these ports, until the stack is closed."""
        address = _address(self._hosts[name])
        rules = []
        for port in ports:
            if direction is not Direction.TO:
                rules.append(f"from {address} to 127.0.0.1 ipproto tcp dport {port} lookup {LOST}")
            if direction is not Direction.FROM:
                rules.append(f"from 127.0.0.1 to {address} ipproto tcp sport {port} lookup {LOST}")
        undo = ExitStack()
        for rule in rules:
            priority = next(self._rules)
            _run(f"ip rule add pref {priority} {rule}")
            undo.callback(_run, f"ip rule del pref {priority}")
        return undo

    def reset(self, name: str, port: int, *, of_host: bool) -> None:
        """Reset the connections between a host and a server on one side: the host's, or the server's. The other side
        does not hear of it."""
        address = _address(self._hosts[name])
        end = f"src {address} and dport = :{port}" if of_host else f"dst {address} and sport = :{port}"
        with self.cut(name, [port], Direction.BOTH):
            _run(f"ss --tcp --kill state established {end}")


@contextmanager
def own_network() -> Iterator[OwnNetwork | None]:
    """Move this thread, and what it starts, into a namespace for the block; None where that is not permitted."""
    kernel = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        if kernel.unshare(CLONE_NEWNET):
            yield None
            return
        try:
            for line in SETUP.strip().splitlines():
                _run(line)
            LOCAL_ROUTES.write_text("1")
            yield OwnNetwork()
        finally:
            assert kernel.setns(before, CLONE_NEWNET) == 0
    finally:
        os.close(before)


def _address(number: int) -> str:
    return f"127.0.{1 + number // 250}.{1 + number % 250}"


def _run(command: str) -> None:
    subprocess.run(shlex.split(command), check=True, capture_output=True)
