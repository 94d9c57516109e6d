"""Host names in ``max.connections.per.ip.overrides`` are looked up when the file is read, as the broker does."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import pytest

from proxy.config import host_names, load
from proxy.config.limits import limits_of
from proxy.errors import ConfigError
from proxy.reload import ConfigFileMonitor, Reloader

KEY = "quotas.max.connections.per.ip.overrides"
FILE = """\
broker.id: 1
listeners:
  - {{name: CLIENT, bind: "127.0.0.1:9092", upstream: "127.0.0.1:19092"}}
quotas:
  max.connections.per.ip.overrides: "{}"
"""


class NameService:
    """Answers in place of the machine's."""

    def __init__(self) -> None:
        self.addresses = {
            "gateway.example": ["2001:db8::7", "10.0.0.7", "10.0.0.8"],
            "v6.example": ["2001:DB8:0::9"],
            "other.example": ["10.0.0.9"],
        }
        self.asked: list[str] = []
        self.threads: set[threading.Thread] = set()

    def __call__(self, host, port, family=0, type=0, proto=0, flags=0):
        self.asked.append(host)
        self.threads.add(threading.current_thread())
        if host not in self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, type, 6, "", (address, 0)) for address in self.addresses[host]]


@pytest.fixture
def names(monkeypatch):
    names = NameService()
    monkeypatch.setattr(host_names.socket, "getaddrinfo", names)
    return names


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "sidecar.yaml"


def overrides(path: Path, text: str, **environ: str) -> dict[str, int]:
    path.write_text(FILE.format(text))
    return limits_of(load(path, environ)).ip_connections_overrides


def problems(path: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        overrides(path, text)
    return raised.value.problems


@pytest.mark.promise("config/quotas.md", "A host name in an override stands for its first address, as in the broker.")
def test_a_name_stands_for_its_first_address_ipv4_before_ipv6(names, path):
    found = overrides(path, "gateway.example:50, v6.example:5,[fd00::7]:20,10.1.2.3:1")
    assert found == {"10.0.0.7": 50, "2001:db8::9": 5, "fd00::7": 20, "10.1.2.3": 1}
    assert sorted(names.asked) == ["gateway.example", "v6.example"]

    names.asked.clear()
    found = overrides(path, "010.0.0.7:1,10.8:2,[::1]:3,::ffff:10.0.0.9:4")
    assert found == {"10.0.0.7": 1, "10.0.0.8": 2, "::1": 3, "10.0.0.9": 4}
    assert names.asked == [], "the broker reads these as addresses"

    variable = {"BROKERSIDE_QUOTAS__MAX_CONNECTIONS_PER_IP_OVERRIDES": "other.example:3"}
    assert overrides(path, "gateway.example:50", **variable) == {"10.0.0.9": 3}

    names.threads.clear()
    names.addresses = {f"host-{number}.example": [f"10.0.1.{number}"] for number in range(200)}
    assert len(overrides(path, ",".join(f"{name}:1" for name in names.addresses))) == 200
    assert len(names.threads) <= host_names.CONCURRENT_LOOKUPS


@pytest.mark.promise("config/quotas.md", "A reload looks host names up again, and the event loop never does.")
async def test_a_reload_asks_again_and_never_in_the_event_loop(names, path):
    path.write_text(FILE.format("gateway.example:50"))
    applied = []

    async def apply(config):
        applied.append(config)
        return True

    reloader = Reloader(ConfigFileMonitor(path), await asyncio.to_thread(load, path, {}), apply)
    assert (await reloader.reload("test")).result == "unchanged"

    names.addresses["gateway.example"] = ["10.0.0.17"]
    result = await reloader.reload("test")

    assert (result.result, result.changed) == ("applied", (KEY,))
    assert limits_of(applied[0]).ip_connections_overrides == {"10.0.0.17": 50}
    assert threading.main_thread() not in names.threads
    del names.addresses["gateway.example"]
    assert (await reloader.reload("test")).result == "rejected"
    assert limits_of(reloader.config).ip_connections_overrides == {"10.0.0.17": 50}
