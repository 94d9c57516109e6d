from __future__ import annotations

import pytest

from proxy.fleet.self_exemption import find_exposure, without_exemptions
from proxy.limits.model import DEFAULT_ADDRESS, UNLIMITED

HERE = frozenset({"127.0.0.1"})


@pytest.mark.parametrize(
    ("stored", "missing", "by_default", "limited"),
    [
        ({}, ("127.0.0.1",), False, {}),
        ({"10.0.0.1": 5}, ("127.0.0.1",), False, {}),
        ({DEFAULT_ADDRESS: 5}, ("127.0.0.1",), True, {}),
        ({DEFAULT_ADDRESS: UNLIMITED}, ("127.0.0.1",), False, {}),
        ({DEFAULT_ADDRESS: 5, "127.0.0.1": UNLIMITED}, (), True, {}),
        ({DEFAULT_ADDRESS: 5, "127.0.0.1": 3}, (), True, {"127.0.0.1": 3}),
        ({"127.0.0.1": 3}, (), False, {"127.0.0.1": 3}),
    ],
)
def test_what_limits_the_sidecar_itself(
    stored: dict[str, int], missing: tuple[str, ...], by_default: bool, limited: dict[str, int]
) -> None:
    found = find_exposure(stored, HERE)
    assert (found.missing, found.by_default, found.limited) == (missing, by_default, limited)


def test_without_a_default_a_missing_override_is_no_problem() -> None:
    assert find_exposure({}, HERE).problem("not authorized") is None


def test_what_can_be_mended_is_a_problem_only_where_it_is_not() -> None:
    found = find_exposure({DEFAULT_ADDRESS: 5}, HERE)
    assert found.problem(None) is None
    assert "127.0.0.1 cannot be stored: not authorized" in (found.problem("not authorized") or "")


def test_a_quota_of_an_operator_s_is_a_problem_with_a_way_out() -> None:
    problem = find_exposure({"127.0.0.1": 3}, HERE).problem(None) or ""
    assert "quota of 3 connections/s for 127.0.0.1" in problem
    assert "upstream.source" in problem


def test_the_override_of_the_sidecar_is_not_for_clients_of_its_address() -> None:
    stored = {DEFAULT_ADDRESS: 5, "127.0.0.1": UNLIMITED, "10.0.0.1": UNLIMITED}
    assert without_exemptions(stored, HERE) == {DEFAULT_ADDRESS: 5, "10.0.0.1": UNLIMITED}
    assert len(stored) == 3


def test_a_quota_of_an_operator_s_is_for_clients_too() -> None:
    stored = {"127.0.0.1": 3}
    assert without_exemptions(stored, HERE) == stored
