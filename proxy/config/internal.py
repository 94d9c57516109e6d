"""Which of librdkafka's settings under ``internal`` the sidecar supports where it reads the cluster's quotas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

SECURITY_PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

SUPPORTED_SETTINGS = {
    *("sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"),
    *("ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem"),
    *("ssl.key.location", "ssl.key.pem", "ssl.key.password", "ssl.endpoint.identification.algorithm"),
}
"""Supported settings that begin with ``sasl.`` or ``ssl.``. Others are refused: one may make a connection safer."""


class UnsupportedSetting(NamedTuple):
    """A setting with which the cluster's quotas cannot be read, and why."""

    name: str
    text: str

    def __str__(self) -> str:
        """Return the setting and why it is not supported."""
        return f"internal: {self.name} {self.text}"


def first_unsupported(settings: Mapping[str, object]) -> UnsupportedSetting | None:
    """Return the first of librdkafka's ``settings`` that keeps the cluster's quotas from being read; None if none does.

    Values may be secrets: no value is shown but that of a protocol or mechanism.
    """
    protocol = protocol_of(settings)
    if protocol not in SECURITY_PROTOCOLS:
        return UnsupportedSetting(
            "security.protocol", f"{protocol!r} is not known (allowed: {', '.join(SECURITY_PROTOCOLS)})"
        )
    with_tls, with_sasl = protocol.endswith("ssl"), protocol.startswith("sasl")
    for prefix, wanted in (("ssl.", with_tls), ("sasl.", with_sasl)):
        for name in sorted(settings):
            if wanted and name.startswith(prefix) and name not in SUPPORTED_SETTINGS:
                return UnsupportedSetting(name, "is not supported for reading the cluster's quotas")
    if not with_sasl:
        return None
    mechanism = mechanism_of(settings)
    if mechanism not in SASL_MECHANISMS:
        allowed = ", ".join(SASL_MECHANISMS)
        text = f"{mechanism} is not supported for reading the cluster's quotas (allowed: {allowed})"
        return UnsupportedSetting("sasl.mechanism", text)
    for name in ("sasl.username", "sasl.password"):
        if not settings.get(name):
            return UnsupportedSetting(name, f"is missing, and sasl.mechanism {mechanism} needs it")
    return None


def protocol_of(settings: Mapping[str, object]) -> str:
    """Return the security protocol, in lower case."""
    return str(settings.get("security.protocol", "plaintext")).lower()


def mechanism_of(settings: Mapping[str, object]) -> str:
    """Return the SASL mechanism, in upper case, whether SASL is used or not."""
    return str(settings.get("sasl.mechanisms", settings.get("sasl.mechanism", "GSSAPI"))).upper()
