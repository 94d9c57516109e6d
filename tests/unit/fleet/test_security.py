from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from proxy.errors import LocalError
from proxy.fleet.security import InternalSecurity, Security
from tests.tools.authority import Authority

SCRAM = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "me",
    "sasl.password": "hunter2",
}


def test_without_settings_there_is_neither_tls_nor_sasl() -> None:
    security = Security.from_settings({"bootstrap.servers": "127.0.0.1:9092", "socket.timeout.ms": "7"})
    assert security == Security()
    assert security.build_ssl_context() is None


def test_sasl_and_tls() -> None:
    security = Security.from_settings(SCRAM)
    assert (security.mechanism, security.user, security.password) == ("SCRAM-SHA-512", "me", "hunter2")
    context = security.build_ssl_context()
    assert context is not None
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    shown = repr(Security.from_settings(SCRAM | {"ssl.key.password": "swordfish"}))
    assert "hunter2" not in shown
    assert "swordfish" not in shown
    unused = {"ssl.crl.location": "/x", "sasl.mechanism": "OAUTHBEARER"}
    assert Security.from_settings(unused) == Security(), "settings of what is not used are passed over"


def test_what_is_verified_can_be_less() -> None:
    for settings, verify, names in [
        ({"ssl.endpoint.identification.algorithm": "none"}, ssl.CERT_REQUIRED, False),
        ({"enable.ssl.certificate.verification": "false"}, ssl.CERT_NONE, False),
    ]:
        context = Security.from_settings({"security.protocol": "ssl", **settings}).build_ssl_context()
        assert context is not None, (settings, verify, names)
        assert (context.verify_mode, context.check_hostname) == (verify, names), (settings, verify, names)


@pytest.mark.promise(
    "limits.md", "Settings under `internal` with which the cluster cannot be asked for quotas are named."
)
def test_what_it_cannot_heed_it_names() -> None:
    for change, named in [
        ({"security.protocol": "tls"}, "security.protocol 'tls' is not known"),
        ({"sasl.mechanism": "OAUTHBEARER"}, "sasl.mechanism OAUTHBEARER is not supported"),
        ({"sasl.mechanism": "gssapi"}, "sasl.mechanism GSSAPI"),
        ({"sasl.password": ""}, "sasl.password is missing"),
        ({"ssl.keystore.location": "/x"}, "ssl.keystore.location is not supported"),
        ({"ssl.crl.location": "/x"}, "ssl.crl.location is not supported"),
        ({"sasl.oauthbearer.config": "x"}, "sasl.oauthbearer.config is not supported"),
    ]:
        with pytest.raises(LocalError, match=named) as refused:
            Security.from_settings(SCRAM | change)
        assert "hunter2" not in str(refused.value), (change, named)


def test_a_file_that_cannot_be_used_is_named_and_not_shown() -> None:
    for settings, named in [
        ({"ssl.ca.location": "/no/such/file"}, "ssl.ca.location: No such file"),
        ({"ssl.ca.pem": "junk-in-memory"}, "ssl.ca.location: "),
        ({"ssl.certificate.location": "/no/such/file"}, "ssl.certificate.location: No such file"),
        ({"ssl.certificate.pem": "junk-in-memory", "ssl.key.pem": "hunter2"}, "ssl.certificate.location: "),
    ]:
        with pytest.raises(LocalError, match=named) as refused:
            Security.from_settings({"security.protocol": "ssl", **settings}).build_ssl_context()
        assert "hunter2" not in str(refused.value), (settings, named)
        assert "junk" not in str(refused.value), (settings, named)


@pytest.mark.promise(
    "tls.md",
    "Changed certificate files under `internal` are read again; while a pair does not match, the old one is used.",
)
async def test_files_that_have_changed_are_read_again(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("sidecar")
    settings = {
        "security.protocol": "ssl",
        "ssl.ca.location": str(authority.ca),
        "ssl.certificate.location": str(pair.certificate),
        "ssl.key.location": str(pair.key),
    }
    security = InternalSecurity(settings)
    _, first = await security.current()
    assert (await security.current())[1] is first

    key = pair.key.read_bytes()
    authority.issue("sidecar")
    renewed = pair.key.read_bytes()
    pair.key.write_bytes(key)
    with capture_logs() as logs:
        for _ in range(2):
            assert (await security.current())[1] is first, "half of a pair"
    [line] = logs
    assert (line["event"], line["log_level"]) == ("internal_certificates_unusable", "warning")
    assert line["error"].startswith("internal: ssl.certificate.location: ")

    pair.key.write_bytes(renewed)
    _, second = await security.current()
    assert second is not first
    other = Authority(tmp_path / "other")
    authority.ca.write_bytes(other.ca.read_bytes())
    _, third = await security.current()
    assert third is not None
    assert third.get_ca_certs(True) == [ssl.PEM_cert_to_DER_cert(other.ca.read_text())]


async def test_files_that_cannot_be_used_at_first_are_named(tmp_path: Path) -> None:
    security = InternalSecurity({"security.protocol": "ssl", "ssl.ca.location": str(tmp_path / "missing.pem")})
    with pytest.raises(LocalError, match=r"internal: ssl\.ca\.location"):
        await security.current()
