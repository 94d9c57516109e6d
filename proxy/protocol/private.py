"""The requests that a sidecar answers besides Kafka's own, under api keys that Kafka leaves free.

Each version of each is a row of the table too: ``make check`` fails where one is declared here and is not in there.
"""

from __future__ import annotations

from typing import NamedTuple

BASE = 30000
"""Their first key; the table has them under this one, whatever ``private.api.key.base`` moves them to."""


class PrivateApi(NamedTuple):
    """Versions are inclusive."""

    name: str
    min_version: int
    max_version: int

    @property
    def versions(self) -> tuple[int, int]:
        """As ApiVersions returns them."""
        return self.min_version, self.max_version


PRIVATE: dict[int, PrivateApi] = {
    BASE: PrivateApi("BrokerMetadata", 0, 0),
    30001: PrivateApi("ClusterMetadata", 0, 1),
    30002: PrivateApi("RegisterConsumer", 0, 2),
    30010: PrivateApi("Ping", 0, 0),
    30011: PrivateApi("StopFetcher", 0, 1),
    30012: PrivateApi("StartFetcher", 0, 0),
}
"""Those after the first one exist where ``coordinator.enabled``."""

PUSHED = frozenset({30010, 30011, 30012})
"""Those that sidecars send, and consumers answer. A client that sends one is closed."""


def moved(base: int, *, coordinator: bool) -> dict[int, PrivateApi]:
    """Return them under the keys that they have where ``private.api.key.base`` is ``base``. ``coordinator``: whether
    consumer groups are coordinated here."""
    return {key - BASE + base: api for key, api in PRIVATE.items() if coordinator or key == BASE}
