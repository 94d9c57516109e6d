"""Rates of addresses in the cluster that would throttle the sidecar itself, and what keeps them from it (KIP-612).

The broker sees every client of a sidecar come from one address, the one the sidecar dials from, and applies quotas of
addresses on all of its listeners. So:

* The sidecar stores a quota of 2147483647, Kafka's "no limit", for each address it dials from: once after its start, so
  that no default quota to come hits it, and whenever there is a default quota without it. This sidecar does not take
  it over for clients that really come from this address: to them the default applies. To all other sidecars that do
  not dial from it, it is what an operator might have stored, and clients from there have no limit.
* Where an operator has stored a lower quota for that very address, it is theirs: it is never overwritten. Clients that
  come from it get it, and the broker goes on to limit the sidecar by it, so this is a problem; it ends where the
  sidecar dials from an address of its own (``upstream.source``).
* Nothing is taken back: another sidecar may dial from the same address, or an operator have meant it. What a sidecar
  leaves behind whose address changes, only a person can tell and delete (docs/limits.md).

A problem keeps a sidecar that has just started from being ready, so that a rollout stops there. One that has been ready
goes on and only says so: its clients are worse off when every sidecar leaves the load balancer at once, because of a
quota somebody stored, than when they are throttled.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from proxy.limits.model import DEFAULT_ADDRESS, UNLIMITED


@dataclass(frozen=True)
class Exposure:
    """What the stored quotas mean for the addresses the sidecar dials from."""

    missing: tuple[str, ...]
    """Those without a quota of their own."""
    by_default: bool
    """Whether the cluster has a default quota, which limits these."""
    limited: Mapping[str, int]
    """Those with a quota of their own that is a limit."""

    def problem(self, failure: str | None) -> str | None:
        """Return what is wrong, in one sentence; None if nothing is. ``failure``: why ``missing`` cannot be mended."""
        if self.limited:
            address, rate = next(iter(self.limited.items()))
            return (
                f"the cluster's quota of {rate} connections/s for {address} also limits this sidecar, which dials the "
                "broker from there; set listeners[].upstream.source to an address of its own"
            )
        if self.missing and self.by_default and failure is not None:
            return (
                "the cluster's default quota of addresses also limits this sidecar, and the override for "
                f"{', '.join(self.missing)} cannot be stored: {failure}"
            )
        return None


def exposure(stored: Mapping[str, int], sources: Collection[str]) -> Exposure:
    """Compare ``stored`` rates by address with the addresses the sidecar dials from."""
    by_default = stored.get(DEFAULT_ADDRESS, UNLIMITED) < UNLIMITED
    return Exposure(
        tuple(sorted(source for source in sources if source not in stored)),
        by_default,
        {source: stored[source] for source in sorted(sources) if stored.get(source, UNLIMITED) < UNLIMITED},
    )


def for_clients(stored: Mapping[str, int], sources: Collection[str]) -> Mapping[str, int]:
    """Return the rates without the overrides that only protect the sidecar."""
    ours = [source for source in sources if stored.get(source) == UNLIMITED]
    if not ours:
        return stored
    rates = dict(stored)
    for source in ours:
        del rates[source]
    return rates
