from __future__ import annotations

import pytest

from proxy.fleet import broker_limits
from proxy.limits.model import Limits, ListenerLimits, Quota

CLIENT = "listener.name.client."
SOURCES = {"127.0.0.1"}


def unlimited(*names: str) -> Limits:
    return Limits({name: ListenerLimits() for name in names})


def tighter(configs: dict[str, str], limits: Limits | None = None) -> dict[str, int]:
    return {one.key: one.value for one in broker_limits.find_tighter(configs, SOURCES, limits or unlimited("CLIENT"))}


def test_only_rates_that_limit_are_taken_over() -> None:
    none = {"max.connection.creation.rate": "2147483647"}
    assert broker_limits.parse_rates(none, ["CLIENT"]) == (None, {})
    some = {"max.connection.creation.rate": "20", CLIENT + "max.connection.creation.rate": "5"}
    assert broker_limits.parse_rates(some, ["CLIENT", "OTHER"]) == (20, {"client": 5})
    assert broker_limits.parse_rates({}, ["CLIENT"]) == (None, {})


@pytest.mark.promise("limits.md", "The sidecar warns where limits of the broker are lower than its own.")
def test_every_limit_lower_than_the_sidecar_s_own_is_reported() -> None:
    configs = {
        "max.connection.creation.rate": "20",
        "max.connections": "100",
        "max.connections.per.ip": "10",
        CLIENT + "max.connection.creation.rate": "5",
        CLIENT + "max.connections": "50",
    }
    assert tighter(configs) == {key: int(value) for key, value in configs.items()}
    assert broker_limits.config_keys(["CLIENT"]) == [
        *list(configs)[:3],
        "max.connections.per.ip.overrides",
        *list(configs)[3:],
    ]
    at_default = dict.fromkeys(configs, "2147483647") | {"max.connections.per.ip.overrides": ""}
    assert tighter(at_default) == tighter({}) == {}
    own = Limits({"CLIENT": ListenerLimits()}, rate=Quota(5, "observe"))  # which lets everything through
    assert tighter({"max.connection.creation.rate": "20"}, own) == {"max.connection.creation.rate": 20}


def test_a_sidecar_that_lets_no_more_through_has_nothing_to_fear() -> None:
    own = Limits(
        {"CLIENT": ListenerLimits(Quota(5), Quota(10))},
        rate=Quota(20),
        connections=Quota(100),
    )
    configs = {
        "max.connection.creation.rate": "5",
        "max.connections": "10",
        "max.connections.per.ip": "10",
        CLIENT + "max.connection.creation.rate": "5",
    }
    assert tighter(configs, own) == {}
    assert tighter(configs | {"max.connections.per.ip": "9"}, own) == {"max.connections.per.ip": 9}


def test_an_override_of_the_sidecar_s_address_goes_before_the_limit_of_each() -> None:
    configs = {"max.connections.per.ip": "10", "max.connections.per.ip.overrides": "10.0.0.1:3, 127.0.0.1:2147483647"}
    assert tighter(configs) == {}
    configs["max.connections.per.ip.overrides"] = "127.0.0.1:7"
    assert tighter(configs) == {"max.connections.per.ip": 7}
