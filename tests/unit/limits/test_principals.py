"""Limits of principals: who is held or closed after a login, what is counted, and that nothing of it stays."""

import math
from dataclasses import dataclass, field
from itertools import count

import pytest

from proxy.limits import principal_quotas
from proxy.limits.model import DEFAULT_USER, Limits, ListenerLimits, Quota, Throttle
from proxy.limits.principal_quotas import PrincipalQuotas
from tests.unit.limits.simulation import A

ALICE, BOB = "User:alice", "User:bob"
NUMBER, RATE = "connections", "connection_creation_rate"


def limits(**given: object) -> Limits:
    return Limits(**{"listeners": {"CLIENT": ListenerLimits()}, **given})


@dataclass
class Logins:
    """Clients that log in from one address, and what became of them."""

    limits: Limits
    held: set[int] = field(default_factory=set)
    closed: list[int] = field(default_factory=list)
    throttles: list[Throttle] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.quotas = PrincipalQuotas(
            self.limits,
            hold=self.held.add,
            resume=self.held.remove,
            close=self.closed.append,
            on_throttle=self.throttles.append,
        )
        self._numbers = count(1)

    def log_in(self, principal: str, now: int = 0) -> int:
        number = next(self._numbers)
        self.quotas.add(number, principal, "CLIENT", A, now)
        return number

    def pass_time(self, until: int) -> None:
        """Do what is due, when it is due; who is closed ends at once."""
        while (due := self.quotas.next_timer()) is not None and due <= until:
            before = len(self.closed)
            self.quotas.process_timers(due)
            for number in self.closed[before:]:
                self.quotas.release(number)
                self.held.discard(number)

    def reported(self) -> list[tuple[str, str, str, str]]:
        return [(one.principal, one.scope, one.quota, one.action) for one in self.throttles]


def test_an_end_makes_room_and_nothing_is_left_of_those_who_have_gone() -> None:
    logins = Logins(limits(principal_connections=Quota(1)))
    first, refused = logins.log_in(ALICE), logins.log_in(ALICE)
    logins.quotas.release(refused)  # closed, and so never counted
    logins.quotas.release(99)  # ended before its login
    assert logins.quotas.open_by_principal == {ALICE: 1}
    logins.quotas.release(first)
    assert logins.quotas.open_by_principal == {}
    again = logins.log_in(ALICE)
    assert logins.closed == [refused]
    logins.quotas.release(again)
    logins.quotas.release(again)
    assert logins.quotas.open_by_principal == {}
    assert logins.quotas._principals == {}


def test_a_rate_holds_for_the_throttle_time_and_then_lets_in_what_it_allows() -> None:
    logins = Logins(limits(principal_rates={ALICE: Quota(2)}))
    for _ in range(20):
        logins.log_in(ALICE)
        logins.log_in(BOB)
    assert logins.held == set()
    assert [logins.log_in(ALICE), logins.log_in(ALICE), logins.log_in(ALICE)] == [41, 42, 43]
    assert logins.held == {41, 42, 43}
    assert logins.quotas.open_by_principal == {ALICE: 23, BOB: 20}
    assert logins.quotas.rates.per_second(ALICE, 0) == 2  # without those that are held
    assert math.isnan(logins.quotas.rates.per_second(BOB, 0))
    logins.pass_time(499)
    assert logins.held == {41, 42, 43}
    logins.pass_time(500)
    assert (logins.held, logins.closed) == (set(), [42, 43])
    assert logins.quotas.open_by_principal == {ALICE: 21, BOB: 20}
    assert logins.reported() == [(ALICE, "principal", RATE, "hold")] * 3 + [(ALICE, "principal", RATE, "drop")] * 2
    assert [(one.observed, one.delay_ms) for one in logins.throttles[:3]] == [(2.1, 500)] * 3
    assert [one.delay_ms for one in logins.throttles[3:]] == [0, 0]
    assert logins.quotas.holds == {"CLIENT": [3, 1_500]}
    assert logins.quotas.next_timer() is None
    assert logins.log_in(ALICE, 30_000) not in logins.held


