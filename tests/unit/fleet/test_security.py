"""TLS and logins to the cluster; SCRAM by the examples of RFC 5802 (section 5) and RFC 7677 (section 3)."""

import ssl
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from proxy.errors import LocalError, PeerError
from proxy.fleet.internal_security import InternalSecurity
from proxy.fleet.scram import Scram
from proxy.fleet.security import Security
from tests.tools.authority import Authority

SCRAM = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "me",
    "sasl.password": "hunter2",
}


def test_sasl_and_tls_and_what_is_verified() -> None:
    security = Security.from_settings({"bootstrap.servers": "127.0.0.1:9092", "socket.timeout.ms": "7"})
    assert security == Security()
    assert security.build_ssl_context() is None
    security = Security.from_settings(SCRAM)
    assert (security.mechanism, security.user, security.password) == ("SCRAM-SHA-512", "me", "hunter2")
    shown = repr(Security.from_settings(SCRAM | {"ssl.key.password": "swordfish"}))
    assert "hunter2" not in shown
    assert "swordfish" not in shown
    unused = {"ssl.crl.location": "/x", "sasl.mechanism": "OAUTHBEARER"}
    assert Security.from_settings(unused) == Security(), "settings of what is not used are passed over"
    for settings, verify, names in [
        ({}, ssl.CERT_REQUIRED, True),
        ({"ssl.endpoint.identification.algorithm": "none"}, ssl.CERT_REQUIRED, False),
        ({"enable.ssl.certificate.verification": "false"}, ssl.CERT_NONE, False),
    ]:
        context = Security.from_settings({"security.protocol": "ssl", **settings}).build_ssl_context()
        assert (context.verify_mode, context.check_hostname) == (verify, names), settings


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
    security = InternalSecurity(settings | {"ssl.ca.location": str(tmp_path / "missing.pem")})
    with pytest.raises(LocalError, match=r"internal: ssl\.ca\.location"):
        await security.current()
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
    assert third.get_ca_certs(True) == [ssl.PEM_cert_to_DER_cert(other.ca.read_text())]


NONCE = "rOprNGfwEbeRWgbNEkqO"
FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
LAST = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_the_examples_of_the_rfcs() -> None:
    scram = Scram("sha256", "user", "pencil", NONCE)
    assert scram.first_message() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert scram.final_message(FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    scram.verify_server(LAST)
    scram = Scram("sha1", "user", "pencil", "fyko+d2lbbFgONRv9qkxdawL")
    assert scram.final_message(b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096") == (
        b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts="
    )
    scram.verify_server(b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=")
    assert Scram("sha256", "a=b,c", "x", "n").first_message() == b"n,,n=a=3Db=2Cc,r=n"


def test_a_challenge_no_server_may_send() -> None:
    for challenge, said in [
        (FIRST.replace(b"rOpr", b"xOpr"), "not an answer to ours"),
        (b"r=rOprNGfwEbeRWgbNEkqO,s=AA==,i=4096", "not an answer to ours"),
        (FIRST.replace(b"i=4096", b"i=4095"), "4095 iterations"),
        (FIRST.replace(b"i=4096", b"i=2147483647"), "2147483647 iterations"),
        (FIRST.replace(b"i=4096", b"i=x"), "cannot be read"),
        (FIRST.replace(b"s=W", b"s=*"), "cannot be read"),
        (b"e=unknown-user", "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b"", "cannot be read"),
    ]:
        with pytest.raises(PeerError, match=said):
            Scram("sha256", "user", "pencil", NONCE).final_message(challenge)


@pytest.mark.promise("security.md", "The sidecar refuses a broker that does not prove to know its SCRAM password.")
def test_a_server_that_does_not_know_the_password() -> None:
    for last in [LAST.replace(b"6rri", b"7rri"), b"e=invalid-proof", b"v=", b""]:
        scram = Scram("sha256", "user", "pencil", NONCE)
        scram.final_message(FIRST)
        with pytest.raises(PeerError, match="does not prove"):
            scram.verify_server(last)
