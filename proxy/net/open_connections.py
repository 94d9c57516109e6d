"""What is open: one ``KafkaConnection`` for each connection, for ``GET /connections``. Names follow Redpanda's
``KafkaConnection`` (admin API v2) and KIP-511."""

from __future__ import annotations

import time
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from proxy.core.session import Session
    from proxy.net.relay import Relay

PAGE = 200
"""Connections described at a time: about 3 ms of the event loop."""

MAX_TEXT = 256
"""Characters of a text that the client chose; longer ones are cut and end in ``…``."""

MAX_IN_FLIGHT_LISTED = 10
"""Open requests of one connection that are listed; ``in_flight`` counts all."""


class InFlightRequest(Struct, omit_defaults=True):
    """A request that waits for its response."""

    api_key: int
    in_flight_duration_ms: int


class KafkaConnection(Struct, omit_defaults=True):
    """One open connection of a client. Times: seconds since 1970.

    ``id``: as in the audit's events, and for ``close``. ``state``: ``connecting`` (to the broker), ``open`` or
    ``aborting`` (half of it has ended). ``group_id`` to ``transactional_id``: of the last request that had one.
    ``request_count``, ``received_bytes``, ``sent_bytes``: since it was opened. ``in_flight``: requests without a
    response; ``in_flight_requests`` has the oldest of them. ``tls_version``, ``tls_cipher``: where the sidecar
    terminates TLS. Without frames that can be read (TLS that passes through), only addresses, times and bytes are
    known.
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
    client_id: str | None = None
    client_software_name: str | None = None
    client_software_version: str | None = None
    group_id: str | None = None
    group_instance_id: str | None = None
    group_member_id: str | None = None
    transactional_id: str | None = None
    worker: int = 1
    """Number of the process that carries it."""


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


FILTERS = ("listener", "client_ip", "principal", "client_id", "group_id", "transactional_id")
"""Fields by which connections can be chosen, each by its whole value."""


def describe_page(relays: Mapping[Relay, int], after: int, worker: int) -> list[tuple[int, KafkaConnection]]:
    """Return up to ``PAGE`` connections with the lowest numbers above ``after``, with their numbers.

    ``relays``: open ones with their numbers, which grow. ``worker``: number of this process.
    """
    now, offset = monotonic(), time.time() - monotonic()
    page = islice(((number, relay) for relay, number in relays.items() if number > after), PAGE)
    return [(number, _describe(relay, now, offset, worker)) for number, relay in page]


def choose(connections: Iterable[KafkaConnection], wanted: Mapping[str, str]) -> list[KafkaConnection]:
    """Return those of ``connections`` whose fields have the values ``wanted``, the one longest idle last."""
    chosen = [one for one in connections if all(getattr(one, name) == value for name, value in wanted.items())]
    return sorted(chosen, key=lambda one: (one.idle_duration_ms, one.id))


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
        principal=_clip(connection.principal) or "",
        principal_source=connection.principal_source,
        open_time=round(connection.opened_at + offset, 3),
        idle_duration_ms=max(0, round((now - relay.last_byte_at) * 1000)),
        request_count=relay.requests,
        received_bytes=relay.received_bytes,
        sent_bytes=relay.sent_bytes,
        sasl_mechanism=connection.sasl_mechanism,
        tls_version=connection.tls_version,
        tls_cipher=connection.tls_cipher,
        client_id=_clip(relay.client_id),
        client_software_name=_clip(connection.client_software_name),
        client_software_version=_clip(connection.client_software_version),
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


def _clip(text: str | None) -> str | None:
    return text if text is None or len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
