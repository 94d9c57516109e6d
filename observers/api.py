"""The observer contract (KIP-388), and the protocols of what observers receive.

An observer is a class with a no-argument constructor and the four methods of ``Observer``. It is named in
``observer.class.names`` as ``package.module:Class``. It is
constructed, ``configure``d once with the whole configuration, called with exchanges, and ``close``d once. Nothing is
called after ``close``. The sidecar does not start if a class is missing, lacks a method, or has a method with another
signature.

``configure`` is called by the thread that starts the sidecar, everything later by one thread that belongs to this
observer alone; exceptions are caught, counted and logged, and never reach client traffic. An observer that falls
behind loses exchanges (counted); it never slows a client. After 100 consecutive calls that raised it is not
called for 10 seconds. A call of more than 5 ms is counted as slow. The queue of an observer is bounded; what it
keeps itself is not. It may keep what it receives: nothing of that is a view of a network buffer.

Optional methods of a class:

=========================  ===========================================================================================
``wants(key, version)``    whether the observer wants these exchanges. Called after ``configure``, once for each pair of
                           Kafka's and of the sidecar's own apis (``configs["api.names"]`` names all keys), and for any
                           other pair when it occurs. Without it the observer gets everything.
``keeps(key, version)``    whether their bodies are kept, for ``request_raw`` and ``response_raw`` (as long as they are
                           not longer than ``observer.max.body.bytes``). Called as ``wants`` is. Without it an
                           ``Observer`` gets the bodies of all it wants, an ``ExchangeObserver`` none.
``record_changes``         see ``ConnectionObserver``
``record_throttles``       see ``ThrottleObserver``
``finalized_levels``       see ``LevelObserver``
=========================  ===========================================================================================

Exchanges that no observer wants are neither decoded nor kept. A request is delivered once its exchange has ended, so
request and response come one right after the other. A change of a connection comes after the exchanges before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

TOPIC_NAME = "topic"
"""Field of a topic struct that holds the topic's name (KIP-388's ``TOPIC_NAME``); ``id:<topic id>`` where the wire
carried only the id and the cluster did not know its name."""


class ObservableRecords(Protocol):
    """The record batches of one partition, described by their headers: nothing is decompressed."""

    @property
    def data(self) -> memoryview | None:
        """The bytes as they were sent, read-only; None where the body was too long to be kept."""

    @property
    def batches(self) -> int:
        """Whole batches."""

    @property
    def records(self) -> int:
        """Records in whole data batches."""

    @property
    def claimed(self) -> bool:
        """Whether ``records`` is a lower bound (compressed message sets of Kafka < 0.11)."""

    @property
    def magic(self) -> int:
        """Format of the first batch; −1 without one, as in all that follow."""

    @property
    def producer_id(self) -> int:
        """Producer id of the first batch."""

    @property
    def producer_epoch(self) -> int:
        """Producer epoch of the first batch."""

    @property
    def base_sequence(self) -> int:
        """Producer's sequence number of the first record."""

    @property
    def base_offset(self) -> int:
        """Offset of the first record."""

    def size_in_bytes(self) -> int:
        """Bytes on the wire, compressed as sent, a cut last batch included."""


class ObservableStruct(Protocol):
    """Read-only struct: one request or response, or a part of one (KIP-388 ``ObservableStructImpl``).

    Fields go by the names of the message definitions (``TopicData``) or of the KIP (``topic_data``). Each method but
    ``has_field`` and ``get_or_else`` raises a KeyError that names the fields there are, where this version has no such
    field or it is withheld (docs/observers.md), and ``SchemaException`` where it is of another type; reading may find
    that the bytes are malformed, which is a ``SchemaException``, too.
    """

    def size_of(self) -> int:
        """Bytes: of a message the whole frame, size prefix included; of a part of one, what it takes on the wire, or
        only the record sets in it where the body was too long to be kept."""

    def field_names(self) -> tuple[str, ...]:
        """Names of the fields there are."""

    def unknown_tagged_fields(self) -> Mapping[int, bytes]:
        """Tagged fields that no definition knows, by tag."""

    def has_field(self, name: str) -> bool:
        """Whether ``name`` can be read."""

    def get(self, name: str) -> Any:
        """Value of a field of any type: what the method for its type returns."""

    def get_or_else(self, name: str, alternative: Any) -> Any:
        """Value of a field, or ``alternative`` where there is none."""

    def get_byte(self, name: str) -> int:
        """Value of an int8."""

    def get_short(self, name: str) -> int:
        """Value of an int16."""

    def get_int(self, name: str) -> int:
        """Value of an int32."""

    def get_unsigned_int(self, name: str) -> int:
        """Value of an unsigned integer."""

    def get_long(self, name: str) -> int:
        """Value of an int64."""

    def get_float64(self, name: str) -> float:
        """Value of a float64."""

    def get_string(self, name: str) -> str | None:
        """Value of a string."""

    def get_boolean(self, name: str) -> bool:
        """Value of a bool."""

    def get_uuid(self, name: str) -> str:
        """Value of a UUID as Kafka prints it: URL-safe base64, 22 characters."""

    def get_bytes(self, name: str) -> bytes | None:
        """Value of a byte field."""

    def get_records(self, name: str) -> ObservableRecords:
        """The record batches of a partition; null is none of them."""

    def get_struct(self, name: str) -> ObservableStruct | None:
        """Value of a struct; None too for a tagged one that was not sent."""

    def get_array(self, name: str) -> tuple[Any, ...] | None:
        """Elements of an array of any type."""

    def get_observable_struct_array(self, name: str) -> Sequence[ObservableStruct]:
        """Elements of an array of structs; none where it is null, which ``get`` distinguishes."""


