from __future__ import annotations

import pytest

from proxy.fleet.self_exemption import find_exposure, without_exemptions
from proxy.limits.model import DEFAULT_ADDRESS, UNLIMITED

HERE = frozenset({"127.0.0.1"})


def test_what_limits_the_sidecar_itself() -> None:
    for stored, missing, by_default, limited in [
        ({}, ("127.0.0.1",), False, {}),
        ({"10.0.0.1": 5}, ("127.0.0.1",), False, {}),
        ({DEFAULT_ADDRESS: 5}, ("127.0.0.1",), True, {}),
        ({DEFAULT_ADDRESS: UNLIMITED}, ("127.0.0.1",), False, {}),
        ({DEFAULT_ADDRESS: 5, "127.0.0.1": UNLIMITED}, (), True, {}),
        ({DEFAULT_ADDRESS: 5, "127.0.0.1": 3}, (), True, {"127.0.0.1": 3}),
        ({"127.0.0.1": 3}, (), False, {"127.0.0.1": 3}),
    ]:
        found = find_exposure(stored, HERE)
        assert (found.missing, found.by_default, found.limited) == (missing, by_default, limited), stored


def test_what_can_be_mended_is_a_problem_only_where_it_is_not() -> None:
    assert find_exposure({}, HERE).problem("not authorized") is None, "without a default it is none"
    found = find_exposure({DEFAULT_ADDRESS: 5}, HERE)
    assert found.problem(None) is None
    assert "127.0.0.1 cannot be stored: not authorized" in (found.problem("not authorized") or "")


@pytest.mark.promise(
    "limits.md",
    "A rate that somebody stored for the sidecar's own address is never overwritten; it is reported with a way out.",
)
def test_a_quota_of_an_operator_s_is_a_problem_with_a_way_out() -> None:
    problem = find_exposure({"127.0.0.1": 3}, HERE).problem(None) or ""
    assert "quota of 3 connections/s for 127.0.0.1" in problem
    assert "upstream.source" in problem


def test_the_override_of_the_sidecar_is_not_for_clients_of_its_address() -> None:
    stored = {DEFAULT_ADDRESS: 5, "127.0.0.1": UNLIMITED, "10.0.0.1": UNLIMITED}
    assert without_exemptions(stored, HERE) == {DEFAULT_ADDRESS: 5, "10.0.0.1": UNLIMITED}
    assert len(stored) == 3
    assert without_exemptions({"127.0.0.1": 3}, HERE) == {"127.0.0.1": 3}, "an operator's is for clients too"
