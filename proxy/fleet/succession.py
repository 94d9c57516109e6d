"""A successor's place in the registry: it registers once its predecessor does not any more, and for both of them.

Both are the sidecar of one broker, so they have one record. If both wrote it, whoever reads the registry would see the
levels of the one and of the other in turns, and a change of levels would count as applied when one of them follows it.
"""

from __future__ import annotations

import asyncio

from proxy.fleet.applied_epoch import Applied
from proxy.fleet.feature_poller import FeaturePoller
from proxy.fleet.fleet_poller import FleetPoller

REGISTER_WITHIN = 5.0
"""Seconds after the takeover until the successor registers even if the predecessor hangs: without a record of either
the sidecar would be found gone after 9 seconds."""


class Succession:
    """What a successor does with what it hears of its predecessor. ``features``: None where it keeps none."""

    def __init__(self, fleet: FleetPoller, features: FeaturePoller | None) -> None:
        self._fleet = fleet
        self._features = features
        self._registered = False

    def predecessor_applies(self, epoch: int, undelivered_above: int) -> None:
        """The predecessor does not register any more, and has applied this."""
        self._register()
        if self._features is not None:
            self._features.predecessor_applies(Applied(epoch, undelivered_above))

    def predecessor_ended(self) -> None:
        """The predecessor has ended. May be called more than once."""
        self._register()
        if self._features is not None:
            self._features.predecessor_ended()

    def took_over(self, *, has_ended: bool) -> None:
        """This process serves clients. ``has_ended``: the predecessor does not run any more."""
        if has_ended:
            self.predecessor_ended()
        else:
            asyncio.get_running_loop().call_later(REGISTER_WITHIN, self._register)

    def _register(self) -> None:
        if not self._registered:
            self._registered = True
            self._fleet.register()