class ObservedConnection(Protocol):
    """The client connection an exchange came over, as it was known then. Cannot be changed."""

    @property
    def id(self) -> str:
        """Unique within one run of a sidecar."""

    @property
    def listener(self) -> str:
        """Name of the listener it came in by."""

    @property
    def client_ip(self) -> str:
        """Address of the client."""

    @property
    def client_port(self) -> int:
        """Its port."""

    @property
    def opened_at(self) -> float:
        """Seconds of the monotonic clock."""

    @property
    def principal(self) -> str:
        """Who the client is: ``User:<name>``."""

    @property
    def principal_source(self) -> str:
        """``anonymous``, ``unauthenticated``, ``sasl``, ``mtls`` or ``unknown``: how the principal is known."""

    @property
    def sasl_mechanism(self) -> str | None:
        """As the client chose it."""

    @property
    def tls_version(self) -> str | None:
        """Such as ``TLSv1.3``, where the sidecar terminates TLS."""

    @property
    def tls_cipher(self) -> str | None:
        """Kafka's name of the cipher suite, likewise."""

    @property
    def tls_client_serial(self) -> str | None:
        """Serial number of the client's certificate in hexadecimal digits, likewise."""

    @property
    def client_software_name(self) -> str | None:
        """As in the client's ApiVersions request."""

    @property
    def client_software_version(self) -> str | None:
        """As in the client's ApiVersions request."""


class ObservedExchange(Protocol):
    """One request with its response. Times: seconds on a monotonic clock; sizes: whole frames, bytes."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    received_at: float
    forwarded_at: float
    responded_at: float
    answered_at: float
    request_bytes: int
    response_bytes: int
    throttle_ms: int
    error_code: int
    request_raw: bytes | None
    response_raw: bytes | None
    synthesized: bool

    @property
    def connection(self) -> ObservedConnection:
        """The connection it came over."""

    @property
    def outcome(self) -> str:
        """``answered``, ``no_response`` (acks=0) or ``connection_lost``."""

    @property
    def decode(self) -> str:
        """``none``, ``full``, ``malformed``, ``unsupported`` or ``not_kept``: how far the bodies were read."""

    @property
    def request(self) -> Any:
        """Facts of the request body, or None where it was not walked."""

    @property
    def response(self) -> Any:
        """Facts of the response body, or None where it was not walked."""

    @property
    def item_errors(self) -> Any:
        """Errors of single topics, partitions, groups, … in the response, of other apis than Produce, Fetch and
        ShareFetch, and the ACLs that DeleteAcls found (``proxy.core.exchange.ItemErrors``); None where there are
        none."""

    @property
    def resources(self) -> Any:
        """Resources, groups and committed offsets that a request of another api than Produce and Fetch names
        (``proxy.core.exchange.RequestResources``); None where it names none, or was not read."""


class ConnectionChange(Protocol):
    """What happened to a connection as a whole."""

    @property
    def connection(self) -> ObservedConnection:
        """The connection as it is known right after the change."""

    @property
    def change(self) -> str:
        """``opened``, ``authenticated``, ``authentication_failed`` or ``closed``."""

    @property
    def at(self) -> float:
        """When; seconds of the monotonic clock."""

    @property
    def cause(self) -> str:
        """Closed: why, as in the metric's label."""

    @property
    def error_code(self) -> int:
        """Failed authentication: the broker's; 0 where it only closed the connection."""

    @property
    def session_lifetime_ms(self) -> int:
        """Authenticated: how long the broker lets it last; 0 for ever."""

    @property
    def requests(self) -> int:
        """Closed: requests whose header was read."""

    @property
    def received_bytes(self) -> int:
        """Closed: from the client."""

    @property
    def sent_bytes(self) -> int:
        """Closed: handed to the client."""

    @property
    def client_id(self) -> str | None:
        """Closed: of its last request; None where it had none, or none that could be read."""


