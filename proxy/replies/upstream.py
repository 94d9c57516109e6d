"""Which api keys and versions a listener's clients may use: what the upstream says, and what the sidecar answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from proxy.core.apis import API_VERSIONS
from proxy.protocol.versions import floored

Versions = tuple[int, int]
"""The first and the last version of an api."""


class Supported:
    """Of one listener. ``private``: the apis that the sidecar answers itself; ``newest``: the last version of an api
    that may pass here, whatever the upstream says, or None for any.

    ``ranges``: as the upstream said last; None before it has said anything, and then it is taken to support all.
    """

    def __init__(
        self, private: Mapping[int, Versions], newest: Callable[[int], int | None] = lambda api_key: None
    ) -> None:
        self.ranges: Mapping[int, Versions] | None = None
        self._taken: Mapping[int, Versions] = {}
        self.private = private
        self._newest = newest

    def learn(self, ranges: Mapping[int, Versions]) -> bool:
        """Take what an ApiVersions response says. Returns whether anything has changed."""
        if ranges == self.ranges:
            return False
        self.ranges, self._taken = ranges, floored(ranges)
        return True

    def allowed(self, api_key: int, versions: Versions) -> Versions | None:
        """Of ``versions``, those that may pass here; None where none may."""
        newest = self._newest(api_key)
        if newest is None or versions[1] <= newest:
            return versions
        return (versions[0], newest) if versions[0] <= newest else None

    def has(self, api_key: int, api_version: int) -> bool:
        """Whether a request of this version may be sent. Of ApiVersions always: the broker answers it in any case."""
        if api_key == API_VERSIONS:
            return True
        if self.ranges is None and api_key not in self.private:
            return True
        return (found := self._usable(api_key)) is not None and found[0] <= api_version <= found[1]

    def _usable(self, api_key: int) -> Versions | None:
        if api_key in self.private:
            return self.private[api_key]
        found = self._taken.get(api_key)
        return None if found is None else self.allowed(api_key, found)
