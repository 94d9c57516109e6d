"""What of the cluster's limits concerns the sidecar itself, and which addresses quotas and upstreams stand for."""

import asyncio
import socket

import pytest
from structlog.testing import capture_logs

from proxy.config import Listener
from proxy.fleet import broker_limits, host_resolver, local_addresses
from proxy.fleet.host_resolver import HostResolver
from proxy.fleet.local_addresses import LocalAddresses
from proxy.fleet.self_exemption import find_exposure, without_exemptions
from proxy.limits.java_addresses import parse_java_address
from proxy.limits.model import DEFAULT_ADDRESS, UNLIMITED, Limits, ListenerLimits, Quota

# Limits of the broker

CLIENT = "listener.name.client."
HERE = frozenset({"127.0.0.1"})
NO_LIMITS = Limits({"CLIENT": ListenerLimits()})


def tighter(configs: dict[str, str], limits: Limits = NO_LIMITS) -> dict[str, int]:
    return {one.key: one.value for one in broker_limits.find_tighter(configs, set(HERE), limits)}


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
    assert broker_limits.parse_rates(configs, ["CLIENT", "OTHER"]) == (20, {"client": 5})
    at_default = dict.fromkeys(configs, "2147483647") | {"max.connections.per.ip.overrides": ""}
    assert tighter(at_default) == tighter({}) == {}
    assert broker_limits.parse_rates(at_default, ["CLIENT"]) == broker_limits.parse_rates({}, ["CLIENT"]) == (None, {})
    own = Limits({"CLIENT": ListenerLimits()}, rate=Quota(5, "observe"))  # which lets everything through
    assert tighter({"max.connection.creation.rate": "20"}, own) == {"max.connection.creation.rate": 20}
    own = Limits({"CLIENT": ListenerLimits(Quota(5), Quota(10))}, rate=Quota(20), connections=Quota(100))
    configs = dict.fromkeys(configs, "10") | dict.fromkeys(
        ("max.connection.creation.rate", CLIENT + "max.connection.creation.rate"), "5"
    )
    assert tighter(configs, own) == {}, "a sidecar that lets no more through has nothing to fear"
    assert tighter(configs | {"max.connections.per.ip": "9"}, own) == {"max.connections.per.ip": 9}
    configs = {"max.connections.per.ip": "10", "max.connections.per.ip.overrides": "10.0.0.1:3, 127.0.0.1:2147483647"}
    assert tighter(configs) == {}, "an override of the sidecar's address goes before the limit of each"
    configs["max.connections.per.ip.overrides"] = "127.0.0.1:7"
    assert tighter(configs) == {"max.connections.per.ip": 7}


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
    assert find_exposure({}, HERE).problem("not authorized") is None, "without a default it is none"
    found = find_exposure({DEFAULT_ADDRESS: 5}, HERE)
    assert found.problem(None) is None, "it can be mended"
    assert "127.0.0.1 cannot be stored: not authorized" in (found.problem("not authorized") or "")
    stored = {DEFAULT_ADDRESS: 5, "127.0.0.1": UNLIMITED, "10.0.0.1": UNLIMITED}
    assert without_exemptions(stored, HERE) == {DEFAULT_ADDRESS: 5, "10.0.0.1": UNLIMITED}
    assert len(stored) == 3
    assert without_exemptions({"127.0.0.1": 3}, HERE) == {"127.0.0.1": 3}, "an operator's is for clients too"


@pytest.mark.promise(
    "limits.md",
    "A rate that somebody stored for the sidecar's own address is never overwritten; it is reported with a way out.",
)
def test_a_quota_of_an_operator_s_is_a_problem_with_a_way_out() -> None:
    problem = find_exposure({"127.0.0.1": 3}, HERE).problem(None) or ""
    assert "quota of 3 connections/s for 127.0.0.1" in problem
    assert "upstream.source" in problem


def listener(host: str, source: str | None = None) -> Listener:
    values = {"name": "C", "bind": "127.0.0.1:1", "upstream": f"{host}:9", "upstream.source": source}
    return Listener.model_validate(values)


def resolving(monkeypatch: pytest.MonkeyPatch, known: dict[str, list[str]]) -> None:
    async def resolve_host(host: str) -> list[str]:
        if host not in known:
            raise socket.gaierror(-2, "Name or service not known")
        return known[host] or await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(local_addresses, "resolve_host", resolve_host)