class Context(Struct, frozen=True):
    """Facts of an exchange beyond KIP-388's arguments, for methods that take a keyword ``context``.

    Times: seconds since 1970, UTC, 0.0 where it did not come to that.
    """

    broker_id: int
    listener: str
    connection_id: str
    client_port: int
    client_id: str | None
    client_software_name: str | None
    client_software_version: str | None
    principal_source: str
    outcome: str
    received_at: float
    forwarded_at: float
    responded_at: float
    answered_at: float
    request_bytes: int
    response_bytes: int
    throttle_ms: int
    error_code: int
    synthesized: bool
    """The broker never saw it: the sidecar itself answered, or closed the connection."""

    @classmethod
    def of(cls, exchange: ObservedExchange, broker_id: int, wall_offset: float) -> Context:
        """``wall_offset``: what makes the monotonic clock's seconds those since 1970."""
        connection = exchange.connection
        return cls(
            broker_id=broker_id,
            listener=connection.listener,
            connection_id=connection.id,
            client_port=connection.client_port,
            client_id=exchange.client_id,
            client_software_name=connection.client_software_name,
            client_software_version=connection.client_software_version,
            principal_source=connection.principal_source,
            outcome=exchange.outcome,
            received_at=exchange.received_at + wall_offset,
            forwarded_at=exchange.forwarded_at and exchange.forwarded_at + wall_offset,
            responded_at=exchange.responded_at and exchange.responded_at + wall_offset,
            answered_at=exchange.answered_at and exchange.answered_at + wall_offset,
            request_bytes=exchange.request_bytes,
            response_bytes=exchange.response_bytes,
            throttle_ms=exchange.throttle_ms,
            error_code=exchange.error_code,
            synthesized=exchange.synthesized,
        )


class ThrottleReport(Protocol):
    """Connections of one client address that met the same limit with the same result, within about a second."""

    @property
    def listener(self) -> str:
        """Name of the listener they came in by."""

    @property
    def address(self) -> str:
        """Address of the clients; ``*`` for addresses that are counted together."""

    @property
    def scope(self) -> str:
        """Whose limit: ``broker``, ``listener``, ``ip`` or ``principal``."""

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

    @property
    def principal(self) -> str:
        """Of the scope ``principal``: who had authenticated; ``*`` for principals that are counted together."""


@runtime_checkable
class Observer(Protocol):
    """KIP-388's interface: a request and its response are two calls with the same ``correlation_id``.

    ``record_request`` and ``record_response`` may also take a keyword ``context`` (``Context``), and ``close`` one
    ``unit``, which is always ``"s"``.
    """

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

        They are shared with other observers: do not change them. There may be none, if only a loss is reported.
        Changes and reports that were lost are in ``dropped``, too, where the class has a method for them.
        """

    def close(self, timeout: float) -> None:
        """As in ``Observer``."""


@runtime_checkable
class ConnectionObserver(Protocol):
    """An optional method in addition to those of ``Observer`` or ``ExchangeObserver``."""

    def record_changes(self, changes: Sequence[ConnectionChange], dropped: int) -> None:
        """Changes in the order they happened; ``dropped`` exchanges, changes and reports were lost before them."""


@runtime_checkable
class ThrottleObserver(Protocol):
    """An optional method in addition to those of ``Observer`` or ``ExchangeObserver``."""

    def record_throttles(self, reports: Sequence[ThrottleReport], dropped: int) -> None:
        """Reports in the order they were made; ``dropped`` exchanges, changes and reports were lost before.

        They are shared with other observers: do not change them.
        """


@runtime_checkable
class LevelObserver(Protocol):
    """An optional method in addition to those of ``Observer`` or ``ExchangeObserver``."""

    def finalized_levels(self, levels: Mapping[str, int]) -> None:
        """The levels of features (docs/features.md) in use have changed.

        ``levels``: by feature; 0: there is none that both the fleet and this release can use. Nothing is known of a
        feature that is not in it. Called before the next exchanges, changes or reports, or within 0.5 s. Of several
        sets only the latest is delivered. If the call raises, it is made again before the next exchanges.
        """
