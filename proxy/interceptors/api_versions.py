"""Reads the upstream's ApiVersions response, to learn what it supports, and adds what the sidecar itself supports.

The list of apis is changed, and the tagged fields with features if the sidecar has any. All other bytes, including
unknown tagged fields, stay as the broker sent them. Source: ApiVersionsResponse.json, versions 0 to 5.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Mapping

from proxy.core.apis import API_VERSIONS
from proxy.core.interceptor import REWRITE, Interceptor
from proxy.core.wire import TRUNCATED, DecodeError, compact_length, int32_length, skip_tags, uvarint_bytes
from proxy.features.view import FeaturesDirectory
from proxy.interceptors.feature_tags import add_features
from proxy.interceptors.supported_versions import SupportedVersions, VersionRange

FIRST_FLEXIBLE_VERSION = 3
"""The first version with varint lengths, and with tagged fields at the end of each entry and of the response."""

MAX_KNOWN_VERSION = 5
"""The newest version that can be parsed. A response of a later version is not changed."""

PROBE_VERSION = 0
"""The version of the sidecar's own requests. Every broker since 0.10 answers it."""

_int16 = struct.Struct(">h")
_int32 = struct.Struct(">i")
_entry = struct.Struct(">hhh")

ApiEntry = tuple[int, VersionRange, bytes]
"""One api: its key, its versions, and its encoded tagged fields with their count."""


class ApiVersionsInterceptor(Interceptor):
    """Rewrites the ApiVersions responses of one listener. ``on_versions`` is called with the apis of each response that
    differs from the last one, and now and then of those that do not."""

    rewrites_alike = True  # with the same features

    def __init__(
        self,
        supported: SupportedVersions,
        features: FeaturesDirectory,
        on_versions: Callable[[Mapping[int, VersionRange]], None],
    ) -> None:
        self._supported = supported
        self._features = features
        self._on_versions = on_versions
        self._cache: dict[int, tuple[bytes, bytes, Mapping[int, VersionRange]]] = {}
        # by version: the broker's bytes up to the end of the list, their replacement, and the apis

    def clear_cache(self) -> None:
        """Drop rewritten responses, since other versions may pass now."""
        self._cache.clear()

    def flags(self, api_key: int, api_version: int) -> int:
        """The responses of all known versions."""
        return REWRITE if api_key == API_VERSIONS and 0 <= api_version <= MAX_KNOWN_VERSION else 0

    def rewrite(self, api_key: int, api_version: int, body: bytes) -> bytes:
        """Add the sidecar's own apis and features, and restrict the other apis to the versions that may pass.

        A response with an error has no list of apis. If the broker does not know the request's version (error 35), the
        response has the form of version 0.
        """
        view = self._features.view
        if _int16.unpack_from(body)[0]:
            return body
        cached = self._cache.get(api_version)
        if cached is None or not body.startswith(cached[0]):  # the list rarely changes
            cached = self._cache[api_version] = self._rewrite(api_version, body)
        sent, rewritten, ranges = cached
        end = body[len(sent) :]
        if api_version >= FIRST_FLEXIBLE_VERSION and view.supported:
            # Clients of a broker whose end cannot be read connect as they do without features.
            with contextlib.suppress(*TRUNCATED, DecodeError):
                end = add_features(end, view)
        self._on_versions(ranges)
        return rewritten + end

    def _rewrite(self, api_version: int, body: bytes) -> tuple[bytes, bytes, Mapping[int, VersionRange]]:
        entries, end = read_entries(body, api_version)
        compact = api_version >= FIRST_FLEXIBLE_VERSION
        private = self._supported.private
        rewritten = []
        for key, versions, tags in entries:
            allowed = self._supported.restrict(key, versions)
            if allowed is not None and key not in private:
                rewritten.append(_entry.pack(key, *allowed) + tags)
        rewritten += [_entry.pack(key, *versions) + (b"\0" if compact else b"") for key, versions in private.items()]
        count = uvarint_bytes(len(rewritten) + 1) if compact else _int32.pack(len(rewritten))
        return body[:end], b"".join([body[:2], count, *rewritten]), {key: versions for key, versions, _ in entries}


def decode_api_versions(body: bytes) -> Mapping[int, VersionRange]:
    """Return the apis of a response of ``PROBE_VERSION``.

    Raises ValueError for a response with an error, and one of ``TRUNCATED`` or PeerError for malformed bytes.
    """
    if error := _int16.unpack_from(body)[0]:
        raise ValueError(f"error {error}")
    return {key: versions for key, versions, _ in read_entries(body, PROBE_VERSION)[0]}


def read_entries(body: bytes, api_version: int) -> tuple[list[ApiEntry], int]:
    """Return all apis of a response without an error, and the offset after them."""
    compact = api_version >= FIRST_FLEXIBLE_VERSION
    count, pos = (compact_length if compact else int32_length)(body, 2)
    if count < 1:
        raise DecodeError(f"{count} apis")  # a broker that answers supports at least ApiVersions
    entries = []
    for _ in range(count):
        key, first, last = _entry.unpack_from(body, pos)
        tags = pos + _entry.size
        pos = skip_tags(body, tags) if compact else tags
        entries.append((key, (first, last), body[tags:pos]))
    return entries, pos
