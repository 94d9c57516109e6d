from enum import IntEnum

from proxy.core.exchange import Connection, Decode, ItemErrors, Outcome, RequestFacts, RequestResources, ResponseFacts

OUTCOMES: tuple[Outcome, ...]
DECODES: tuple[Decode, ...]
FIELDS: tuple[str, ...]
"""Names of an exchange's fields, in the order in which it takes them."""

class Kind(IntEnum):
    """Which message a body is of."""

    NO_WALKER = -1
    PRODUCE_REQUEST = 0
    PRODUCE_RESPONSE = 1
    FETCH_REQUEST = 2
    FETCH_RESPONSE = 3
    SHARE_FETCH_REQUEST = 4
    SHARE_FETCH_RESPONSE = 5
    RESPONSE_ERRORS = 6
    REQUEST_RESOURCES = 7

class OutcomeCode(IntEnum):
    """``Exchange.outcome`` as a number."""

    OPEN = 0
    ANSWERED = 1
    NO_RESPONSE = 2
    CONNECTION_LOST = 3

class DecodeCode(IntEnum):
    """``Exchange.decode`` as a number."""

    NONE = 0
    FULL = 1
    MALFORMED = 2
    UNSUPPORTED = 3
    NOT_KEPT = 4

class Exchange:
    """One request and its response. Times are seconds of the loop's monotonic clock; sizes are whole frames in bytes.

    ``received_at``: last byte of the request came in. ``forwarded_at``: it was handed to the broker's socket.
    ``responded_at``: last byte of the response came in. ``answered_at``: it was handed to the client's socket. Each is
    0.0 before that. ``request_bytes`` and ``response_bytes`` include the 4-byte size prefix; ``response_bytes`` is 0
    where no response came. ``throttle_ms``, ``error_code``: of the response, where they stand at a fixed place near its
    start; else 0, and Produce and Fetch have them in their facts. ``request_raw``, ``response_raw``: the body after the
    header, where an observer asked for it and it was not too long. ``request``, ``response``: facts of the bodies where
    they were read, made when they are first asked for. ``item_errors``: errors of single items of any other response;
    None where there are none, or it was not read. ``resources``: what a request of any other api names; None likewise.

    ``connection``: as it was known when the last byte of the request came in.

    ``synthesized``: the broker never saw it, for the sidecar itself gave the answer, or ended the connection.
    ``response_bytes`` are always what the client got; all other facts of a response that was edited on its way are
    as the broker sent it.

    ``charged``: bytes that it takes of the process's budget; 0 once it is recorded. ``wanted``: flags of
    ``proxy.core.observation_interest``; 0: nobody observes it. ``next``: the request after it in its session.

    Two are equal where all of this is; an exchange has no hash.
    """

    connection: Connection
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    received_at: float
    request_bytes: int
    answered_at: float
    response_bytes: int
    forwarded_at: float
    responded_at: float
    throttle_ms: int
    error_code: int
    request_raw: bytes | None
    response_raw: bytes | None
    item_errors: ItemErrors | None
    resources: RequestResources | None
    synthesized: bool
    charged: int
    wanted: int
    next: Exchange | None
    outcome_code: OutcomeCode
    decode_code: DecodeCode

    def __init__(
        self,
        connection: Connection,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        received_at: float,
        request_bytes: int,
        answered_at: float = 0.0,
        response_bytes: int = 0,
        outcome: Outcome = "open",
        decode: Decode = "none",
        request: RequestFacts | None = None,
        response: ResponseFacts | None = None,
        forwarded_at: float = 0.0,
        responded_at: float = 0.0,
        throttle_ms: int = 0,
        error_code: int = 0,
        request_raw: bytes | None = None,
        response_raw: bytes | None = None,
        synthesized: bool = False,
        charged: int = 0,
        item_errors: ItemErrors | None = None,
        resources: RequestResources | None = None,
    ) -> None: ...
    @property
    def outcome(self) -> Outcome: ...
    @property
    def decode(self) -> Decode: ...
    @property
    def request(self) -> RequestFacts | None: ...
    @property
    def response(self) -> ResponseFacts | None: ...
    def drop_facts(self, response: bool) -> int:
        """Forget the facts of its response, or of its request."""

def new_exchange(
    connection: Connection,
    client_id: str | None,
    api_key: int,
    api_version: int,
    correlation_id: int,
    received_at: float,
    request_bytes: int,
) -> Exchange:
    """Make an open one: what ``Exchange`` does, without its checks."""
