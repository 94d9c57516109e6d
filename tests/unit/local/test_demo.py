"""What ``KEEP=1 make demo`` says at its end: commands that there are, with the addresses of what runs."""

from __future__ import annotations

import io
import shlex
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from observers.event import Envelope
from proxy.cli import _parser
from proxy.local import audit_reader, demo
from proxy.local.state import ClusterState, Node
from tests.spark.envelopes import METADATA, connection, envelope, event, status


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


def records(last: Any) -> dict[int, Envelope]:
    """Five events, the status ``last``, and one after it; number 3 was lost."""
    read_totals = [
        envelope([event(METADATA), event(METADATA)]),
        envelope([connection(change="opened", requests=0), connection(requests=2)], first_seq=4),
        envelope([last, event(METADATA)], first_seq=6),
    ]
    return {one.first_seq: one for one in read_totals}


@pytest.mark.promise("README.md", "make demo counts only events that came before the status that it compares with.")
def test_only_what_was_before_the_status_is_counted() -> None:
    found = records(status(emitted=5, dropped={"failed": 1}))
    last = found[6].events[0]
    assert audit_reader._count_missing(found, last) == 0
    reported = audit_reader._count(found, last)
    assert (dict(reported.kinds), reported.requests, reported.lost) == ({"request": 2, "connection": 2}, 2, 1)
    del found[4]
    assert audit_reader._count_missing(found, last) == 2
