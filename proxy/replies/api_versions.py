"""The upstream's ApiVersions response: read, to know what it supports, and told of what the sidecar answers itself.

Only the list of apis is touched. Every other byte, tagged fields of the future included, stays as the broker sent it.
Source: ApiVersionsResponse.json, versions 0 to 5.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

from proxy.core.apis import API_VERSIONS
from proxy.core.intercept import EDITED, Interceptor
from proxy.core.wire import Nonsense, compact_length, int32_length, skip_tags, uvarint_bytes
from proxy.replies.upstream import Supported, Versions

COMPACT_SINCE = 3
"""From this version on, lengths are varints and each entry ends in tagged fields."""

LAST = 5
"""The newest version that is understood; a response of a later one stays as it is."""

REQUEST = 0
"""The version in which the sidecar itself asks: every broker since 0.10 answers it."""

_int16 = struct.Struct(">h")
_int32 = struct.Struct(">i")
_entry = struct.Struct(">hhh")

Entry = tuple[int, Versions, bytes]
"""One api: its key, its versions, and its tagged fields, with their count."""


class ApiVersions(Interceptor):
    """Of one listener. ``learnt`` is called with what each response says."""

    def __init__(self, supported: Supported, learnt: Callable[[Mapping[int, Versions]], None]) -> None:
        self._supported = supported
        self._learnt = learnt
        self._seen: dict[int, tuple[bytes, bytes, Mapping[int, Versions]]] = {}
        # by version, up to the end of the list: as the broker sent it last, as it is told, and what it says

    def forget(self) -> None:
        """What may pass has changed."""
        self._seen.clear()

    def wants(self, api_key: int, api_version: int) -> int:
        """The responses of all versions that are known."""
        return EDITED if api_key == API_VERSIONS and 0 <= api_version <= LAST else 0

    def edit(self, api_key: int, api_version: int, body: bytes) -> bytes:
        """Name what the sidecar answers, and no version that may not pass here.

        An error says nothing of what is supported. That of a version the broker does not know (35) has the form of v0,
        whatever the client asked in.
        """
        if _int16.unpack_from(body)[0]:
            return body
        seen = self._seen.get(api_version)
        if seen is None or not body.startswith(seen[0]):  # most connections get the same list
            seen = self._seen[api_version] = self._told(api_version, body)
        sent, told, ranges = seen
        self._learnt(ranges)
        return told + body[len(sent) :]

    def _told(self, api_version: int, body: bytes) -> tuple[bytes, bytes, Mapping[int, Versions]]:
        entries, end = _entries(body, api_version)
        compact = api_version >= COMPACT_SINCE
        private = self._supported.private
        told = []
        for key, versions, tags in entries:
            allowed = self._supported.allowed(key, versions)
            if allowed is not None and key not in private:
                told.append(_entry.pack(key, *allowed) + tags)
        told += [_entry.pack(key, *versions) + (b"\0" if compact else b"") for key, versions in private.items()]
        count = uvarint_bytes(len(told) + 1) if compact else _int32.pack(len(told))
        return body[:end], b"".join([body[:2], count, *told]), {key: versions for key, versions, _ in entries}


def supported_by(body: bytes) -> Mapping[int, Versions]:
    """What an ApiVersions response of version ``REQUEST`` says.

    Raises ValueError where it says that it cannot tell, and one of ``TRUNCATED`` or PeerError for other bytes.
    """
    if error := _int16.unpack_from(body)[0]:
        raise ValueError(f"error {error}")
    return {key: versions for key, versions, _ in _entries(body, REQUEST)[0]}


def _entries(body: bytes, api_version: int) -> tuple[list[Entry], int]:
    """All apis of a response without an error, and where the list of them ends."""
    compact = api_version >= COMPACT_SINCE
    count, pos = (compact_length if compact else int32_length)(body, 2)
    if count < 1:
        raise Nonsense(f"{count} apis")  # it has answered this one
    entries = []
    for _ in range(count):
        key, first, last = _entry.unpack_from(body, pos)
        tags = pos + _entry.size
        pos = skip_tags(body, tags) if compact else tags
        entries.append((key, (first, last), body[tags:pos]))
    return entries, pos
