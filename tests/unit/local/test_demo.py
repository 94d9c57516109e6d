"""What ``KEEP=1 make demo`` says at its end: commands that there are, with the addresses of what runs."""

from __future__ import annotations

import io
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from proxy.cli import _parser
from proxy.local import demo
from proxy.local.state import ClusterState, Node


def said() -> list[str]:
    ports = iter(range(1, 6))
    addresses = [f"127.0.0.1:{next(ports)}" for _ in range(5)]
    state = ClusterState("4.3.1", "id", "sidecar", (Node(1, *addresses, Path("/demo/cluster/node-1")),))
    out = io.StringIO()
    demo._explain(Path("/demo"), state, Console(file=out, soft_wrap=True, highlight=False))
    return out.getvalue().splitlines()


@pytest.mark.promise("README.md", "Every command that make demo names at its end can be run.")
def test_every_command_that_it_names_can_be_run(monkeypatch) -> None:
    monkeypatch.setattr("sys.argv", ["brokerside"])
    lines = [line.strip() for line in said() if line.startswith("  brokerside ")]
    named = set()
    for line in lines:
        _, *arguments = shlex.split(line.partition(" && ")[0], comments=True)
        parsed = _parser().parse_args(arguments)  # an argument that there is not would exit
        named.add(arguments[0])
        if "admin" in parsed:
            assert str(parsed.admin) == "127.0.0.1:5"
    assert {"quotas", "reload", "connections", "top", "broker-metadata", "query", "report", "jobs"} <= named
