"""``/readyz`` says when the sidecar stands before the wrong broker, or beside its clients' way."""

from __future__ import annotations

import pytest
import yaml

from proxy.config import load
from proxy.local.cluster import ClusterState
from proxy.net import upstream_check
from proxy.net.upstream import Upstream
from tests.integration.conftest import free_port

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, None),
        ({"broker.id": 9}, "is what broker 1 advertises, but broker.id is 9"),
        ({"listeners": [{"bind": "127.0.0.1:{free}"}]}, "so clients bypass this sidecar"),
        ({"broker.id": 9, "listeners": [{"bind": "127.0.0.1:{free}"}]}, "has no broker 9, only 1"),
        ({"listeners": [{"bind": "127.0.0.1:{free}", "advertised": "{advertised}"}]}, None),
        ({"listeners": [{"bind": "127.0.0.1:{free}", "rewrite.addresses": True}]}, None),
        ({"broker.id": 9, "listeners": [{"rewrite.addresses": True}]}, "has no broker 9, only 1"),
    ],
)
async def test_the_broker_behind_a_listener(cluster: ClusterState, change: dict, said: str | None) -> None:
    folder = cluster.nodes[0].home.parent
    config = yaml.safe_load((folder / "sidecar-1.yaml").read_text())
    listener = config["listeners"][0]
    for key, value in change.get("listeners", [{}])[0].items():
        listener[key] = value
        if isinstance(value, str):
            listener[key] = value.format(free=free_port(), advertised=cluster.nodes[0].advertised)
    config["broker.id"] = change.get("broker.id", 1)
    path = folder / "upstream_check.yaml"
    path.write_text(yaml.safe_dump(config))
    loaded = load(path)
    problem = await upstream_check.find_problem(
        loaded.listeners[0], Upstream(loaded.listeners[0].upstream, 60.0), loaded.broker_id
    )
    assert problem is None if said is None else said in (problem or "")


async def test_a_port_that_is_no_broker(cluster: ClusterState) -> None:
    folder = cluster.nodes[0].home.parent
    config = yaml.safe_load((folder / "sidecar-1.yaml").read_text())
    config["listeners"][0]["upstream"] = f"127.0.0.1:{free_port()}"
    path = folder / "upstream_check.yaml"
    path.write_text(yaml.safe_dump(config))
    (listener,) = load(path).listeners
    with pytest.raises(ConnectionRefusedError):
        await upstream_check.find_problem(listener, Upstream(listener.upstream, 60.0), 1)
