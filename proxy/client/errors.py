"""Errors of the clients."""

from __future__ import annotations

from proxy.errors import BrokersideError


class UnsupportedRequestError(BrokersideError):
    """The other end has answered, and does not have this api, or not this version of it."""

    def __init__(self, api: str, api_version: int) -> None:
        super().__init__(f"Request not supported by server: {api} v{api_version}")


class BrokerIdMismatch(BrokersideError):
    """The broker at this address is not the one that was expected: wrong wiring, or an address that has moved."""

    def __init__(self, expected: int, got: int) -> None:
        self.expected = expected
        self.got = got
        super().__init__(f"broker id mismatch: expected {expected}, got {got}")
