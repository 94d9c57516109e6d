"""Refuses changes of quotas by IP address that the sidecar does not apply: with ``quotas.ip.store: file``.

Without this, Kafka's tool reports success, and no limit changes.

A request is read in bounded time: its bytes are searched, and only one that may alter the quota of an address is read.
Source: AlterClientQuotasRequest.json and AlterClientQuotasResponse.json, versions 0 and 1.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType

from proxy.core.apis import ALTER_CLIENT_QUOTAS, is_known
from proxy.core.interceptor import ON_BODY, Disposition, Interceptor, Request, Verdict
from proxy.core.wire import TRUNCATED, compact_length, compact_string, int32_length, string, uvarint_bytes
from proxy.errors import MalformedBody

POLICY_VIOLATION = 44

MAX_READ = 200
"""Entries, entities and settings of the longest request that is read and answered: up to 0.3 ms of the event loop."""

IP = b"ip"
"""Kafka's entity type of a quota by IP address."""

IP_ENCODED: Mapping[int, tuple[bytes, ...]] = MappingProxyType(
    {0: (b"\0\2ip",), 1: (b"\3ip", b"\x83\0ip", b"\x80\0ip")}
)
"""``IP`` after its length, or the end of it, by version: a varint may have more bytes than it needs."""

VALUE_AND_REMOVE = 9
"""Bytes of these two fields of a setting."""

NOT_THROTTLED = bytes(4)
"""``ThrottleTimeMs`` of a response."""

IP_MESSAGE = "This sidecar takes the quotas of IP addresses from its configuration: quotas.ips (ip.store is file)."
OTHER_MESSAGE = "Not altered: the same request alters quotas of IP addresses, which this sidecar refuses."

Entry = tuple[bool, bytes]
"""Whether the entry of a request has an entity of type ``ip``, and its encoded entities."""


class IpQuotas(Interceptor):
    """Refuses AlterClientQuotas as a whole if it has an entity of type ``ip``, while ``in_file``.

    After ``in_file`` has changed, the chain has to be updated.
    """

    on_error = Disposition.CLOSE

    def __init__(self, *, in_file: bool) -> None:
        """``in_file``: the quotas of IP addresses are in the sidecar's configuration only."""
        self.in_file = in_file

    def flags(self, api_key: int, api_version: int) -> int:
        """All known versions of AlterClientQuotas."""
        return ON_BODY if self.in_file and api_key == ALTER_CLIENT_QUOTAS and is_known(api_key, api_version) else 0

    def on_body(self, request: Request, body: bytes) -> Verdict:
        """Answer a request that alters the quota of an address; forward all others. Raises MalformedBody.

        That of an unauthenticated client is forwarded, and the broker closes the connection. One that may alter such a
        quota and has more than ``MAX_READ`` parts, or tagged fields, which no version has, closes the connection.
        """
        if request.connection.principal_source == "unauthenticated":
            return Disposition.FORWARD
        if not any(encoded in body for encoded in IP_ENCODED[request.api_version]):
            return Disposition.FORWARD
        try:
            entries = _read_entries(body, flexible=request.api_version > 0)
        except TRUNCATED:
            raise MalformedBody("client", "a body that ends too early") from None
        if entries is None:
            return Disposition.CLOSE
        if not any(of_address for of_address, _ in entries):
            return Disposition.FORWARD
        return _encode_response(entries, flexible=request.api_version > 0)


def _read_entries(body: bytes, *, flexible: bool) -> list[Entry] | None:
    """Return the entries of a request; None if it has too many parts, or tagged fields.

    Raises one of ``TRUNCATED`` or DecodeError for malformed bytes.
    """
    length, text = (compact_length, compact_string) if flexible else (int32_length, string)
    entries, pos = length(body, 0)
    left, found = MAX_READ - entries, []
    if left < 0:
        return None
    for _ in range(entries):
        start, of_address = pos, False
        entities, pos = length(body, pos)
        left -= entities
        if left < 0:
            return None
        for _ in range(entities):
            kind, pos = text(body, pos)
            of_address |= kind == IP
            _, pos = text(body, pos)
            if flexible and body[pos]:
                return None
            pos += flexible
        found.append((of_address, body[start:pos]))
        settings, pos = length(body, pos)
        left -= settings
        if left < 0:
            return None
        for _ in range(settings):
            _, pos = text(body, pos)
            pos += VALUE_AND_REMOVE
            if flexible and body[pos]:
                return None
            pos += flexible
        if flexible and body[pos]:
            return None
        pos += flexible
    if pos >= len(body):  # ValidateOnly
        raise IndexError
    return found


def _encode_response(entries: list[Entry], *, flexible: bool) -> bytes:
    """Return what follows the correlation id in a response: Kafka answers each entry with its entities, as they are."""
    tags = b"\0" if flexible else b""

    def length(count: int, width: str) -> bytes:
        return uvarint_bytes(count + 1) if flexible else struct.pack(width, count)

    refusals = {
        of_address: struct.pack(">h", POLICY_VIOLATION) + length(len(message), ">h") + message.encode()
        for of_address, message in ((True, IP_MESSAGE), (False, OTHER_MESSAGE))
    }
    answered = b"".join(refusals[of_address] + entities + tags for of_address, entities in entries)
    return tags + NOT_THROTTLED + length(len(entries), ">i") + answered + tags
