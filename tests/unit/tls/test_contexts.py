"""Which keys of TLS make a context, and what is said of others."""

import shutil
import ssl
import subprocess

import pytest

from proxy.tls import cipher_suites
from proxy.tls.contexts import TlsSettingError, build_client_context, build_server_context
from proxy.tls.tls_settings import ClientTls, KeyPair, ServerTls
from tests.tools.authority import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls"))


def pair_of(files, password=None):
    return KeyPair(files.certificate.read_text(), files.key.read_text(), password)


@pytest.mark.promise("tls.md", "TLS 1.2 and 1.3 are on; there is no older version and no renegotiation.")
def test_a_server_has_no_renegotiation_and_no_old_version(authority):
    context = build_server_context(ServerTls(pair_of(authority.issue("a"))))
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert (context.minimum_version, context.maximum_version) == (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


def test_certificates_and_names_are_verified_as_configured(authority):
    pair, ca = pair_of(authority.issue("a")), authority.ca.read_text()
    for wanted, mode in (("none", ssl.CERT_NONE), ("requested", ssl.CERT_OPTIONAL), ("required", ssl.CERT_REQUIRED)):
        assert build_server_context(ServerTls(pair, wanted, ca)).verify_mode == mode, wanted
    for verify in (True, False):
        context = build_client_context(ClientTls("broker", verify, truststore=ca))
        assert (context.check_hostname, context.verify_mode) == (verify, ssl.CERT_REQUIRED), verify


@pytest.mark.promise("tls.md", "An encrypted key needs its password, which is never shown.")
def test_an_encrypted_key_needs_its_password(authority):
    files = authority.issue("a", password="right")
    build_server_context(ServerTls(pair_of(files, "right")))
    with pytest.raises(TlsSettingError, match=r"is encrypted, and ssl\.key\.password is missing") as missing:
        build_server_context(ServerTls(pair_of(files)))
    assert missing.value.key == "ssl.key.location"
    with pytest.raises(TlsSettingError, match="does not decrypt") as wrong:
        build_server_context(ServerTls(pair_of(files, "canary-wrong")))
    assert wrong.value.key == "ssl.key.password"
    assert "canary" not in str(wrong.value)


@pytest.mark.promise("tls.md", "The key of another certificate is refused when the configuration is read.")
def test_the_key_of_another_certificate_is_refused(authority):
    for use_rsa in [False, True]:
        one, other = pair_of(authority.issue("a")), pair_of(authority.issue("b", use_rsa=use_rsa))
        with pytest.raises(TlsSettingError, match=r"is not the key of ssl\.certificate\.location"):
            build_server_context(ServerTls(KeyPair(one.certificate, other.key)))


@pytest.mark.promise("tls.md", "Without a suite of TLS 1.3 in `ssl.cipher.suites`, TLS 1.3 is off.")
def test_suites_choose_versions(authority):
    pair = pair_of(authority.issue("a"))
    only_2 = build_server_context(
        ServerTls(pair, cipher_suites=("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLS_RSA_WITH_AES_128_CBC_SHA"))
    )
    only_3 = build_server_context(ServerTls(pair, cipher_suites=cipher_suites.TLS_1_3))
    assert only_2.maximum_version == ssl.TLSVersion.TLSv1_2
    assert [one["name"] for one in only_2.get_ciphers() if one["protocol"] != "TLSv1.3"] == [
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        "AES128-SHA",
    ]
    assert only_3.minimum_version == ssl.TLSVersion.TLSv1_3
    with pytest.raises(TlsSettingError, match=r"has no suite of TLSv1\.2"):
        build_server_context(ServerTls(pair, versions=("TLSv1.2",), cipher_suites=cipher_suites.TLS_1_3))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the names are compared with those of openssl(1)")
def test_names_are_those_of_openssl():
    listed = subprocess.run(
        ["openssl", "ciphers", "-stdname", "ALL:@SECLEVEL=0"], capture_output=True, text=True, check=True
    )
    names = {words[0]: words[2] for words in map(str.split, listed.stdout.splitlines())}
    assert {name: names.get(name) for name in cipher_suites.TLS_1_2} == cipher_suites.TLS_1_2
    assert {cipher_suites.kafka_name(openssl) for openssl in cipher_suites.TLS_1_2.values()} == {*cipher_suites.TLS_1_2}
    assert set(cipher_suites.TLS_1_3) <= names.keys()
