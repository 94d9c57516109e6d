"""What is promised, and whether it holds: checks of what clients, attackers and the watched sidecar have found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

MAX_SLOWDOWN = 5.0
"""99th percentile of small honest requests during the attack, in multiples of that before it, or of what the broker
itself takes at the same time while it does not stand still: everything shares a few processors, and some attacks reach
the broker as they may."""

FLOOR_MS = 1.0
"""Milliseconds below which the quiet percentile is taken for this much: less than a scheduler's own turns."""

STALL = 0.1
"""Seconds from which a request past the sidecar shows that the broker itself stands still: all clients wait then."""

MAX_COMMIT = 10.0
"""Seconds without a commit after which a coordinator gives its groups up: ``coordinator.state.write.timeout.ms``, and
``proxy.fleet.group_partitions.MUTE_SECONDS``."""

SESSION_TIMEOUT = 20.0
"""Seconds, of the honest consumers: all processes share a few processors, and attackers may keep these for seconds.
So late may a slow commit take effect: a coordinator is given up before it ends, and its consumers keep what they have
for 0.95 of this time after they last heard it (``proxy.coordinator.lease.consumer_lease_ends``)."""

MAX_PROBE = 1.0
"""Seconds that the sidecar has to answer ``/livez``, without those in which the kernel gave it no processor."""


class Check(NamedTuple):
    """One promise: what was found, and whether it holds."""

    what: str
    found: str
    ok: bool


class Probe(NamedTuple):
    """One ``/livez``: seconds until it was answered, seconds of these in which the sidecar's main thread could run and
    had no processor (``/proc/PID/schedstat``), and why there was no answer."""

    took: float
    waited: float
    error: str = ""

    @property
    def own(self) -> float:
        return max(0.0, self.took - self.waited)


def livez(probes: Sequence[Probe]) -> Iterator[Check]:
    """Check that each was answered in time. A thread that waits for a processor can do nothing about it."""
    kept = [probe for probe in probes if not probe.error and probe.own <= MAX_PROBE]
    slowest = max(probes, key=lambda probe: probe.own, default=Probe(0, 0))
    shown = f"{len(kept)} of {len(probes)} within {MAX_PROBE:.0f} s of its own"
    shown += f", slowest {slowest.took:.2f} s, {slowest.waited:.2f} s of these without a processor"
    shown += "".join(f"; {error}" for error in sorted({probe.error for probe in probes if probe.error}))
    yield Check("/livez", shown, len(kept) == len(probes) > 0)


def balanced(samples: int, wrong: Sequence[str]) -> Iterator[Check]:
    """Check ``samples`` of ``/metrics``; ``wrong``: the numbers that did not add up."""
    shown = f"{samples - len(wrong)} of {samples} samples{''.join(f'; {listener}' for listener in wrong[:3])}"
    yield Check("accepted = active + waiting + held + closed", shown, samples > 0 and not wrong)


def stored_once(acknowledged: set[str], failed: int, stored: Sequence[str]) -> Iterator[Check]:
    """Check what the topic has of the records that were acknowledged to the producer."""
    lost = len(acknowledged - set(stored))
    shown = f"{len(acknowledged)}, lost {lost}, failed {failed}"
    yield Check("records that were acknowledged", shown, bool(acknowledged) and not lost)
    yield Check("records stored twice", str(len(stored) - len(set(stored))), len(stored) == len(set(stored)))


def consumed(found: Mapping[str, Any], transactions: Mapping[str, Any] | None) -> Iterator[Check]:
    """Check what honest consumers have got, and that they lost nothing but where Kafka had not committed
    ``transactions`` of somebody else for so long that a coordinator has to give its groups up."""
    commits = [] if transactions is None else transactions["commits"]
    slow = [(began, took) for began, took in commits if took >= MAX_COMMIT]
    lost: Sequence[float] = found["revoked"] or ()
    ours = [at for at in lost if not _is_given_up(at, slow)]
    shown = f"{len(lost)}, {len(ours)} of these while Kafka committed; messages {found['got']}"
    shown += f"; commits past the sidecar of {MAX_COMMIT:.0f} s or more: {[round(took, 1) for _, took in slow]}"
    had_any = found["revoked"] is not None
    yield Check(
        "partitions that honest consumers lost", shown if had_any else "one never had any", had_any and not ours
    )
    yield Check("honest consumers that failed", str(found["failures"]), not found["failures"])
    whole = bool(found["produced"]) and not found["lost"] and not found["again"]
    shown = f"{found['produced']}, lost {found['lost']}, twice {found['again']}"
    yield Check("messages to honest consumers", shown, whole)


