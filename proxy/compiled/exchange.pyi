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
    ) -> None: ...
    @property
    def outcome(self) -> Outcome: ...
    @property
    def decode(self) -> Decode: ...
    @property
    def request(self) -> RequestFacts | None: ...
    @property
    def response(self) -> ResponseFacts | None: ...
