"""``/readyz`` says when the sidecar stands before the wrong broker, or beside its clients' way."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from proxy.config import load
from proxy.local.ports import HOST, free_ports
from proxy.local.state import ClusterState
from proxy.net import upstream_check
from proxy.net.upstream import Upstream

pytestmark = pytest.mark.kafka


CASES: list[tuple[int, dict[str, object], str | None]] = [
    (1, {}, None),
    (9, {}, "is what broker 1 advertises, but broker.id is 9"),
    (1, {"bind": "FREE"}, "so clients bypass this sidecar"),
    (9, {"bind": "FREE"}, "has no broker 9, only 1"),
    (1, {"bind": "FREE", "advertised": "ADVERTISED"}, None),
    (1, {"bind": "FREE", "rewrite.addresses": True}, None),
    (9, {"rewrite.addresses": True}, "has no broker 9, only 1"),
]


@pytest.mark.promise(
    "config/listeners.md", "`/readyz` names a listener whose `upstream` is another broker, or that clients bypass."
)
async def test_the_broker_behind_a_listener(cluster: ClusterState, tmp_path: Path) -> None:
    node = cluster.nodes[0]
    free = f"{HOST}:{free_ports(1)[0]}"
    config = yaml.safe_load((node.home.parent / "sidecar-1.yaml").read_text())
    texts = {"FREE": free, "ADVERTISED": node.advertised}

    async def problem(broker_id: int, change: dict[str, object]) -> str | None:
        listener = config["listeners"][0] | {key: texts.get(str(value), value) for key, value in change.items()}
        path = tmp_path / "sidecar.yaml"
        path.write_text(yaml.safe_dump(config | {"broker.id": broker_id, "listeners": [listener]}))
        [loaded] = load(path).listeners
        return await upstream_check.find_problem(loaded, Upstream(loaded.upstream, 60.0), broker_id)

    for broker_id, change, said in CASES:
        found = await problem(broker_id, change)
        assert found is None if said is None else said in (found or ""), (broker_id, change, found)
    with pytest.raises(ConnectionRefusedError):
        await problem(1, {"upstream": "FREE"})
