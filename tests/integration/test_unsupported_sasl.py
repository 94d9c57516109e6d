"""Unsupported requests on a listener with SASL: the broker's business until the client is logged in, then answered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from proxy.local.sidecars import SidecarProcess
from tests.brokers import SharedBroker
from tests.cases import each
from tests.frames import METADATA
from tests.integration.logins import Own
from tests.integration.metrics import sample
from tests.sasl import plain

pytestmark = pytest.mark.kafka

SITE = tuple[str, str, SidecarProcess]
"""Address of the broker's listener with SASL, that of the sidecar before it, and the sidecar, without observers."""

SECRET = "alice-secret"


@pytest.fixture(scope="module")
def site(secured: SharedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SITE]:
    behind, before = secured.listeners["SASL"]
    listener = {"name": "SASL", "bind": before, "upstream": behind, "security.protocol": "SASL_PLAINTEXT"}
    config = {"broker.id": 1, "listeners": [listener], "admin": {"bind": secured.node.admin}}
    path = tmp_path_factory.mktemp("sasl") / "sasl.yaml"
    path.write_text(yaml.safe_dump(config))
    process = SidecarProcess.start(path, path.with_suffix(".log"), secured.node.admin)
    try:
        with Own(before, "first") as client:  # its answer has what the broker supports
            assert len(client.ask(18, 0, b"")) > 100
        yield behind, before, process
    finally:
        assert process.stop()


@pytest.mark.promise(
    "unsupported-requests.md", "Before a login everything goes to the broker, which closes the connection."
)
@each(("key", "version"), [(9999, 0), (METADATA, 99), (METADATA, 1), (30000, 0), (30000, 1)])
def test_before_the_login_the_broker_closes(site: SITE, key: int, version: int) -> None:
    after_a_handshake = []
    for address in site[:2]:
        with Own(address, "nobody") as client, pytest.raises(ConnectionError):
            client.ask(key, version, bytes(4))
        with Own(address, "nobody") as client:
            assert client.begin("PLAIN") == 0
            after_a_handshake.append(_ask(client, key, version))
    direct, through = after_a_handshake
    assert through == direct


def _ask(client: Own, key: int, version: int) -> bytes | None:
    try:
        return client.ask(key, version, bytes(4))
    except ConnectionError:
        return None


@pytest.mark.promise(
    "unsupported-requests.md", "After a login the sidecar answers unsupported requests of listeners with SASL."
)
def test_after_the_login_the_sidecar_answers(site: SITE) -> None:
    behind, before, sidecar = site
    replied = "brokerside_intercepted_requests_total"
    counted = sample(sidecar.metrics(), replied)
    with Own(before, "alice") as client:
        assert client.begin("PLAIN") == 0
        assert client.wrapped(plain("alice", SECRET))[0] == 0
        assert client.ask(9999, 0, b"") == client.ask(METADATA, 99, b"") == client.ask(30000, 1, b"") == b""
        assert client.ask_at_once(9999, 0, [b"x", b"", b"yz"]) == [b""] * 3
        client.metadata()
    assert sample(sidecar.metrics(), replied) - counted == 6
    assert sample(sidecar.metrics(), "brokerside_decode_total") == 0
    with Own(behind, "alice") as client:
        assert client.begin("PLAIN") == 0
        assert client.wrapped(plain("alice", SECRET))[0] == 0
        with pytest.raises(ConnectionError):
            client.ask(9999, 0, b"")


@pytest.mark.promise(
    "unsupported-requests.md",
    "After bare tokens of SASL the first request has to be one that Kafka has, or counts as a token.",
)
def test_with_tokens_that_are_no_requests(site: SITE) -> None:
    with Own(site[1], "alice") as client:
        assert client.begin("PLAIN", 0) == 0
        client.bare(plain("alice", SECRET))
        client.metadata()  # until a request that Kafka has, whatever comes may be a token
        assert client.ask(9999, 0, b"") == b""
        client.metadata()
