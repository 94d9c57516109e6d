"""What is known of a client before it has sent a request."""

from __future__ import annotations

from msgspec.structs import replace

from proxy.config import Listener
from proxy.core.exchange import Connection, PrincipalSource
from proxy.core.names import clip
from proxy.core.principal_tracker import MAX_PRINCIPAL
from proxy.errors import PeerError
from proxy.net.tls_stream import TlsStream
from proxy.tls import certificates
from proxy.tls.cipher_suites import kafka_name
from proxy.tls.principal_mapping import NoMatchingRule, PrincipalMapper

ANONYMOUS = "User:ANONYMOUS"

MAX_SERIAL = 40
"""Hexadecimal digits of a serial number that are kept: 20 octets, the most that RFC 5280 allows (section 4.1.2.2)."""


def initial_principal(listener: Listener) -> tuple[str, PrincipalSource]:
    """Return the principal of a client before it has authenticated, and how that principal is known."""
    if not listener.is_readable:
        return f"User:<unknown:{listener.security_protocol}>", "unknown"
    asks_certificate = listener.tls is not None and listener.tls.ssl_client_auth != "none"
    return ANONYMOUS, "unauthenticated" if listener.has_sasl or asks_certificate else "anonymous"


def identified(
    connection: Connection, listener: Listener, stream: TlsStream, mapper: PrincipalMapper
) -> tuple[Connection, PeerError | None]:
    """Return ``connection`` with what its TLS handshake has shown; and the error with the reason ``tls_failed`` where
    its certificate gives no principal, else None.

    With SASL a client is who it logs in as, whatever its certificate says, as in Kafka. A certificate that cannot be
    read has no serial number.
    """
    shown = replace(connection, tls_version=stream.version, tls_cipher=kafka_name(stream.cipher))
    der = stream.peer_certificate
    if der is None:
        return shown if listener.has_sasl else replace(shown, principal_source="anonymous"), None
    try:
        certificate = certificates.decode(der)
        shown = replace(shown, tls_client_serial=certificate.serial[:MAX_SERIAL])
        if listener.has_sasl:
            return shown, None
        name = mapper.map_name(certificate.subject)
    except (NoMatchingRule, ValueError) as error:
        if listener.has_sasl:
            return shown, None
        return shown, PeerError("client", "tls_failed", f"its certificate gives no principal: {error}")
    if len(name) > MAX_PRINCIPAL:  # each connection keeps it, and a certificate has room for 100 KB
        name = clip(name)
    return replace(shown, principal=f"User:{name}", principal_source="mtls"), None
