"""One connection of a consumer, as ``proxy.net.consumers`` keeps it."""

from __future__ import annotations

from enum import Enum
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from proxy.core.causes import Cause
from proxy.core.exchange import Connection, ConnectionTransition
from proxy.interceptors.consumer_rights import Rights
from proxy.net.open_connections import KafkaConnection, clip

if TYPE_CHECKING:
    from proxy.interceptors.consumer_groups import Registration
    from proxy.net.consumer_handover import HandedConnection
    from proxy.net.consumer_rights import ClientRights
    from proxy.net.consumer_socket import ConsumerSocket


class ConsumerState(Enum):
    """Whose turn it is on a connection."""

    ASKED = "asked"
    """A RegisterConsumer waits for its response. What the client sends meanwhile waits, too."""
    REFUSED = "refused"
    """The client may register again."""
    REGISTERED = "registered"
    """The coordinator sends requests, and the client responses."""


class ConsumerEvents(Protocol):
    """What is reported about the connections of consumers."""

    def on_frame(self, consumer: Consumer, frame: bytes) -> None:
        """A whole frame, without its size."""

    def on_end(self, consumer: Consumer, cause: Cause, by_peer: bool) -> None:
        """The connection has ended. ``by_peer``: by a FIN."""

    def on_buffered(self, consumer: Consumer) -> None:
        """The kernel has not taken all that was sent."""

    def on_drained(self, consumer: Consumer) -> None:
        """The kernel has now taken all that was sent."""

    def may_send_rest(self, consumer: Consumer) -> bool:
        """Return whether what the kernel has not taken yet may still be sent."""


class Consumer:
    """A client on its way to be a member of a group. ``client``: who it is; ``number``: of the connection.

    ``registration``: the last one. ``rights``: as they were reported last; None before any registration was reported.
    ``client_rights``: of a client that has logged in.
    """

    __slots__ = ("_before", "_events", "client", "client_rights", "number", "registration", "requests", "rights",
                 "sock", "state", "worker")  # fmt: skip

    sock: ConsumerSocket

    def __init__(self, handed: HandedConnection, client_rights: ClientRights | None, events: ConsumerEvents) -> None:
        self.number = handed.number
        self.client: Connection = handed.connection
        self.registration: Registration = handed.registration
        self.client_rights = client_rights
        self.rights: Rights | None = None
        self.state = ConsumerState.ASKED
        self.requests = handed.requests
        self.worker = handed.worker
        self._before = handed.received_bytes, handed.sent_bytes
        self._events = events

    @property
    def has_pattern(self) -> bool:
        """Whether the client subscribes to all topics that match a pattern."""
        return not self.registration.request.topic_count.startswith("{")

    def on_frame(self, frame: bytes) -> None:
        """As ``ConsumerSocketOwner``."""
        self._events.on_frame(self, frame)

    def on_end(self, cause: Cause, *, by_peer: bool) -> None:
        """As ``ConsumerSocketOwner``."""
        self._events.on_end(self, cause, by_peer)

    def on_buffered(self) -> None:
        """As ``ConsumerSocketOwner``."""
        self._events.on_buffered(self)

    def on_drained(self) -> None:
        """As ``ConsumerSocketOwner``."""
        self._events.on_drained(self)

    def may_send(self) -> bool:
        """As ``ConsumerSocketOwner``."""
        return self._events.may_send_rest(self)

    def closed(self, cause: Cause) -> ConnectionTransition:
        """Return the end of this connection for the observers."""
        received, sent = self._before
        counts = self.requests, received + self.sock.received, sent + self.sock.sent
        client_id = self.registration.client_id
        return ConnectionTransition(self.client, "closed", monotonic(), cause, 0, 0, *counts, client_id)

    def describe(self, now: float, offset: float, worker: int) -> KafkaConnection:
        """Describe the connection. ``offset``: of the monotonic clock ``now`` to seconds since 1970."""
        received, sent = self._before
        client, registration = self.client, self.registration
        return KafkaConnection(
            id=client.id,
            state="open",
            listener=client.listener,
            client_ip=client.client_ip,
            client_port=client.client_port,
            principal=clip(client.principal) or "",
            principal_source=client.principal_source,
            open_time=round(client.opened_at + offset, 3),
            idle_duration_ms=max(0, round((now - self.sock.last_byte_at) * 1000)),
            request_count=self.requests,
            received_bytes=received + self.sock.received,
            sent_bytes=sent + self.sock.sent,
            sasl_mechanism=client.sasl_mechanism,
            client_id=clip(registration.client_id),
            client_software_name=clip(client.client_software_name),
            client_software_version=clip(client.client_software_version),
            group_id=clip(registration.request.group_id),
            group_member_id=clip(registration.request.consumer_id),
            worker=worker,
        )
