"""Which address a consumer tries next, to find its coordinator or to go back to it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from proxy.config.values import Endpoint


class CoordinatorAddresses:
    """The bootstrap brokers in turn; while partitions are held, every other attempt is to the last coordinator."""

    def __init__(self, bootstrap_brokers: Sequence[Endpoint]) -> None:
        self._brokers = bootstrap_brokers
        self._next_broker = 0
        self._goes_back = False
        self.coordinator: Endpoint | None = None
        """Where the consumer was last registered."""

    def registered(self, address: Endpoint | None) -> None:
        """The consumer is registered at this address."""
        self.coordinator, self._goes_back = address, False

    def coordinator_lost(self) -> None:
        """Its connection has ended: the next attempt is to the same address, if partitions are held."""
        self._goes_back = True

    def known_coordinator(self, *, is_held: bool) -> Endpoint | None:
        """Return the last coordinator if the next attempt is to register there at once; None: it is to seek."""
        goes_back = is_held and self._goes_back and self.coordinator is not None
        self._goes_back = is_held and not goes_back
        return self.coordinator if goes_back else None

    def next_broker(self) -> Endpoint:
        """Return who is to be asked for the coordinator."""
        self._next_broker += 1
        return self._brokers[(self._next_broker - 1) % len(self._brokers)]
