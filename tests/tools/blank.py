"""The emptiest valid request of any api: nulls, arrays of nothing, numbers of zero."""

from __future__ import annotations

from proxy.core.apis import request_is_flexible
from proxy.core.encode import encode
from proxy.core.schema import layout


def blank(key: int, version: int) -> bytes:
    """The request after its client id; that of a Produce asks for an answer."""
    tags = b"\0" if request_is_flexible(key, version) else b""
    return tags + encode(layout(key, version, response=False), {"Acks": 1})