@pytest.mark.promise("limits.md", "The sidecar exempts each address that it dials the broker from.")
async def test_every_address_of_a_name_may_be_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of ``localhost``, where the data path tries ``::1`` first."""
    with socket.socket() as four, socket.socket(socket.AF_INET6) as six:
        four.bind(("127.0.0.1", 0))
        try:
            six.bind(("::1", 0))
        except OSError:
            pytest.skip("this host has no IPv6")
    resolving(monkeypatch, {"kafka": ["::1", "127.0.0.1"]})
    assert await LocalAddresses().resolve([listener("kafka")]) == {"::1", "127.0.0.1"}


async def test_names_out_of_reach_are_reported_once_and_hide_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    two = [listener("127.0.0.1", "127.0.0.99"), listener("no.such.host", "::0001")]
    assert await LocalAddresses().resolve(two) == {"127.0.0.99", "::1"}, "addresses of its own"
    known = {"kafka": ["255.255.255.255", "127.0.0.1"], "silent": list[str]()}
    resolving(monkeypatch, known)
    monkeypatch.setattr(local_addresses, "UPSTREAM_TIMEOUT", 0.05)
    found, both = LocalAddresses(), [listener("kafka"), listener("other"), listener("silent")]
    unknown = "Name or service not known"
    with capture_logs() as logs:
        assert await found.resolve(both) == await found.resolve(both) == {"127.0.0.1"}
        del known["kafka"]
        assert await found.resolve(both) == {"127.0.0.1"}  # as it was
    reported = [(line["upstream"], line["error"]) for line in logs if line["event"] == "upstream_address_unknown"]
    assert reported == [("other", unknown), ("silent", "no answer within 0 s"), ("kafka", unknown)]


JAVA: list[tuple[list[str], str | None]] = [
    (["10.0.0.7", "010.0.0.7", "::ffff:10.0.0.7"], "10.0.0.7"),
    (["0:0::1", "[::1]"], "::1"),
    (["127.1", "2130706433"], "127.0.0.1"),
    (["0127.0.0.010"], "127.0.0.10"),
    (["10.0.0.08"], "10.0.0.8"),
    (["1.2.3"], "1.2.0.3"),
    (["1.256"], "1.0.1.0"),
    (["localhost", "", "[127.0.0.1]", "[::1", "0x7f.1", "٣.1.1.1", "10..0.7", "1.2.3.4.5"], None),
    (["256.1.1.1", "10.0.65536", "4294967296", "0000000000000001"], None),
]


@pytest.mark.promise(
    "limits.md",
    "Names of quotas are read as the broker (Java) reads them: `[::1]` is `::1`, and `010.0.0.7` is `10.0.0.7`.",
)
def test_addresses_are_read_as_brokers_read_them() -> None:
    for names, address in JAVA:
        for name in names:
            assert parse_java_address(name) == address, name


class Resolver:
    """Answers by name; None: not until ``go`` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answers: dict[str, str | OSError | None]) -> None:
        self.answers = answers
        self.go = asyncio.Event()
        self.asked: list[str] = []
        monkeypatch.setattr(host_resolver, "resolve_host", self.resolve_host)
        monkeypatch.setattr(host_resolver, "RESOLVE_TIMEOUT", 0.05)

    async def resolve_host(self, host: str) -> list[str]:
        self.asked.append(host)
        answer = self.answers[host]
        if isinstance(answer, OSError):
            raise answer
        if answer is None:
            await self.go.wait()
        return ["::1", answer or "10.0.0.9"]


async def looked_up() -> None:
    """Wait for the end of all look-ups."""
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})


@pytest.mark.promise(
    "limits.md", "A name of a quota that answers late counts from then on, and keeps no other one waiting."
)
async def test_a_slow_name_keeps_no_other_one_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = Resolver(monkeypatch, {"slow": None, "a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"})
    known = HostResolver()
    with capture_logs() as logs:
        fast = {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"}
        assert await known.resolve(list(resolver.answers)) == fast
        monkeypatch.setattr(host_resolver, "RESOLVE_TIMEOUT", 3600.0)  # nothing new, nothing to wait for
        assert await known.resolve(list(resolver.answers)) == fast
        resolver.go.set()
        await looked_up()
        assert await known.resolve(list(resolver.answers)) == fast | {"slow": "10.0.0.9"}
    assert resolver.asked == ["slow", "a", "b", "c"]
    assert [line["first"] for line in logs] == [{"slow": "no answer yet"}]


async def test_a_name_without_an_address_is_reported_once_and_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = Resolver(monkeypatch, {"gone": OSError(-2, "Name or service not known")})
    known = HostResolver()
    with capture_logs() as logs:
        assert await known.resolve(["gone"]) == await known.resolve(["gone"]) == {}
        assert resolver.asked == ["gone"]
        monkeypatch.setattr(host_resolver, "RESOLVE_RETRY", 0.0)
        known = HostResolver()
        assert await known.resolve(["gone"]) == {}
        resolver.answers["gone"] = "10.0.0.1"
        await known.resolve(["gone"])  # asks again, and does not wait for it
        await looked_up()
        assert await known.resolve(["gone"]) == {"gone": "10.0.0.1"}
    assert [line["first"] for line in logs] == 2 * [{"gone": "Name or service not known"}]
