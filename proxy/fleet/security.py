"""How to reach the INTERNAL listeners: librdkafka's security settings, for a connection that is not librdkafka's."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from proxy.errors import LocalError
from proxy.fleet.scram import HASHES

PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
MECHANISMS = ("PLAIN", *HASHES)

READ = {
    *("sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"),
    *("ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem"),
    *("ssl.key.location", "ssl.key.pem", "ssl.key.password", "ssl.endpoint.identification.algorithm"),
}
"""What is heeded here of ``sasl.`` and ``ssl.``; any other could make a connection safer, so none is passed over."""


@dataclass(frozen=True)
class Security:
    """Read from settings. ``tls``: the ``ssl.`` settings, None without TLS. ``mechanism``: None without SASL."""

    tls: Mapping[str, str] | None = field(default=None, repr=False)
    verify: bool = True
    mechanism: str | None = None
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Security:
        """Read librdkafka's settings. Raises LocalError naming the setting that cannot be had."""
        protocol = settings.get("security.protocol", "plaintext").lower()
        if protocol not in PROTOCOLS:
            raise LocalError(f"internal: security.protocol {protocol!r} is not known (allowed: {', '.join(PROTOCOLS)})")
        with_tls, with_sasl = protocol.endswith("ssl"), protocol.startswith("sasl")
        for prefix, wanted in (("ssl.", with_tls), ("sasl.", with_sasl)):
            for name in sorted(settings):
                if wanted and name.startswith(prefix) and name not in READ:
                    raise LocalError(f"internal: {name} is not supported for reading the cluster's quotas")
        tls = {name: value for name, value in settings.items() if name.startswith("ssl.")} if with_tls else None
        verify = settings.get("enable.ssl.certificate.verification", "true").lower() not in ("false", "0", "f")
        if not with_sasl:
            return cls(tls, verify)
        mechanism = settings.get("sasl.mechanisms", settings.get("sasl.mechanism", "GSSAPI")).upper()
        if mechanism not in MECHANISMS:
            raise LocalError(
                f"internal: sasl.mechanism {mechanism} is not supported for reading the cluster's quotas "
                f"(allowed: {', '.join(MECHANISMS)})"
            )
        for name in ("sasl.username", "sasl.password"):
            if not settings.get(name):
                raise LocalError(f"internal: {name} is missing, and sasl.mechanism {mechanism} needs it")
        return cls(tls, verify, mechanism, settings["sasl.username"], settings["sasl.password"])

    def context(self) -> ssl.SSLContext | None:
        """Return what TLS needs, None without it. Reads files: not for the loop. Raises LocalError."""
        if self.tls is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        algorithm = self.tls.get("ssl.endpoint.identification.algorithm", "https").lower()
        context.check_hostname = self.verify and algorithm != "none"
        context.verify_mode = ssl.CERT_REQUIRED if self.verify else ssl.CERT_NONE
        with _naming("ssl.ca.location"):
            self._trust(context)
        with _naming("ssl.certificate.location"):
            self._identify(context)
        return context

    def _trust(self, context: ssl.SSLContext) -> None:
        assert self.tls is not None
        location, pem = self.tls.get("ssl.ca.location", "probe"), self.tls.get("ssl.ca.pem")
        if pem:
            context.load_verify_locations(cadata=pem)
        elif location == "probe":
            context.load_default_certs()
        elif Path(location).is_dir():
            context.load_verify_locations(capath=location)
        else:
            context.load_verify_locations(cafile=location)

    def _identify(self, context: ssl.SSLContext) -> None:
        assert self.tls is not None
        with self._file("certificate") as certificate, self._file("key") as key:
            if certificate:
                # A text, never None: without one, OpenSSL would ask a terminal for the key's password.
                context.load_cert_chain(certificate, key, self.tls.get("ssl.key.password", ""))

    @contextmanager
    def _file(self, what: str) -> Iterator[str | None]:
        """Path of a certificate or key; one that is a setting's value itself is only ever in memory."""
        assert self.tls is not None
        pem = self.tls.get(f"ssl.{what}.pem")
        if not pem:
            yield self.tls.get(f"ssl.{what}.location")
            return
        memory = os.memfd_create(f"ssl.{what}.pem")
        try:
            os.write(memory, pem.encode())
            yield f"/proc/self/fd/{memory}"
        finally:
            os.close(memory)


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Say which setting a file belongs to that cannot be used, and not what is in it."""
    try:
        yield
    except (OSError, ValueError) as error:
        what = getattr(error, "reason", None) or getattr(error, "strerror", None) or "cannot be used"
        raise LocalError(f"internal: {name}: {what}") from None
