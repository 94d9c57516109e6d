"""The keys of TLS and their contexts, and what is read of certificates and of the rules that map their subjects."""

import shutil
import ssl
import subprocess
import time

import pytest
import yaml
from cryptography import x509

from proxy.config import load, redacted
from proxy.config.serialization import pack, unpack
from proxy.errors import ConfigError
from proxy.tls import cipher_suites
from proxy.tls.certificates import first_of, serial_of
from proxy.tls.contexts import TlsSettingError, build_client_context, build_server_context
from proxy.tls.principal_mapping import NoMatchingRule, PrincipalMapper
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


def test_subject_and_validity_of_a_certificate(tmp_path):
    pair = Authority(tmp_path).issue("a", "CN=alice,OU=Billing,O=Example\\, Inc.,C=DE", days=2)
    found = first_of(pair.certificate.read_text())
    assert found.subject == "CN=alice,OU=Billing,O=Example\\, Inc.,C=DE"
    assert found.not_after == pytest.approx(time.time() + 2 * 86_400, abs=60)
    assert found.not_before < time.time()
    issued = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    assert int(found.serial, 16) == issued.serial_number


@pytest.mark.promise(
    "audit-event.md", "Serial numbers of client certificates are written as `openssl x509` writes them."
)
def test_a_serial_number_is_written_as_openssl_writes_it():
    for content, digits in [
        ("00", "00"),
        ("0102", "0102"),
        ("00fe", "FE"),
        ("0f", "0F"),
        ("ff", "-01"),
        ("", "00"),
        ("7f" * 20, "7F" * 20),
    ]:
        assert serial_of(bytes.fromhex(content)) == digits, (content, digits)


DUKE = "CN=Duke,OU=ServiceUsers,O=Org,C=DE"


@pytest.mark.promise(
    "tls.md", "The first of `ssl.principal.mapping.rules` whose pattern matches the whole subject counts."
)
def test_the_first_rule_that_matches_the_whole_subject_maps_it():
    for rules, expected in [
        ("DEFAULT", DUKE),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "Duke"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L", "duke"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1@$2/U", "DUKE@$2"),
        ("RULE:x/y/, RULE:^CN=(?<name>[^,]+).*/${name}/", "Duke"),
        ("RULE:.*/x/", "xx"),  # Java replaces the empty match at the end, too
    ]:
        assert PrincipalMapper(rules).map_name(DUKE) == expected, (rules, expected)
    with pytest.raises(NoMatchingRule):
        PrincipalMapper("RULE:CN=Duke/duke/").map_name(DUKE)


@pytest.mark.promise(
    "tls.md", "Mapping rules that Python reads in another way than Java are mistakes of the configuration."
)
def test_rules_that_a_broker_refuses_or_python_reads_otherwise_are_refused():
    for rules, message in [
        ("RULE:x", "is no rule"),
        ("DEFAULTS", "is no rule"),
        ("RULE:(/x/", "missing \\)|unterminated"),
        (r"RULE:\p{L}/x/", r"\\p at character 1 is not supported"),
        ("RULE:[a&&b]/x/", "classes in classes"),
        ("RULE:(?P<n>a)/x/", r"\(\?P at character 1 is not supported"),
        ("RULE:a(?s)b/x/", "flag s"),
        ("RULE:a{,3}/x/", r"\{,3 at character 2"),
        ("RULE:[]/x/", "this class"),
        ("RULE:CN=.*/$1/", "there is no group 1"),
        ("RULE:CN=(.*)/$/", r"a \$ has to name a group"),
        ("RULE:CN=(.*)/${n}/", "there is no group n"),
    ]:
        with pytest.raises(ValueError, match=message):
            PrincipalMapper(rules)


PAIR = {"ssl.certificate.location": "a.crt", "ssl.key.location": "a.key"}


class Site:
    def __init__(self, folder):
        self.folder = folder
        self.authority = Authority(folder)
        self.authority.issue("a")
        self.path = folder / "sidecar.yaml"

    def load(self, tls=None, protocol="SSL", **listener):
        """``tls``: keys beside or instead of those of the pair, None to leave one out."""
        one = {"name": "TLS", "bind": "127.0.0.1:1", "upstream": "127.0.0.1:2", "security.protocol": protocol}
        one["tls"] = {name: value for name, value in (PAIR | (tls or {})).items() if value is not None}
        return self.load_listener(one | {name.replace("_", "."): value for name, value in listener.items()})

    def load_listener(self, listener):
        self.path.write_text(yaml.safe_dump({"broker.id": 1, "listeners": [listener]}))
        return load(self.path, {})

    def problem(self, *arguments, **keywords):
        with pytest.raises(ConfigError) as refused:
            print(arguments, self.load(*arguments, **keywords))
        (problem,) = refused.value.problems
        return problem


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


@pytest.mark.promise("config/listeners.md", "A mistake in the keys of TLS is named without its secrets.")
def test_mistakes_are_named(site):
    for tls, expected in (
        ({"ssl.key.location": None}, "ssl.key.location: is missing"),
        ({"ssl.key.location": "b.key"}, "file 'b.key' cannot be read: No such file or directory"),
        ({"ssl.key.location": "."}, "file '.' cannot be read: Is a directory"),
        ({"ssl.client.auth": "required"}, "ssl.client.auth: required needs it"),
        ({"ssl.truststore.location": "ca.pem"}, "is given, and ssl.client.auth is none"),
        ({"ssl.client.auth": "yes"}, "'yes' is not known (allowed: none, requested or required)"),
        ({"ssl.key.password": "canary"}, "must not stand in the configuration"),
        ({"ssl.enabled.protocols": ["TLSv1.1"]}, "'TLSv1.1' is not known"),
        ({"ssl.enabled.protocols": []}, "is empty"),
        ({"ssl.cipher.suites": ["TLS_AES_128_GCM_SHA256"]}, "cannot be turned off alone"),
        ({"ssl.principal.mapping.rules": "RULE:a"}, "is no rule"),
        ({"ssl.keystore.location": "a.p12"}, "unknown key"),
    ):
        problem = site.problem(tls)
        assert expected in problem, tls
        assert problem.startswith("listeners[0].tls"), tls
        assert "canary" not in problem
    assert "security.protocol is PLAINTEXT" in site.problem(protocol="PLAINTEXT")
    problem = site.problem(upstream_tls={"ssl.certificate.location": "a.crt"})
    assert problem.startswith("listeners[0].upstream.tls.ssl.key.location: is missing")

    bare = {"name": "A", "bind": "127.0.0.1:1", "upstream": "127.0.0.1:2"}
    with pytest.raises(ConfigError, match="passes as bytes without tls"):
        site.load_listener({**bare, "security.protocol": "SSL", "upstream.tls": {}})
    config = site.load_listener({**bare, "upstream.tls": None})
    assert config.listeners[0].upstream_tls is not None, "an empty section is TLS with the system's CAs"


@pytest.mark.promise("tls.md", "Private keys are shown nowhere.")
def test_the_key_is_shown_nowhere_and_arrives_in_a_worker(site):
    config = site.load(upstream_tls=PAIR)

    assert "PRIVATE" not in str(redacted(config)) + repr(config)
    assert redacted(config)["listeners"][0]["tls"]["ssl.key.location"] == "a.key"
    assert unpack(pack(config)).listeners == config.listeners
