"""When certificates expire, by a clock of the test's own, and what a client's TLS shows of it."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from structlog.testing import capture_logs

from proxy.config import load
from proxy.core.exchange import Connection
from proxy.errors import PeerError
from proxy.net.certificate_expiry import CHECK_INTERVAL, DAY, CertificateExpiry
from proxy.net.client_identity import identified
from proxy.tls.principal_mapping import PrincipalMapper
from tests.tools.authority import Authority


def config_of(folder, days):
    pair = Authority(folder).issue("broker", days=days)
    tls = {"ssl.certificate.location": str(pair.certificate), "ssl.key.location": str(pair.key)}
    listener = {"name": "TLS", "bind": "127.0.0.1:1", "upstream": "127.0.0.1:2", "security.protocol": "SSL", "tls": tls}
    path = folder / "sidecar.yaml"
    path.write_text(yaml.safe_dump({"broker.id": 1, "listeners": [listener]}))
    return load(path, {})


@pytest.mark.promise("tls.md", "A line is logged once 30, 7 and 1 days before a certificate expires.")
def test_a_line_is_logged_once_30_7_and_1_days_before_and_at_the_end(tmp_path):
    now = [time.time()]

    def lines(expiry, seconds):
        now[0] += seconds
        with capture_logs() as found:
            expiry.on_tick()
        return [(line["event"], line.get("within_days")) for line in found]

    expiry = CertificateExpiry(config_of(tmp_path, 40), lambda: now[0])
    assert lines(expiry, 0) == []
    assert lines(expiry, 11 * DAY) == [("certificate_expires", 30)]
    assert lines(expiry, CHECK_INTERVAL) == []
    assert lines(expiry, 23 * DAY) == [("certificate_expires", 7)]
    assert lines(expiry, 5.5 * DAY) == [("certificate_expires", 1)]
    assert lines(expiry, DAY) == [("certificate_expired", None)]
    assert lines(expiry, DAY) == []
    now = [time.time()]
    new = CertificateExpiry(config_of(tmp_path, 0.5), lambda: now[0])
    assert lines(new, 0) == [("certificate_expires", 1)]
    new.update_config(config_of(tmp_path, 6))
    assert lines(new, 0) == [("certificate_expires", 7)], "a new one is watched from the beginning"


STREAM: Any = SimpleNamespace(version="TLSv1.3", cipher="TLS_AES_128_GCM_SHA256", peer_certificate=b"\x30\x05abc")
"""Of a client whose certificate is no DER."""


def identify(has_sasl: bool, rules: str = "DEFAULT") -> tuple[Connection, PeerError | None]:
    connection = Connection("1", "CLIENT", "127.0.0.1", 1, 0.0, "User:ANONYMOUS", principal_source="unauthenticated")
    listener: Any = SimpleNamespace(has_sasl=has_sasl)
    return identified(connection, listener, STREAM, PrincipalMapper(rules))


@pytest.mark.promise("tls.md", "A certificate that cannot be read refuses no client that logs in with SASL.")
def test_a_certificate_that_cannot_be_read_refuses_no_client_that_logs_in():
    connection, problem = identify(has_sasl=True)
    assert (connection.tls_client_serial, problem) == (None, None)
    connection, problem = identify(has_sasl=False)
    assert (connection.tls_client_serial, connection.tls_version) == (None, "TLSv1.3")
    assert problem.detail.startswith("its certificate gives no principal: is no certificate")
