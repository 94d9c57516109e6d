"""What is open: one ``KafkaConnection`` for each connection, for ``GET /connections``. Names follow Redpanda's
``KafkaConnection`` (admin API v2) and KIP-511."""

from __future__ import annotations

import time
from bisect import bisect_right
from heapq import nsmallest
from time import monotonic
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from proxy.core.session import Session
    from proxy.net.relay import Relay

PAGE = 50
"""Connections described at a time: less than 1 ms of the event loop."""

MAX_TEXT = 256
"""Characters of a text that the client chose; longer ones are cut and end in ``…``."""

MAX_IN_FLIGHT_LISTED = 10
"""Open requests of one connection that are listed; ``in_flight`` counts all."""


class InFlightRequest(Struct, omit_defaults=True, gc=False):
    """A request that waits for its response."""

    api_key: int
    in_flight_duration_ms: int


class KafkaConnection(Struct, omit_defaults=True, gc=False):
    """One open connection of a client. Times: seconds since 1970.

    ``id``: as in the audit's events, and for ``close``. ``state``: ``connecting`` (to the broker), ``open`` or
    ``aborting`` (half of it has ended). ``group_id`` to ``transactional_id``: of the last request that had one.
    ``request_count``, ``received_bytes``, ``sent_bytes``: since it was opened. ``in_flight``: requests without a
    response; ``in_flight_requests`` has the oldest of them. ``tls_version``, ``tls_cipher``, ``tls_client_serial``: as
    in the audit's events. Without frames that can be read (TLS that passes through), only addresses, times and bytes
    are known.
    """

    id: str
    state: Literal["connecting", "open", "aborting"]
    listener: str
    client_ip: str
    client_port: int
    principal: str
    principal_source: str
    open_time: float
    idle_duration_ms: int
    request_count: int
    received_bytes: int
    sent_bytes: int
    in_flight: int = 0
    in_flight_requests: tuple[InFlightRequest, ...] = ()
    sasl_mechanism: str | None = None
    tls_version: str | None = None
    tls_cipher: str | None = None
    tls_client_serial: str | None = None
    client_id: str | None = None
    client_software_name: str | None = None
    client_software_version: str | None = None
    group_id: str | None = None
    group_instance_id: str | None = None
    group_member_id: str | None = None
    transactional_id: str | None = None
    worker: int = 1
    """Number of the process that carries it; 0: the main process beside workers, as of consumers of groups that this
    sidecar coordinates."""


class ConnectionList(Struct):
    """Open connections. ``unanswered``: workers that did not answer in time, whose connections are missing."""

    connections: list[KafkaConnection]
    unanswered: list[int] = []


class ConnectionsView(Struct):
    """The response of ``GET /connections``. ``open``: all; ``chosen``: those with the wanted values; ``connections``:
    of these the ones that are idle for the shortest time, as many as wanted."""

    open: int
    chosen: int
    connections: list[KafkaConnection]
    unanswered: list[int] = []
    """Workers that did not answer in time, whose connections are missing."""


class ConnectionChoice(NamedTuple):
    """How many connections were chosen, and those of them that are idle for the shortest time, as many as wanted."""

    number: int
    least_idle: list[KafkaConnection]


FILTERS = ("listener", "client_ip", "principal", "client_id", "group_id", "transactional_id")
"""Fields by which connections can be chosen, each by its whole value."""


class OpenConnections:
    """Describes the open connections of one process, so that no step walks over all of them.

    ``relays``: open ones by their numbers, in growing order; changed from outside. ``worker``: number of this process.
    """

    def __init__(self, relays: Mapping[int, Relay], worker: int) -> None:
        self._relays = relays
        self._worker = worker
        self._numbers: tuple[int, ...] = ()  # of those open when the listing began; some have ended since

    def describe_page(self, after: int) -> list[tuple[int, KafkaConnection]]:
        """Return up to ``PAGE`` connections with the lowest numbers above ``after``, with their numbers; none: these
        were all. Those opened after the page with ``after`` 0 may be missing."""
        if not after or not self._numbers:
            self._numbers = tuple(self._relays)
        now, offset = monotonic(), time.time() - monotonic()
        page: list[tuple[int, KafkaConnection]] = []
        for at in range(bisect_right(self._numbers, after), len(self._numbers)):
            number = self._numbers[at]
            if (relay := self._relays.get(number)) is not None:
                page.append((number, _describe(relay, now, offset, self._worker)))
                if len(page) == PAGE:
                    return page
        if not page:
            self._numbers = ()
        return page

    def find(self, number: int) -> KafkaConnection | None:
        """Return the connection with this number; None if it is not open."""
        relay = self._relays.get(number)
        return None if relay is None else _describe(relay, monotonic(), time.time() - monotonic(), self._worker)


def choose(connections: Iterable[KafkaConnection], wanted: Mapping[str, str], most: int) -> ConnectionChoice:
    """Choose those of ``connections`` whose fields have the values ``wanted``."""
    chosen = [one for one in connections if all(getattr(one, name) == value for name, value in wanted.items())]
    return ConnectionChoice(len(chosen), nsmallest(most, chosen, key=lambda one: (one.idle_duration_ms, one.id)))


def number_of(connection_id: str) -> int | None:
    """Return the number at the end of an id, or None if there is none."""
    digits = connection_id.rpartition("-")[2]
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 else None


def _describe(relay: Relay, now: float, offset: float, worker: int) -> KafkaConnection:
    connection, session = relay.connection, relay.session
    made = KafkaConnection(
        id=connection.id,
        state="connecting" if relay.descriptor("client") < 0 else "open" if relay.first_eof is None else "aborting",
        listener=connection.listener,
        client_ip=connection.client_ip,
        client_port=connection.client_port,
        principal=clip(connection.principal) or "",
        principal_source=connection.principal_source,
        open_time=round(connection.opened_at + offset, 3),
        idle_duration_ms=max(0, round((now - relay.last_byte_at) * 1000)),
        request_count=relay.requests,
        received_bytes=relay.received_bytes,
        sent_bytes=relay.sent_bytes,
        sasl_mechanism=connection.sasl_mechanism,
        tls_version=connection.tls_version,
        tls_cipher=connection.tls_cipher,
        tls_client_serial=clip(connection.tls_client_serial),
        client_id=clip(relay.client_id),
        client_software_name=clip(connection.client_software_name),
        client_software_version=clip(connection.client_software_version),
        worker=worker,
    )
    if session is not None:
        _add_session(made, session, now)
    return made


def _add_session(made: KafkaConnection, session: Session, now: float) -> None:
    open_requests = session.in_flight
    made.in_flight = len(open_requests)
    made.in_flight_requests = tuple(
        InFlightRequest(one.api_key, max(0, round((now - one.received_at) * 1000)))
        for one in open_requests[:MAX_IN_FLIGHT_LISTED]
    )
    if (membership := session.membership) is not None:
        made.group_id, made.group_instance_id, made.group_member_id, made.transactional_id = (
            None if name is None else name.decode("utf-8", "replace") for name in membership
        )


def clip(text: str | None) -> str | None:
    """Return a text that a client chose, of at most ``MAX_TEXT`` characters."""
    return text if text is None or len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
