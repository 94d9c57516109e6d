"""The keys of TLS of a listener: towards clients (``tls``) and towards the broker (``upstream.tls``)."""

from __future__ import annotations

from typing import Any

from proxy.config.key_definition import ConfigSection, key
from proxy.config.types import (
    CipherSuites,
    HostName,
    IdentificationAlgorithm,
    MappingRules,
    PemFile,
    SecretText,
    TlsVersions,
)
from proxy.config.values import Secret
from proxy.tls.principal_mapping import DEFAULT_RULES
from proxy.tls.tls_settings import VERSIONS, ClientAuth, ClientTls, KeyPair, ServerTls

PEM = "the path of a file in PEM; a relative one is relative to the configuration's folder"


def _file(name: str, meaning: str, example: str, **rest: Any) -> Any:
    return key(name, meaning, kind="text", allowed=PEM, reload=True, example=example, **rest)


def _password(example: str) -> Any:
    return key(
        "ssl.key.password",
        "Password of `ssl.key.location`, where that is encrypted.",
        kind="mapping",
        allowed="{file: PATH}",
        default=None,
        reload=True,
        example=example,
    )


def _versions() -> Any:
    return key(
        "ssl.enabled.protocols",
        "Versions of TLS.",
        kind="list of text",
        allowed="TLSv1.2 and TLSv1.3",
        default=VERSIONS,
        reload=True,
        example="[TLSv1.2, TLSv1.3]",
    )


def _cipher_suites(example: str) -> Any:
    return key(
        "ssl.cipher.suites",
        "Cipher suites by Kafka's names, the best first. Without any: OpenSSL's choice. A version of TLS without a "
        "suite in the list is off.",
        kind="list of text",
        allowed="names of docs/tls.md; of TLS 1.3 all three or none",
        default=(),
        reload=True,
        example=example,
    )


class TlsConfig(ConfigSection):
    """TLS that is terminated: towards clients."""

    ssl_certificate_location: PemFile = _file(
        "ssl.certificate.location",
        "The certificate that clients see, followed by its intermediate ones.",
        "tls/kafka-1.crt",
    )
    ssl_key_location: PemFile = _file("ssl.key.location", "The key of that certificate.", "tls/kafka-1.key")
    ssl_key_password: SecretText | None = _password("{file: tls/kafka-1.password}")
    ssl_truststore_location: PemFile | None = _file(
        "ssl.truststore.location",
        "Certificates of the CAs whose client certificates are accepted. Needed where `ssl.client.auth` asks for one.",
        "tls/clients-ca.pem",
        default=None,
    )
    ssl_client_auth: ClientAuth = key(
        "ssl.client.auth",
        "Whether clients are asked for a certificate. With `requested`, one without is `User:ANONYMOUS`.",
        kind="text",
        allowed="none, requested or required",
        default="none",
        reload=True,
        example="required",
    )
    ssl_enabled_protocols: TlsVersions = _versions()
    ssl_cipher_suites: CipherSuites = _cipher_suites("[]")
    ssl_principal_mapping_rules: MappingRules = key(
        "ssl.principal.mapping.rules",
        "From the subject of a client's certificate to its principal, as the broker's key of the same name "
        "(docs/tls.md). Only with `security.protocol: SSL`.",
        kind="text",
        allowed="RULE:pattern/replacement/, RULE:pattern/replacement/L or /U, and DEFAULT, separated by commas",
        default=DEFAULT_RULES,
        reload=True,
        example='"RULE:^CN=([^,]+),.*$/$1/L, DEFAULT"',
    )

    def settings(self) -> ServerTls:
        """Return what a context is made of."""
        return ServerTls(
            _pair(self.ssl_certificate_location, self.ssl_key_location, self.ssl_key_password),
            self.ssl_client_auth,
            _text(self.ssl_truststore_location),
            self.ssl_enabled_protocols,
            self.ssl_cipher_suites,
        )


class UpstreamTlsConfig(ConfigSection):
    """TLS that is originated: towards the broker."""

    ssl_truststore_location: PemFile | None = _file(
        "ssl.truststore.location",
        "Certificates of the CAs that the broker's certificate may come from. Without it those of the system.",
        "tls/ca.pem",
        default=None,
    )
    ssl_endpoint_identification_algorithm: IdentificationAlgorithm = key(
        "ssl.endpoint.identification.algorithm",
        "Whether the broker's certificate has to be of `ssl.server.name` (`https`), or may be of any name (empty).",
        kind="text",
        allowed='https or ""',
        default="https",
        reload=True,
    )
    ssl_server_name: HostName | None = key(
        "ssl.server.name",
        "The name in the broker's certificate, which is also sent as SNI.",
        kind="text",
        allowed="a host name or an IP address",
        default=None,
        reload=True,
        example="kafka-1.example",
        shown_default="the host of `upstream`",
    )
    ssl_certificate_location: PemFile | None = _file(
        "ssl.certificate.location",
        "The sidecar's own certificate, for a broker that asks for one.",
        "tls/sidecar.crt",
        default=None,
    )
    ssl_key_location: PemFile | None = _file(
        "ssl.key.location", "The key of that certificate.", "tls/sidecar.key", default=None
    )
    ssl_key_password: SecretText | None = _password("{file: tls/sidecar.password}")
    ssl_enabled_protocols: TlsVersions = _versions()
    ssl_cipher_suites: CipherSuites = _cipher_suites("[]")

    def settings(self, host: str) -> ClientTls:
        """Return what a context is made of. ``host``: of the broker."""
        certificate, private = self.ssl_certificate_location, self.ssl_key_location
        return ClientTls(
            self.ssl_server_name or host,
            bool(self.ssl_endpoint_identification_algorithm),
            None if certificate is None or private is None else _pair(certificate, private, self.ssl_key_password),
            _text(self.ssl_truststore_location),
            self.ssl_enabled_protocols,
            self.ssl_cipher_suites,
        )


def _pair(certificate: Secret, private: Secret, password: Secret | None) -> KeyPair:
    return KeyPair(certificate.reveal(), private.reveal(), _text(password))


def _text(secret: Secret | None) -> str | None:
    return None if secret is None else secret.reveal()
