from proxy.core.exchange import Connection, Decode, Outcome, RequestFacts, ResponseFacts

OUTCOMES: tuple[Outcome, ...]
DECODES: tuple[Decode, ...]

class Exchange:
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
    ) -> None: ...
    @property
    def outcome(self) -> Outcome: ...
    @property
    def decode(self) -> Decode: ...
    @property
    def request(self) -> RequestFacts | None: ...
    @property
    def response(self) -> ResponseFacts | None: ...
