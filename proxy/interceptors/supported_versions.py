"""The api keys and versions that the clients of a listener may use: what the upstream supports and what the sidecar
answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from proxy.core.apis import API_VERSIONS
from proxy.protocol.versions import floored

VersionRange = tuple[int, int]
"""The first and the last version of an api."""


class SupportedVersions:
    """The supported apis of one listener.

    ``private``: the apis that the sidecar answers itself. ``max_version(api_key)``: the last version that may pass on
    this listener, whatever the upstream supports; None for any. ``ranges``: the upstream's last answer; None before the
    first one, when everything counts as supported.
    """

    def __init__(
        self, private: Mapping[int, VersionRange], max_version: Callable[[int], int | None] = lambda api_key: None
    ) -> None:
        self.ranges: Mapping[int, VersionRange] | None = None
        self._effective_ranges: Mapping[int, VersionRange] = {}
        self.private = private
        self._max_version = max_version

    def update(self, ranges: Mapping[int, VersionRange]) -> bool:
        """Set the upstream's apis, from an ApiVersions response. Returns whether they have changed."""
        if ranges is self.ranges:
            return False
        if ranges == self.ranges:
            self.ranges = ranges  # mostly the one that comes next, too
            return False
        self.ranges, self._effective_ranges = ranges, floored(ranges)
        return True

    def restrict(self, api_key: int, versions: VersionRange) -> VersionRange | None:
        """Return the part of ``versions`` that may pass; None if none may."""
        max_version = self._max_version(api_key)
        if max_version is None or versions[1] <= max_version:
            return versions
        return (versions[0], max_version) if versions[0] <= max_version else None

    def supports(self, api_key: int, api_version: int) -> bool:
        """Return whether a request of this version may be sent. ApiVersions always may: the broker answers every
        version."""
        if api_key == API_VERSIONS:
            return True
        if self.ranges is None and api_key not in self.private:
            return True
        return (found := self._usable_range(api_key)) is not None and found[0] <= api_version <= found[1]

    def _usable_range(self, api_key: int) -> VersionRange | None:
        if api_key in self.private:
            return self.private[api_key]
        found = self._effective_ranges.get(api_key)
        return None if found is None else self.restrict(api_key, found)