@pytest.mark.promise("limits.md", "The rate of a principal holds however many of its clients connect in parallel.")
def test_a_rate_bounds_the_connections_of_many_clients_that_come_back_at_once() -> None:
    logins = Logins(limits(principal_rates={ALICE: Quota(5)}))
    served: list[int] = []
    clients: dict[int, int] = {}  # by connection: the client
    for now in range(0, 60_000, 50):
        logins.pass_time(now)
        for number in [number for number in clients if number not in logins.held]:
            del clients[number]
            if number not in logins.closed:
                served.append(now)
                logins.quotas.release(number)
        for _ in range(40 - len(clients)):
            number = logins.log_in(ALICE, now)
            clients[number] = number
    assert 40 <= len([at for at in served if at >= 50_000]) <= 55
    assert logins.quotas.throttled["CLIENT", "principal", RATE, "drop"] > 100


@pytest.mark.promise(
    "limits.md",
    "A connection that is closed beyond the number of its principal does not use up the rate of that principal.",
)
def test_who_is_closed_uses_up_no_rate() -> None:
    logins = Logins(limits(principal_connections=Quota(1), principal_rates={ALICE: Quota(1)}, samples=2))
    for _ in range(10):
        logins.log_in(ALICE)
    assert len(logins.closed) == 9
    assert logins.quotas.rates.per_second(ALICE, 0) == 1
    assert logins.held == set()


def test_a_dry_run_counts_and_neither_holds_nor_closes() -> None:
    observed = limits(
        principal_connections=Quota(1, "observe"),
        principal_connections_overrides={BOB: 2},
        principal_rates={DEFAULT_USER: Quota(1, "observe")},
        samples=2,
    )
    logins = Logins(observed)
    for principal in (ALICE, ALICE, ALICE, BOB, BOB, BOB):
        logins.log_in(principal)
    assert (logins.closed, logins.held) == ([], set())
    assert logins.quotas.open_by_principal == {ALICE: 3, BOB: 3}
    assert logins.quotas.throttled == {
        ("CLIENT", "principal", NUMBER, "observe"): 3,
        ("CLIENT", "principal", RATE, "observe"): 4,
    }
    assert logins.quotas.holds == {"CLIENT": [0, 0]}
    assert {one.delay_ms for one in logins.throttles if one.quota == RATE} == {1_000}


@pytest.mark.promise("limits.md", "A connection counts once for its principal, however often its client logs in again.")
def test_another_login_of_the_same_connection_does_not_count() -> None:
    logins = Logins(limits(principal_connections=Quota(1), principal_rates={ALICE: Quota(1)}, samples=2))
    number = logins.log_in(ALICE)
    for _ in range(5):
        logins.quotas.add(number, ALICE, "CLIENT", A, 0)
    assert logins.throttles == []
    assert logins.quotas.open_by_principal == {ALICE: 1}
    logins.quotas.release(number)
    assert logins.quotas.open_by_principal == {}


@pytest.mark.promise(
    "limits.md", "The first limit of principals counts connections that are open already, and closes none of them."
)
def test_new_limits_are_of_new_logins_and_know_the_earlier_ones() -> None:
    logins = Logins(limits())
    logins.log_in(BOB)
    logins.quotas.add_earlier(7, BOB)
    assert not logins.quotas.is_active
    assert (logins.quotas.open_by_principal, logins.quotas._principals, len(logins.quotas.rates)) == ({}, {}, 0)
    logins.quotas.update_limits(limits(principal_connections=Quota(2)))
    for number in (101, 102, 103, 103):
        logins.quotas.add_earlier(number, ALICE)
    assert (logins.closed, logins.throttles) == ([], [])
    assert logins.quotas.open_by_principal == {ALICE: 3}
    assert logins.closed == [logins.log_in(ALICE)]
    logins.quotas.update_limits(limits(principal_connections=Quota(9)))
    logins.log_in(ALICE)
    assert len(logins.closed) == 1
    assert logins.quotas.open_by_principal == {ALICE: 4}
    logins.quotas.update_limits(limits())
    assert logins.quotas.open_by_principal == {}
    logins.quotas.release(101)


@pytest.mark.promise(
    "limits.md", "The rates of a bounded number of principals are measured, and idle ones are forgotten."
)
def test_idle_principals_are_forgotten_and_never_too_many_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(principal_quotas, "MAX_MEASURED_PRINCIPALS", 3)
    logins = Logins(limits(principal_rates={DEFAULT_USER: Quota(5)}))
    for at, name in enumerate("abcad"):
        logins.log_in(f"User:{name}", at)
    assert logins.quotas.rates.recent() == ["User:d", "User:a", "User:c"]
    logins.quotas.rates.forget_idle(60_000)
    assert len(logins.quotas.rates) == 0
