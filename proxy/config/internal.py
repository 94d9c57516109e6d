"""Which of librdkafka's settings under ``internal`` are heeded where the sidecar reads the cluster's quotas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

HEEDED = {
    *("sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"),
    *("ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem"),
    *("ssl.key.location", "ssl.key.pem", "ssl.key.password", "ssl.endpoint.identification.algorithm"),
}
"""What is heeded of ``sasl.`` and ``ssl.``; any other could make a connection safer, so none is passed over."""


class Unheeded(NamedTuple):
    """A setting with which the cluster's quotas cannot be read, and why."""

    name: str
    text: str

    def __str__(self) -> str:
        """Return both, as a message names a setting."""
        return f"internal: {self.name} {self.text}"


def unheeded(settings: Mapping[str, object]) -> Unheeded | None:
    """Return the first of librdkafka's ``settings`` that keeps the cluster's quotas from being read; None if none does.

    Values may be secrets: no value is shown but that of a protocol or mechanism.
    """
    protocol = protocol_of(settings)
    if protocol not in PROTOCOLS:
        return Unheeded("security.protocol", f"{protocol!r} is not known (allowed: {', '.join(PROTOCOLS)})")
    with_tls, with_sasl = protocol.endswith("ssl"), protocol.startswith("sasl")
    for prefix, wanted in (("ssl.", with_tls), ("sasl.", with_sasl)):
        for name in sorted(settings):
            if wanted and name.startswith(prefix) and name not in HEEDED:
                return Unheeded(name, "is not supported for reading the cluster's quotas")
    if not with_sasl:
        return None
    mechanism = mechanism_of(settings)
    if mechanism not in MECHANISMS:
        allowed = ", ".join(MECHANISMS)
        text = f"{mechanism} is not supported for reading the cluster's quotas (allowed: {allowed})"
        return Unheeded("sasl.mechanism", text)
    for name in ("sasl.username", "sasl.password"):
        if not settings.get(name):
            return Unheeded(name, f"is missing, and sasl.mechanism {mechanism} needs it")
    return None


def protocol_of(settings: Mapping[str, object]) -> str:
    """Return the security protocol, in lower case."""
    return str(settings.get("security.protocol", "plaintext")).lower()


def mechanism_of(settings: Mapping[str, object]) -> str:
    """Return the SASL mechanism, in upper case, whether SASL is used or not."""
    return str(settings.get("sasl.mechanisms", settings.get("sasl.mechanism", "GSSAPI"))).upper()
