"""Descriptors of the process: how many are open, and how many of them connections may have."""

from __future__ import annotations

import resource

from proxy.config import Config
from proxy.telemetry.snapshot import open_descriptors, reported_descriptors

RESERVED_DESCRIPTORS = 64
"""Descriptors that listeners leave free, of a quarter of the limit at most. They are for the admin endpoint, for files,
for the sidecar's own connections, and for extra attempts to connect to the broker. What the sidecar opens leaves less
for connections, so that all of them are free again once some of these have ended."""

DESCRIPTORS_PER_PARTITION = 16
"""Descriptors of librdkafka's clients for each partition of groups, in a cluster of one broker. The coordinator has
them, and so many are left free in addition: it may open all partitions at any time, and while its writers of before
have not ended, since Kafka does not answer."""

DESCRIPTORS_PER_CONNECTION = 2
"""One for the client and one for the broker."""


def descriptors_of_groups(config: Config) -> int:
    """Return how many descriptors the coordinator of all groups takes."""
    return DESCRIPTORS_PER_PARTITION * config.coordinator.partitions if config.coordinator.enabled else 0


def usable_descriptors(config: Config) -> int:
    """Return the descriptor limit of this process without those that listeners leave free."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit - min(RESERVED_DESCRIPTORS + descriptors_of_groups(config), limit // 4)


class OpenDescriptors:
    """Counts them, cheaply enough for each accept. Exact since Linux 6.2, where the kernel reports the number.

    Before, they have to be listed, which is slow where they are many: until the next list each accepted connection
    counts as both of its descriptors, and as open.
    """

    def __init__(self) -> None:
        self._listed: int | None = None
        self._accepted = 0

    def connection_accepted(self) -> None:
        """One more connection was accepted."""
        self._accepted += 1

    def count(self, limit: int) -> int:
        """Return the number. Before Linux 6.2 one below ``limit`` may be too high, and lacks what the process has
        opened since the last list for other things than connections."""
        if reported := reported_descriptors():
            return reported
        if self._listed is not None:
            most = self._listed + DESCRIPTORS_PER_CONNECTION * self._accepted
            if most < limit:
                return most
        self._listed, self._accepted = open_descriptors(), 0
        return self._listed
