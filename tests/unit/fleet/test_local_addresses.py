"""Where the sidecar dials from, for every way in which an upstream may be written."""

from __future__ import annotations

import asyncio
import socket

import pytest
from structlog.testing import capture_logs

from proxy.config import Listener
from proxy.fleet import local_addresses
from proxy.fleet.local_addresses import LocalAddresses


def listener(host: str, source: str | None = None) -> Listener:
    values = {"name": "C", "bind": "127.0.0.1:1", "upstream": f"{host}:9", "upstream.source": source}
    return Listener.model_validate(values)


def resolving(monkeypatch: pytest.MonkeyPatch, known: dict[str, list[str]]) -> None:
    async def resolve_host(host: str) -> list[str]:
        if host not in known:
            raise socket.gaierror(-2, "Name or service not known")
        return known[host] or await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(local_addresses, "resolve_host", resolve_host)


async def test_addresses_of_its_own_and_those_the_kernel_chooses() -> None:
    assert await LocalAddresses().resolve([listener("127.0.0.1")]) == {"127.0.0.1"}
    two = [listener("127.0.0.1", "127.0.0.99"), listener("no.such.host", "::0001")]
    assert await LocalAddresses().resolve(two) == {"127.0.0.99", "::1"}


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


async def test_an_address_that_cannot_be_reached_is_not_dialled_from(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, {"kafka": ["255.255.255.255", "127.0.0.1"]})
    assert await LocalAddresses().resolve([listener("kafka")]) == {"127.0.0.1"}


async def test_a_name_that_nobody_knows_is_reported_once_and_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"kafka": ["127.0.0.1"], "silent": list[str]()}
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
