"""Host names in ``max.connections.per.ip.overrides``: each is replaced by its address when the file is read.

Kafka does the same with ``InetAddress.getByName``. Of several addresses Java's choice counts: the first IPv4 address,
else the first IPv6 address. A later change in the name service acts at the next reload.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Collection, Iterator

from proxy.config.document import ConfigDocument, Problem
from proxy.config.keys import KEYS, printable
from proxy.limits.java_addresses import choose_address, parse_java_address
from proxy.limits.model import canonical

OVERRIDES = ("quotas", "max.connections.per.ip.overrides")

LOOKUP_TIMEOUT = 5.0
"""Seconds for all names of a file together. Less than the time that a reload may take."""

CONCURRENT_LOOKUPS = 8

Answer = tuple[str | None, str]
"""The address of a name, or None and the reason."""


def resolve_overrides(document: ConfigDocument) -> Iterator[Problem]:
    """Replace host names by their addresses. Yields a problem for each name that has none."""
    section = document.get(OVERRIDES[:-1])
    text = section.get(OVERRIDES[-1]) if isinstance(section, dict) else None
    if not isinstance(text, str):
        return
    parts = [part.strip().rpartition(":") for part in text.split(",")]
    names = {host.strip() for host, _, _ in parts if _is_name(host.strip())}
    if not names:
        return
    answers = look_up(names)
    for name in sorted(names):
        address, reason = answers.get(name, (None, f"no answer within {LOOKUP_TIMEOUT:.0f} s"))
        if address is None:
            what = f"names {printable(repr(name))}, which has no address: {reason}"
            yield Problem(OVERRIDES, f"{printable(repr(text))} {what} (allowed: {KEYS[OVERRIDES].allowed})", final=True)
    section[OVERRIDES[-1]] = ",".join(
        f"{_in_brackets(answers.get(host.strip(), (None, ''))[0] or host)}{colon}{count}"
        for host, colon, count in parts
    )


def look_up(names: Collection[str]) -> dict[str, Answer]:
    """Return the answers of the name service that came within ``LOOKUP_TIMEOUT``."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[str, Answer]] = queue.SimpleQueue()
    for name in names:
        waiting.put(name)
    deadline = time.monotonic() + LOOKUP_TIMEOUT

    def work() -> None:
        with contextlib.suppress(queue.Empty):
            while time.monotonic() < deadline:
                name = waiting.get_nowait()
                done.put((name, _ask(name)))

    for _ in range(min(len(names), CONCURRENT_LOOKUPS)):
        threading.Thread(target=work, name="lookup", daemon=True).start()  # a look-up that hangs delays no exit
    answers: dict[str, Answer] = {}
    with contextlib.suppress(queue.Empty):
        while len(answers) < len(names):
            name, answer = done.get(timeout=max(deadline - time.monotonic(), 0))
            answers[name] = answer
    return answers


def _is_name(host: str) -> bool:
    """Return whether ``host`` is a host name. Java takes a text with a colon or in brackets for an address."""
    return bool(host) and ":" not in host and not host.startswith("[") and parse_java_address(host) is None


def _ask(name: str) -> Answer:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        return choose_address([canonical(str(address[0])) for _, _, _, _, address in found]), ""
    except (OSError, ValueError) as error:  # ValueError: it cannot even be asked for
        return None, getattr(error, "strerror", None) or str(error)


def _in_brackets(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