def _is_given_up(at: float, slow: Sequence[tuple[float, float]]) -> bool:
    """Return whether what was lost ``at`` a time was lost by a commit that Kafka did not make in time."""
    return any(MAX_COMMIT <= at - began <= took + SESSION_TIMEOUT for began, took in slow)


def latencies(
    calm: Mapping[str, Any] | None, small: Mapping[str, Any], direct: Mapping[str, Any] | None
) -> Iterator[Check]:
    """Check small requests through the sidecar, ``small``, beside those before the attack and past the sidecar."""
    stalls = [] if direct is None else [(at, took) for at, took, _ in direct["requests"] if took >= STALL]
    ours = [(took, failed) for at, took, failed in small["requests"] if not _is_stalled(at, took, stalls)]
    ours_p99 = _p99([took for took, _ in ours], float("inf"))
    shown = f"p50 {small['p50']}, p99 {small['p99']}, max {small['max']} ms of {small['count']}"
    shown += f"; p99 {ours_p99:.2f} ms without {len(small['requests']) - len(ours)} that the broker delayed"
    allowed = FLOOR_MS
    if calm is not None:
        allowed = max(allowed, calm["p99"])
        shown += f"; quiet p50 {calm['p50']}, p99 {calm['p99']}, max {calm['max']} ms"
    if direct is not None:
        its_p99 = _p99([took for _, took, _ in direct["requests"] if took < STALL], 0.0)
        allowed = max(allowed, its_p99)
        shown += f"; past the sidecar p50 {direct['p50']}, p99 {direct['p99']}, max {direct['max']} ms"
        shown += f", p99 {its_p99:.2f} ms without {len(stalls)} of {1000 * STALL:.0f} ms or more"
    yield Check("small honest requests", shown, ours_p99 <= MAX_SLOWDOWN * allowed)
    failures = sum(failed for _, failed in ours)
    shown = f"{small['errors']}, while the broker answered {failures}"
    yield Check("small honest requests that failed", shown, not failures)
    yield Check("foreign addresses in Metadata", str(small["foreign"]), not small["foreign"])


def _p99(seconds: Sequence[float], without: float) -> float:
    """Return the 99th percentile in milliseconds; ``without`` any: that."""
    return 1000 * sorted(seconds)[int(len(seconds) * 0.99)] if seconds else without


def _is_stalled(at: float, took: float, stalls: Sequence[tuple[float, float]]) -> bool:
    """Return whether the broker itself was busy with slow requests for a part of this one."""
    both = (min(at + took, begun + lasted) - max(at, begun) for begun, lasted in stalls)
    return took >= STALL and MAX_SLOWDOWN * sum(max(0.0, seconds) for seconds in both) >= took


def refused(found: Mapping[str, Mapping[str, int]]) -> Iterator[Check]:
    """Check that attackers were refused what they may not do. ``found``: their counts by attack."""
    for name, what in (("spoof", "registry records"), ("forge", "audit events")):
        if name in found:
            accepted, denied = found[name].get("accepted", 0), found[name].get("refused", 0)
            shown = f"{accepted} accepted, {denied} refused"
            yield Check(f"{what} from a client", shown, not accepted and denied > 0)
    if "rebinding" in found:
        statuses = {name: count for name, count in found["rebinding"].items() if name.startswith("status")}
        yield Check("/config and /quotas under a foreign name", str(statuses), set(statuses) == {"status 421"})
