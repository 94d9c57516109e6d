"""One request and its response, as the session of this folder emits it."""

from __future__ import annotations

from msgspec import Struct

from proxy.core.exchange import Connection, Decode, ItemErrors, Outcome, RequestFacts, RequestResources, ResponseFacts


class Exchange(Struct, gc=False):
    """Fields as those of ``proxy.compiled.exchange.Exchange``."""

    connection: Connection
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    received_at: float
    request_bytes: int
    answered_at: float = 0.0
    response_bytes: int = 0
    outcome: Outcome = "open"
    decode: Decode = "none"
    request: RequestFacts | None = None
    response: ResponseFacts | None = None
    forwarded_at: float = 0.0
    responded_at: float = 0.0
    throttle_ms: int = 0
    error_code: int = 0
    request_raw: bytes | None = None
    response_raw: bytes | None = None
    synthesized: bool = False
    charged: int = 0
    item_errors: ItemErrors | None = None
    resources: RequestResources | None = None
