"""HostResolver that quotas are stored under: which are addresses, and what is looked up, when, and at whose expense."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from proxy.fleet import host_resolver
from proxy.fleet.host_resolver import HostResolver
from proxy.limits.java_addresses import parse_java_address


@pytest.mark.promise(
    "limits.md",
    "Names of quotas are read as the broker (Java) reads them: `[::1]` is `::1`, and `010.0.0.7` is `10.0.0.7`.",
)
def test_addresses_are_read_as_brokers_read_them() -> None:
    for name, address in [
        ("10.0.0.7", "10.0.0.7"),
        ("0:0::1", "::1"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("[::1]", "::1"),
        ("010.0.0.7", "10.0.0.7"),
        ("0127.0.0.010", "127.0.0.10"),
        ("10.0.0.08", "10.0.0.8"),
        ("127.1", "127.0.0.1"),
        ("1.2.3", "1.2.0.3"),
        ("1.256", "1.0.1.0"),
        ("2130706433", "127.0.0.1"),
        ("localhost", None),
        ("", None),
        ("[127.0.0.1]", None),
        ("[::1", None),
        ("256.1.1.1", None),
        ("10.0.65536", None),
        ("4294967296", None),
        ("0000000000000001", None),
        ("10..0.7", None),
        ("1.2.3.4.5", None),
        ("0x7f.1", None),
        ("٣.1.1.1", None),
    ]:
        assert parse_java_address(name) == address, (name, address)


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


async def test_a_name_whose_turn_has_not_come_is_not_said_to_be_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = Resolver(monkeypatch, {f"slow{number}": None for number in range(9)})
    resolver.answers["slow8"] = OSError(-2, "Name not known")
    known = HostResolver()
    with capture_logs() as logs:
        assert await known.resolve(list(resolver.answers)) == {}
        assert resolver.asked == ["slow0", "slow1"]
        resolver.go.set()
        await looked_up()
        assert await known.resolve(list(resolver.answers)) == {f"slow{number}": "10.0.0.9" for number in range(8)}
    assert [line["first"] for line in logs] == [
        {"slow0": "no answer yet", "slow1": "no answer yet"},
        {"slow8": "Name not known"},
    ]
