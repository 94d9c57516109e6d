"""Makes the ``ssl.SSLContext`` of one side of a listener, or says why there can be none.

It opens files in memory, and the system's CAs where no others are given: not for the event loop's thread.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from proxy.tls import certificates, cipher_suites
from proxy.tls.tls_settings import VERSIONS, ClientTls, KeyPair, ServerTls, TlsVersion

CERTIFICATE, KEY, PASSWORD = "ssl.certificate.location", "ssl.key.location", "ssl.key.password"
TRUSTSTORE, CIPHER_SUITES = "ssl.truststore.location", "ssl.cipher.suites"

_VERIFY_MODES = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class TlsSettingError(ValueError):
    """A setting with which there can be no TLS. ``key``: its name. The text shows nothing of a key or a password."""

    def __init__(self, key: str, text: str) -> None:
        self.key = key
        super().__init__(text)


def build_server_context(settings: ServerTls) -> ssl.SSLContext:
    """Return the context of connections from clients. Raises TlsSettingError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _choose(context, settings.versions, settings.cipher_suites)
    _load_pair(context, settings.pair)
    if settings.truststore is not None:
        _load_truststore(context, settings.truststore)
    context.verify_mode = _VERIFY_MODES[settings.client_auth]
    context.num_tickets = 1  # clients keep one session; each ticket costs a handshake 15 µs
    return context


def build_client_context(settings: ClientTls) -> ssl.SSLContext:
    """Return the context of connections to the broker. Raises TlsSettingError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _choose(context, settings.versions, settings.cipher_suites)
    context.check_hostname = settings.verify_name
    if settings.pair is not None:
        _load_pair(context, settings.pair)
    if settings.truststore is not None:
        _load_truststore(context, settings.truststore)
    else:
        context.load_default_certs()
    return context


def _choose(context: ssl.SSLContext, versions: Sequence[TlsVersion], suites: Sequence[str]) -> None:
    """Set versions and cipher suites. A version without a suite is off."""
    context.options |= ssl.OP_NO_RENEGOTIATION
    on = [version for version in VERSIONS if version in versions]
    if suites:
        with_1_3 = set(cipher_suites.TLS_1_3) <= set(suites)
        names = cipher_suites.openssl_names(suites)
        on = [version for version in on if (with_1_3 if version == "TLSv1.3" else names)]
        if not on:
            raise TlsSettingError(CIPHER_SUITES, f"has no suite of {', '.join(versions)}")
        if names:
            try:
                context.set_ciphers(names)
            except ssl.SSLError:
                raise TlsSettingError(CIPHER_SUITES, "has no suite of TLS 1.2 that OpenSSL has here") from None
    context.minimum_version, context.maximum_version = _VERSIONS[on[0]], _VERSIONS[on[-1]]


def _load_pair(context: ssl.SSLContext, pair: KeyPair) -> None:
    try:
        certificates.first_of(pair.certificate)
    except ValueError as error:
        raise TlsSettingError(CERTIFICATE, str(error)) from None
    if "PRIVATE KEY-----" not in pair.key:
        raise TlsSettingError(KEY, "holds no private key")
    if "ENCRYPTED" in pair.key and not pair.password:
        raise TlsSettingError(KEY, f"is encrypted, and {PASSWORD} is missing")
    with _in_memory(pair.certificate) as certificate, _in_memory(pair.key) as key:
        try:
            # A text, never None: without one, OpenSSL would ask a terminal for the password.
            context.load_cert_chain(certificate, key, pair.password or "")
        except (ssl.SSLError, OSError, ValueError) as error:
            raise _explained(error, pair) from None


def _explained(error: Exception, pair: KeyPair) -> TlsSettingError:
    reason = getattr(error, "reason", None)
    if reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"):
        return TlsSettingError(KEY, f"is not the key of {CERTIFICATE}")
    if "ENCRYPTED" in pair.key:
        return TlsSettingError(PASSWORD, f"does not decrypt {KEY}, or that is damaged")
    if reason in ("EE_KEY_TOO_SMALL", "CA_KEY_TOO_SMALL", "CA_MD_TOO_WEAK"):
        return TlsSettingError(CERTIFICATE, f"is too weak for OpenSSL ({reason})")
    return TlsSettingError(KEY, f"cannot be used with {CERTIFICATE}: {reason or type(error).__name__}")


def _load_truststore(context: ssl.SSLContext, pem: str) -> None:
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as in Java, each certificate of it is trusted
    try:
        context.load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError):
        raise TlsSettingError(TRUSTSTORE, "holds no certificates in PEM") from None


@contextmanager
def _in_memory(text: str) -> Iterator[str]:
    """Give the path of a file that has ``text`` and is in memory only."""
    memory = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        with open(memory, "w", closefd=False) as file:
            file.write(text)
        yield f"/proc/self/fd/{memory}"
    finally:
        os.close(memory)
