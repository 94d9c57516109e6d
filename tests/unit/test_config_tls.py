"""The keys of TLS: mistakes, files, and what a reload makes of them."""

from __future__ import annotations

import pytest
import yaml

from proxy.config import load, redacted
from proxy.config.serialization import pack, unpack
from proxy.errors import ConfigError
from tests.tools.authority import Authority

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
