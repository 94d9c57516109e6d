"""The response of ``GET /quotas``, as values and as text for a person.

``null`` means that there is no limit, or that nothing is measured for lack of a limit.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from proxy.limits.model import UNLIMITED, Action, QuotasState
from proxy.text_table import format_table

RATE = "connection_creation_rate"

QUOTA_LABELS = {RATE: "connections/s", "connections": "connections"}
"""What a quota limits, for a person."""

SCOPE_LABELS = {"broker": "all listeners", "ip": "each address", "principal": "each principal"}
"""Whose limit one without a listener is, for a person."""

ACTION_LABELS = {"delay": "delayed", "hold": "held", "drop": "closed", "observe": "dry run"}


class LimitView(Struct):
    """One limit. ``used``: connections, or connections per second.

    ``listener`` is empty for broker-wide limits, and for the limit of each address or principal without its own
    (``scope`` is ``ip`` or ``principal``).
    """

    scope: str
    listener: str
    quota: str
    limit: int | None
    action: Action
    used: float | None


class ListenerView(Struct):
    """Connections of one listener: now in the kernel's queue, waiting and held, and the totals since the start.

    ``delayed…``: by a rate of the listener or the broker. ``held…``: by the rate of their address.
    ``principal_held…``: by that of their principal.
    """

    queued: int
    waiting: int
    held: int
    admitted: int
    delayed: int
    delayed_seconds: float
    held_before: int
    held_seconds: float
    blocked_seconds: float
    principal_held: int
    principal_held_seconds: float


class ThrottledView(Struct):
    """Connections since the start that met one kind of limit."""

    listener: str
    scope: str
    quota: str
    action: str
    count: int


class AddressView(Struct):
    """One of the busiest client addresses. ``rate``: connections per second."""

    address: str
    rate: float | None
    rate_limit: int | None
    connections: int
    connections_limit: int | None
    held: int


class PrincipalView(Struct):
    """One of the busiest principals. ``rate``: connections per second that authenticated."""

    principal: str
    rate: float | None
    rate_limit: int | None
    connections: int
    connections_limit: int | None


class QuotasView(Struct):
    """The whole response."""

    limits: list[LimitView]
    listeners: dict[str, ListenerView]
    throttled: list[ThrottledView]
    addresses: list[AddressView]
    addresses_tracked: int
    addresses_connected: int
    principals: list[PrincipalView]
    """Empty while no principal has a limit."""
    principals_tracked: int
    principals_connected: int
    problem: str | None = None
    """What is wrong with the quotas of the cluster, in one sentence."""


def build_view(state: QuotasState, problem: str | None = None) -> QuotasView:
    """Return ``state`` in the form of the response."""
    return QuotasView(
        limits=[
            LimitView(
                limit.scope,
                limit.listener,
                limit.quota,
                _limit_or_none(limit.limit),
                limit.action,
                _number_or_none(limit.used),
            )
            for limit in state.limits
        ],
        listeners={
            name: ListenerView(
                queued=state.queued.get(name, 0),
                waiting=state.waiting[name],
                held=state.held[name],
                admitted=state.admitted[name],
                delayed=state.delayed[name],
                delayed_seconds=state.delayed_seconds[name],
                held_before=state.held_before[name],
                held_seconds=state.held_seconds[name],
                blocked_seconds=state.blocked_seconds[name],
                principal_held=state.principal_held[name],
                principal_held_seconds=state.principal_held_seconds[name],
            )
            for name in state.admitted
        },
        throttled=[ThrottledView(*kind, count) for kind, count in sorted(state.throttled.items())],
        addresses=[
            AddressView(
                address.address,
                _number_or_none(address.rate),
                _limit_or_none(address.rate_limit),
                address.connections,
                _limit_or_none(address.connections_limit),
                address.held,
            )
            for address in state.addresses
        ],
        addresses_tracked=state.addresses_tracked,
        addresses_connected=state.addresses_connected,
        principals=[
            PrincipalView(
                one.principal,
                _number_or_none(one.rate),
                _limit_or_none(one.rate_limit),
                one.connections,
                _limit_or_none(one.connections_limit),
            )
            for one in state.principals
        ],
        principals_tracked=state.principals_tracked,
        principals_connected=state.principals_connected,
        problem=problem,
    )


def format_text(quotas: QuotasView) -> str:
    """Return the text for a person: limits and their use, listeners, throttled connections, addresses, principals, a
    problem."""
    parts = [
        format_table(
            ("LIMIT OF", "ON", "NOW", "LIMIT", "USED", ""),
            [_limit_row(limit) for limit in quotas.limits],
            left=(0, 1, 5),
        ),
        format_table(
            (
                "LISTENER",
                "ADMITTED",
                "QUEUED",
                "WAITING",
                "HELD",
                "DELAYED",
                "MEAN DELAY",
                "HELD EVER",
                "MEAN HOLD",
                "BLOCKED",
            ),
            [_listener_row(name, listener) for name, listener in quotas.listeners.items()],
        ),
    ]
    if quotas.throttled:
        parts.append(
            format_table(
                ("THROTTLED AT", "LIMIT OF", "ON", "WHAT IT MET", "CONNECTIONS"),
                [
                    (t.listener, t.scope, QUOTA_LABELS[t.quota], ACTION_LABELS[t.action], f"{t.count:,}")
                    for t in quotas.throttled
                ],
                left=(0, 1, 2, 3),
            )
        )
    if quotas.addresses:
        parts.append(
            format_table(
                ("ADDRESS", "RATE", "LIMIT", "CONNECTIONS", "LIMIT", "HELD"),
                [
                    (
                        a.address,
                        _format_number(a.rate, RATE),
                        *map(_format_number, (a.rate_limit, a.connections, a.connections_limit, a.held)),
                    )
                    for a in quotas.addresses
                ],
            )
        )
    parts.append(
        f"addresses: {quotas.addresses_connected:,} with open connections, "
        f"{quotas.addresses_tracked:,} whose rate is measured"
    )
    if quotas.principals:
        parts.append(
            format_table(
                ("PRINCIPAL", "RATE", "LIMIT", "CONNECTIONS", "LIMIT"),
                [
                    (
                        one.principal,
                        _format_number(one.rate, RATE),
                        *map(_format_number, (one.rate_limit, one.connections, one.connections_limit)),
                    )
                    for one in quotas.principals
                ],
            )
        )
        parts.append(
            f"principals: {quotas.principals_connected:,} with open connections, "
            f"{quotas.principals_tracked:,} whose rate is measured"
        )
    if quotas.problem is not None:
        parts.append(f"problem: {quotas.problem}")
    return "\n\n".join(parts)


def _limit_row(limit: LimitView) -> Sequence[str]:
    used = f"{limit.used / limit.limit:.0%}" if limit.limit and limit.used is not None else ""
    return (
        limit.listener or SCOPE_LABELS[limit.scope],
        QUOTA_LABELS[limit.quota],
        _format_number(limit.used, limit.quota),
        _format_number(limit.limit),
        used,
        "dry run" if limit.action == "observe" and limit.limit is not None else "",
    )


def _listener_row(name: str, listener: ListenerView) -> Sequence[str]:
    return (
        name,
        *map(_format_number, (listener.admitted, listener.queued, listener.waiting, listener.held, listener.delayed)),
        _format_mean(listener.delayed_seconds, listener.delayed),
        _format_number(listener.held_before),
        _format_mean(listener.held_seconds, listener.held_before),
        f"{listener.blocked_seconds:.1f} s",
    )


def _format_number(number: float | None, quota: str = "") -> str:
    if number is None:
        return "-"
    return f"{number:,.1f}" if quota == RATE else f"{number:,.0f}"


def _format_mean(total: float, count: int) -> str:
    return f"{total / count * 1000:.0f} ms" if count else "-"


def _limit_or_none(limit: int) -> int | None:
    return limit if limit < UNLIMITED else None


def _number_or_none(number: float) -> float | None:
    return None if number != number else number  # NaN
