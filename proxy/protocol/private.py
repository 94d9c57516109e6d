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
    30000: PrivateApi("BrokerMetadata", 0, 0),
}


def moved(base: int) -> dict[int, PrivateApi]:
    """Return them under the keys that they have where ``private.api.key.base`` is ``base``."""
    return {key - BASE + base: api for key, api in PRIVATE.items()}
