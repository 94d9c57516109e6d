"""The observer contract (KIP-388), and the shape of what observers are given.

An observer is a class with a no-argument constructor and the four methods of ``Observer``. It is named in
``observer.class.names`` as ``package.module:Class``. Life: constructed, ``configure``d once with the whole
configuration, told about exchanges, ``close``d once; nothing is called after ``close``.

``configure`` is called by the thread that starts the sidecar, everything later by one thread that belongs to this
observer alone; exceptions are caught, counted and logged, and never reach client traffic. An observer that falls
behind loses exchanges (counted); it never slows a client. After 100 calls in a row that raised it is left alone for
10 seconds.

One that has ``record_throttles`` besides (``ThrottleObserver``) is also told which connections met a limit.

A request is told about once its exchange has ended, so request and response come one right after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

TOPIC_NAME = "topic"
"""Field of a topic struct that holds the topic's name (KIP-388's ``TOPIC_NAME``); ``id:<topic id>`` where the wire
carried only the id and the cluster did not tell its name."""


class ObservableStruct(Protocol):
    """Read-only view of one request or response, or of a part of one (KIP-388 ``ObservableStructImpl``).

    Which fields there are: see ``observers.views``. Bodies other than Produce and Fetch have none.
    """

    def size_of(self) -> int:
        """Bytes: of a message the whole frame, size prefix included; of a part of one, the record sets in it."""

    def has_field(self, name: str) -> bool:
        """Whether ``name`` can be read; both the message definition's spelling and the KIP's are known."""

    def get(self, name: str) -> Any:
        """Value of a field: int, str, None, or a struct (``record_set``). Raises KeyError for a field there is not."""

    def get_observable_struct_array(self, name: str) -> Sequence[ObservableStruct]:
        """Value of an array of structs, as an immutable sequence. Raises KeyError."""


class ObservedConnection(Protocol):
    """The client connection an exchange came over."""

    id: str
    listener: str
    client_ip: str
    client_port: int
    principal: str
    client_software_name: str | None
    client_software_version: str | None


class ObservedExchange(Protocol):
    """One request with its response. Times: seconds on a monotonic clock; sizes: whole frames, bytes."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    received_at: float
    answered_at: float
    request_bytes: int
    response_bytes: int

    @property
    def connection(self) -> ObservedConnection:
        """The connection it came over."""

    @property
    def outcome(self) -> str:
        """``answered``, ``no_response`` (acks=0) or ``connection_lost``."""

    @property
    def decode(self) -> str:
        """``none``, ``full``, ``malformed`` or ``unsupported``: how far the bodies were read."""

    @property
    def request(self) -> Any:
        """Facts of the request body, or None where it was not walked."""

    @property
    def response(self) -> Any:
        """Facts of the response body, or None where it was not walked."""


class ThrottleReport(Protocol):
    """Connections of one client address that met the same limit with the same result, within about a second."""

    @property
    def listener(self) -> str:
        """Name of the listener they came in by."""

    @property
    def address(self) -> str:
        """Address of the clients; ``*`` for those that are told of together."""

    @property
    def scope(self) -> str:
        """Whose limit: ``broker``, ``listener`` or ``ip``."""

    @property
    def quota(self) -> str:
        """``connection_creation_rate`` or ``connections``."""

    @property
    def action(self) -> str:
        """``delay``, ``hold``, ``drop`` or ``observe``."""

    @property
    def count(self) -> int:
        """How many connections."""

    @property
    def limit(self) -> int:
        """Connections per second, or connections."""

    @property
    def observed(self) -> float:
        """The highest rate, or number, that was compared with ``limit``."""

    @property
    def delay_ms(self) -> int:
        """The longest time that one was to wait."""

    @property
    def first_at(self) -> float:
        """When the first one met the limit; seconds on the monotonic clock, as ``last_at``."""

    @property
    def last_at(self) -> float:
        """When the last one did."""


@runtime_checkable
class Observer(Protocol):
    """KIP-388's interface: a request and its response are told apart, tied by ``correlation_id``."""

    def configure(self, configs: Mapping[str, Any]) -> None:
        """Receive the whole configuration, once, before anything else. May raise to refuse the start."""

    def record_request(
        self,
        struct: ObservableStruct,
        client_address: str,
        principal: str,
        api_key: int,
        api_version: int,
        correlation_id: str,
    ) -> None:
        """A request was read. ``correlation_id`` is unique: ``<connection id>:<number of the exchange>``."""

    def record_response(self, struct: ObservableStruct, api_version: int, correlation_id: str) -> None:
        """Its response was handed to the client. Not called where none came (acks=0, connection lost)."""

    def close(self, timeout: float) -> None:
        """Flush what is pending within ``timeout`` seconds; nothing is called afterwards."""


@runtime_checkable
class ExchangeObserver(Protocol):
    """The same life with both halves joined and many at a time: what the built-in audit observer implements.

    A class with ``record_exchanges`` gets that instead of ``record_request`` and ``record_response``.
    """

    def configure(self, configs: Mapping[str, Any]) -> None:
        """As in ``Observer``."""

    def record_exchanges(self, exchanges: Sequence[ObservedExchange], dropped: int) -> None:
        """Finished exchanges in the order they ended; ``dropped`` were lost just before them.

        They are shared with other observers: do not change them. There may be none, where only a loss is to be told.
        Where the class has ``record_throttles``, reports that were lost are in ``dropped``, too.
        """

    def close(self, timeout: float) -> None:
        """As in ``Observer``."""


@runtime_checkable
class ThrottleObserver(Protocol):
    """What a class may have besides the methods of ``Observer`` or ``ExchangeObserver``."""

    def record_throttles(self, reports: Sequence[ThrottleReport], dropped: int) -> None:
        """Reports in the order they were made; ``dropped`` exchanges and reports were lost just before them.

        They are shared with other observers: do not change them.
        """
