"""BrokerMetadata where clients have to log in, and from a plain connection to one with a login."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from proxy.client import BrokerMetadataClient, endpoints
from proxy.errors import BrokersideError
from proxy.fleet.connection import BrokerUnreachable
from proxy.local.ports import HOST, free_ports
from proxy.local.sidecars import SidecarProcess
from tests.integration.test_audit import until
from tests.integration.test_quota_poller import Secured, secured  # noqa: F401 - a fixture

pytestmark = pytest.mark.kafka

LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "alice",
    "sasl.password": "alice-secret",
}


@contextmanager
def sidecar(secured: Secured, folder: Path, **values: object) -> Iterator[str]:  # noqa: F811 - the fixture
    """Gives the address of its plain listener; there is one with SASL beside it."""
    node = secured.node
    [port] = free_ports(1)
    sasl = {"name": "SASL", "bind": secured.sasl_advertised, "upstream": secured.sasl}
    config = {
        "broker.id": node.id,
        "internal.bootstrap.servers": node.internal,
        "listeners": [
            {"name": "CLIENT", "bind": node.advertised, "upstream": node.upstream},
            {**sasl, "security.protocol": "SASL_PLAINTEXT"},
        ],
        "admin": {"bind": f"{HOST}:{port}"},
        **values,
    }
    path = folder / "sidecar.yaml"
    path.write_text(yaml.safe_dump(config))
    running = SidecarProcess.start(path, path.with_suffix(".log"), f"{HOST}:{port}")
    try:
        yield node.advertised
    finally:
        running.stop()


@pytest.mark.parametrize("values", [{}, {"workers": 2}], ids=str)
def test_a_client_goes_from_a_plain_connection_to_one_with_a_login(
    secured: Secured,  # noqa: F811 - the fixture
    tmp_path: Path,
    values: dict[str, object],
) -> None:
    with sidecar(secured, tmp_path, **values) as address:
        with BrokerMetadataClient(address) as client:
            plain = client.this_broker()
        target = endpoints(plain)["sasl_plaintext"]
        assert str(target) == secured.sasl_advertised

        with BrokerMetadataClient(target, LOGIN) as client:
            logged_in = client.check(plain.node_id)
            with BrokerMetadataClient(address) as other:  # they change until the sidecar, and each worker, knows all
                until(lambda: client.this_broker().tags == other.this_broker().tags)

        assert (logged_in.host, logged_in.port) == (target.host, target.port)
        assert (plain.host, plain.port) != (target.host, target.port)
        with (
            BrokerMetadataClient(target) as client,
            pytest.raises(BrokerUnreachable, match="the connection was closed"),
        ):
            client.this_broker()
        wrong = {**LOGIN, "sasl.password": "wrong"}
        with BrokerMetadataClient(target, wrong) as client, pytest.raises(BrokersideError, match="SASL"):
            client.this_broker()


def test_before_the_login_where_that_is_configured(secured: Secured, tmp_path: Path) -> None:  # noqa: F811
    values = {"broker.metadata.before.authentication": True}
    with (
        sidecar(secured, tmp_path, **values) as address,
        BrokerMetadataClient(secured.sasl_advertised) as client,
        BrokerMetadataClient(address) as other,
    ):
        until(lambda: client.this_broker().tags == other.this_broker().tags)
