"""The sidecar's exemption from quotas of addresses (KIP-612) that are meant for clients.

The broker sees every client of a sidecar come from one address, the one the sidecar connects from. It applies quotas of
addresses on all of its listeners. Therefore:

* The sidecar stores a quota of 2147483647, Kafka's "no limit", for each address it connects from: once after its
  start, so that no later default quota limits it, and whenever there is a default quota without it. This sidecar does
  not apply it to clients that come from this address: the default applies to them. Other sidecars, which do not
  connect from it, cannot distinguish it from an operator's quota, and do not limit clients from there.
* A lower quota that an operator has stored for that address is never overwritten. It limits clients that come from it,
  and the broker limits the sidecar by it. This is reported as a problem until the sidecar connects from an address of
  its own (``upstream.source``).
* No quota is ever deleted: another sidecar may connect from the same address, or an operator may have stored it. When a
  sidecar's address changes, a person has to delete the old quota (docs/limits.md).

A problem keeps a sidecar that has just started from being ready, so that a rollout stops. A sidecar that has been ready
stays ready and reports the problem: throttled clients are better off than clients whose sidecars all leave the load
balancer at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from proxy.limits.model import DEFAULT_ADDRESS, UNLIMITED


@dataclass(frozen=True)
class Exposure:
    """How the stored quotas limit the addresses that the sidecar connects from."""

    missing: tuple[str, ...]
    """Addresses without a quota of their own."""
    by_default: bool
    """Whether the cluster has a default quota, which limits the addresses in ``missing``."""
    limited: Mapping[str, int]
    """Rates of the addresses whose own quota is a limit."""

    def problem(self, failure: str | None) -> str | None:
        """Return what is wrong, in one sentence; None if nothing is.

        ``failure``: why quotas for ``missing`` cannot be stored; None if they can.
        """
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


def find_exposure(stored: Mapping[str, int], sources: Collection[str]) -> Exposure:
    """Compare ``stored`` rates by address with ``sources``, the addresses that the sidecar connects from."""
    by_default = stored.get(DEFAULT_ADDRESS, UNLIMITED) < UNLIMITED
    return Exposure(
        tuple(sorted(source for source in sources if source not in stored)),
        by_default,
        {source: stored[source] for source in sorted(sources) if stored.get(source, UNLIMITED) < UNLIMITED},
    )


def without_exemptions(stored: Mapping[str, int], sources: Collection[str]) -> Mapping[str, int]:
    """Return the rates without those that only exempt the sidecar."""
    ours = [source for source in sources if stored.get(source) == UNLIMITED]
    if not ours:
        return stored
    rates = dict(stored)
    for source in ours:
        del rates[source]
    return rates
