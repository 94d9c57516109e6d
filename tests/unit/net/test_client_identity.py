"""What a client's TLS shows of it, also where its certificate is strange."""

from types import SimpleNamespace
from typing import Any

import pytest

from proxy.core.exchange import Connection
from proxy.errors import PeerError
from proxy.net.client_identity import identified
from proxy.tls.principal_mapping import PrincipalMapper

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
