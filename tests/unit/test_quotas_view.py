"""The answer of ``/quotas``, and what a person sees of it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from proxy.limits.model import QuotasState
from proxy.quotas_view import QuotasView, build_view, format_text
from tests.unit.quotas_states import RATE, busy, unlimited


def answer(state: QuotasState) -> dict[str, Any]:
    answered: dict[str, Any] = json.loads(msgspec.json.encode(build_view(state)))
    return answered


@pytest.mark.promise(
    "limits-operation.md",
    "`GET /quotas` has the limits, throttled connections, addresses and principals, with `null` for what is "
    "not limited.",
)
def test_what_is_not_limited_or_not_measured_is_null() -> None:
    limits = answer(busy())["limits"]
    assert limits[0] == {
        "scope": "broker",
        "listener": "",
        "quota": RATE,
        "limit": 200,
        "action": "enforce",
        "used": 187.25,
    }
    assert [(one["limit"], one["used"]) for one in limits[3:]] == [
        (None, 1200),
        (None, 1.5),
        (None, 34),
        (20, None),
        (500, None),
        (10, None),
        (100, None),
    ]
    addresses = answer(busy())["addresses"]
    assert [(one["rate"], one["rate_limit"]) for one in addresses] == [(22.9, 20), (None, None)]
    principals = answer(busy())["principals"]
    assert [(one["principal"], one["rate"], one["rate_limit"]) for one in principals] == [
        ("User:alice", 10.4, 10),
        ("User:bob", None, None),
    ]


def test_counts_are_reported_by_listener() -> None:
    listeners = answer(busy())["listeners"]
    assert listeners["CLIENT"] == {
        "queued": 213,
        "waiting": 1,
        "held": 7,
        "admitted": 4321,
        "delayed": 12,
        "delayed_seconds": 0.6,
        "held_before": 90,
        "held_seconds": 40.5,
        "blocked_seconds": 2.5,
        "principal_held": 4,
        "principal_held_seconds": 1.5,
    }
    assert not any(listeners["REPLICATION"].values())
    throttled = answer(busy())["throttled"]
    assert {(t["listener"], t["scope"], t["quota"], t["action"]): t["count"] for t in throttled} == busy().throttled
    assert msgspec.json.decode(msgspec.json.encode(build_view(busy())), type=QuotasView) == build_view(busy())


def test_a_person_sees_limits_listeners_throttles_addresses_and_principals() -> None:
    assert format_text(build_view(busy())).splitlines() == [
        "LIMIT OF        ON               NOW  LIMIT  USED",
        "all listeners   connections/s  187.2    200   94%",
        "all listeners   connections    1,234  5,000   25%",
        "CLIENT          connections/s  150.5    100  150%  dry run",
        "CLIENT          connections    1,200      -",
        "REPLICATION     connections/s    1.5      -",
        "REPLICATION     connections       34      -",
        "each address    connections/s      -     20",
        "each address    connections        -    500        dry run",
        "each principal  connections/s      -     10",
        "each principal  connections        -    100",
        "",
        "LISTENER     ADMITTED  QUEUED  WAITING  HELD  DELAYED  MEAN DELAY  HELD EVER  MEAN HOLD  BLOCKED",
        "CLIENT          4,321     213        1     7       12       50 ms         90     450 ms    2.5 s",
        "REPLICATION         0       0        0     0        0           -          0          -    0.0 s",
        "",
        "THROTTLED AT  LIMIT OF   ON             WHAT IT MET  CONNECTIONS",
        "CLIENT        broker     connections/s  delayed               12",
        "CLIENT        ip         connections/s  closed                60",
        "CLIENT        ip         connections/s  held                  90",
        "CLIENT        listener   connections/s  dry run              800",
        "CLIENT        principal  connections/s  held                   4",
        "CLIENT        principal  connections    closed                 2",
        "",
        "ADDRESS      RATE  LIMIT  CONNECTIONS  LIMIT  HELD",
        "10.1.2.3     22.9     20           40    500     7",
        "2001:db8::7     -      -           12    500     0",
        "",
        "addresses: 57 with open connections, 41 whose rate is measured",
        "",
        "PRINCIPAL   RATE  LIMIT  CONNECTIONS  LIMIT",
        "User:alice  10.4     10          100    100",
        "User:bob       -      -            3     20",
        "",
        "principals: 2 with open connections, 1 whose rate is measured",
    ]


@pytest.mark.promise(
    "limits-operation.md", "A problem with the cluster's quotas is the last line of `brokerside quotas`."
)
def test_a_problem_with_the_cluster_s_quotas_is_the_last_line() -> None:
    assert build_view(busy()).problem is None
    assert format_text(build_view(busy(), "something is wrong")).splitlines()[-2:] == [
        "",
        "problem: something is wrong",
    ]


def test_of_a_quiet_sidecar_the_empty_parts_are_left_out() -> None:
    shown = format_text(build_view(unlimited("CLIENT")))
    assert "ADDRESS " not in shown
    assert "THROTTLED" not in shown
    assert "PRINCIPAL " not in shown
    assert "dry run" not in shown
