"""BrokerMetadata where clients have to log in, and from a plain connection to one with a login."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from proxy.client import BrokerMetadataClient, endpoints
from proxy.errors import BrokersideError
from proxy.fleet.connection import BrokerUnreachable
from proxy.interceptors.tags import TAGS_BY_NAME
from proxy.local.sidecars import SidecarProcess
from tests.brokers import SharedBroker
from tests.integration.test_audit import until

pytestmark = pytest.mark.kafka

LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "alice",
    "sasl.password": "alice-secret",
}


@contextmanager
def sidecar(secured: SharedBroker, folder: Path, **values: object) -> Iterator[str]:
    """Gives the address of its plain listener; there is one with SASL beside it."""
    node, sasl = secured.node, secured.listeners["SASL"]
    listener = {
        "name": "SASL",
        "bind": sasl.advertised,
        "upstream": sasl.address,
        "security.protocol": "SASL_PLAINTEXT",
    }
    config = {
        "broker.id": node.id,
        "internal.bootstrap.servers": node.internal,
        "listeners": [{"name": "CLIENT", "bind": node.advertised, "upstream": node.upstream}, listener],
        "admin": {"bind": node.admin},
        **values,
    }
    path = folder / "sidecar.yaml"
    path.write_text(yaml.safe_dump(config))
    running = SidecarProcess.start(path, path.with_suffix(".log"), node.admin)
    try:
        yield node.advertised
    finally:
        running.stop()


@pytest.fixture
def address(secured: SharedBroker, tmp_path: Path) -> Iterator[str]:
    with sidecar(secured, tmp_path, workers=2) as found:
        yield found


@pytest.mark.promise(
    "broker-metadata.md",
    "A client finds the secured endpoint over a plain connection; there, BrokerMetadata needs a login.",
)
def test_a_client_goes_from_a_plain_connection_to_one_with_a_login(secured: SharedBroker, address: str) -> None:
    with BrokerMetadataClient(address) as client:
        plain = client.this_broker()
        assert [one.node_id for one in client.brokers()] == [plain.node_id]
    target = endpoints(plain)["sasl_plaintext"]
    assert str(target) == secured.listeners["SASL"].advertised

    with BrokerMetadataClient(target, LOGIN) as client:
        logged_in = client.check(plain.node_id)
        with BrokerMetadataClient(address) as other:  # they change until the sidecar, and each worker, knows all
            until(lambda: client.this_broker().tags == other.this_broker().tags)

    assert (logged_in.host, logged_in.port) == (target.host, target.port)
    assert (plain.host, plain.port) != (target.host, target.port)
    with BrokerMetadataClient(target) as client, pytest.raises(BrokerUnreachable, match="the connection was closed"):
        client.this_broker()
    wrong = {**LOGIN, "sasl.password": "wrong"}
    with BrokerMetadataClient(target, wrong) as client, pytest.raises(BrokersideError, match="SASL"):
        client.this_broker()


@pytest.mark.promise(
    "broker-metadata.md",
    "With `broker.metadata.before.authentication` BrokerMetadata is answered before the login, too.",
)
def test_before_the_login_where_that_is_configured(secured: SharedBroker, tmp_path: Path) -> None:
    values = {"broker.metadata.before.authentication": True}
    with (
        sidecar(secured, tmp_path, **values) as address,
        BrokerMetadataClient(secured.listeners["SASL"].advertised) as client,
        BrokerMetadataClient(address) as other,
    ):
        until(lambda: client.this_broker().tags == other.this_broker().tags)


@pytest.mark.promise("tags.md", "Every built-in tag of a broker is documented and has the format that its page gives.")
@pytest.mark.slow
def test_every_tag_is_as_documented(secured: SharedBroker, address: str) -> None:
    with BrokerMetadataClient(address) as client:
        builtin = TAGS_BY_NAME.keys() - {"sidecar"}
        until(lambda: client.this_broker().tags.keys() >= builtin)
        tags = client.this_broker().tags
    assert all(re.fullmatch(TAGS_BY_NAME[name].grammar, tags[name]) for name in builtin), tags
    assert (tags["broker.id"], tags["broker.version"]) == (str(secured.node.id), "4.3.x (inferred)")
    assert tags["cluster.id"] == secured.state.cluster_id
    assert f"plaintext://{address}" in tags["endpoints"].split(",")
    page = (Path(__file__).parents[2] / "docs" / "tags.md").read_text()
    assert all(f"## `{name}`\n" in page for name in builtin)
