"""The MBeans that docs/limits-operation.md names are a real broker's, and it has rates of listeners without a limit."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from proxy.local.cluster import ClusterState

pytestmark = pytest.mark.kafka

ROOT = Path(__file__).parents[2]
STRANGER = "127.0.0.251"
"""A client's address without a quota."""


@pytest.mark.promise("limits-operation.md", "The MBeans that the page names are a real broker's.")
def test_the_table_names_what_a_broker_has(cluster: ClusterState) -> None:
    page = (ROOT / "docs" / "limits-operation.md").read_text()
    table = re.findall(r"^\| `(kafka\.[^`]*)` \| `([^`]*)` \|", page, re.MULTILINE)
    assert len(table) == 6
    java = shutil.which("java")
    assert java is not None
    node = cluster.nodes[0]
    host, _, port = node.upstream.rpartition(":")
    patterns = ["kafka.server:type=socket-server-metrics,*", "kafka.network:type=Acceptor,*"]
    with socket.create_connection((host, int(port)), source_address=(STRANGER, 0)):
        listed = subprocess.run(
            [java, str(ROOT / "tests" / "tools" / "Mbeans.java"), str(node.pid), *patterns],
            capture_output=True,
            check=True,
            text=True,
            timeout=200,
        )
    names = (line.rpartition(" ") for line in listed.stdout.splitlines())
    mbeans = {(name, attribute) for name, _, attribute in names}

    for name, attribute in table:
        if ",ip=" not in name:
            assert (name.replace("listener=…", "listener=CLIENT"), attribute) in mbeans
    # A listener has its rate without a limit, an address has none.
    rates = {name for name, attribute in mbeans if attribute == "connection-accept-rate"}
    assert "kafka.server:type=socket-server-metrics,listener=CLIENT" in rates
    assert f"kafka.server:type=socket-server-metrics,ip={STRANGER}" not in rates
