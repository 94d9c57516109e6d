"""Clients of other languages produce and consume through the sidecar, unchanged, and every request has an event."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.integration.metrics import sample
from tests.integration.topics import PARTITIONS, new_topic
from tests.interop.clients import BUILDING, CLIENTS, Client, digest
from tests.interop.conftest import Proxied
from tests.interop.wire import records, row, wait_audited

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

DOCUMENT = Path(__file__).parents[2] / "docs" / "clients.md"
AUDIT_TOPIC = "brokerside-audit"


def lines(client: Client) -> list[str]:
    """2,000 records of 0 to 1,200 bytes that compress, and one of 300 kB that does not."""
    values = [(f'{{"client":"{client.name}"}} ' * 50)[: n % 1201] for n in range(2000)]
    values.append(random.Random(client.name).randbytes(150_000).hex())
    return [f"{n:06d}\t{value}" for n, value in enumerate(values)]


@BUILDING
@pytest.mark.promise("clients.md", "Clients of five other libraries produce and read with all their codecs.")
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_client(proxied: Proxied, client: Client, protocol: str, pytestconfig: pytest.Config) -> None:
    if protocol == "SSL" and not pytestconfig.getoption("--interop-tls"):
        pytest.skip("the clients over TLS take 40 s more: make interop")
    sent = lines(client)
    client_id = f"interop-{client.name}-{protocol}"
    bootstrap, ca = (proxied.state.bootstrap, None) if protocol == "PLAINTEXT" else (proxied.tls_bootstrap, proxied.ca)
    topic = new_topic(proxied.state, client_id)
    requests = sample(proxied.quiet(), "brokerside_requests_total")
    connections = proxied.metric("brokerside_connections_accepted_total")
    handshakes = proxied.metric("brokerside_tls_handshakes_total")

    report = client.run([bootstrap, topic, f"{topic}-group", client_id, str(PARTITIONS)], sent, ca)

    assert report.partitions == PARTITIONS
    assert (report.produced, report.consumed, report.committed) == (len(sent), len(sent), len(sent))
    assert report.sha256 == digest(sent)
    assert proxied.metric("brokerside_connections_accepted_total") > connections
    assert (proxied.metric("brokerside_tls_handshakes_total") > handshakes) == (protocol == "SSL")
    assert proxied.metric("brokerside_frames_invalid_total") == 0
    events = wait_audited(proxied, client_id, int(sample(proxied.quiet(), "brokerside_requests_total") - requests))
    assert records(events, "Produce", topic) == len(sent)
    assert records(events, "Fetch", topic) >= len(sent)
    assert {event.decode for event in events if event.api in ("Produce", "Fetch")} == {"full"}
    expected = row(report, events)
    assert expected in DOCUMENT.read_text(encoding="utf-8").splitlines(), f"docs/clients.md lacks the line\n{expected}"
