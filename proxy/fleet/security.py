"""How to reach the INTERNAL listeners: librdkafka's security settings, for a connection that is not librdkafka's."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from proxy.config.internal import first_unsupported, mechanism_of, protocol_of
from proxy.errors import LocalError

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True)
class Security:
    """Read from settings. ``tls``: the ``ssl.`` settings, None without TLS. ``mechanism``: None without SASL."""

    tls: Mapping[str, str] | None = field(default=None, repr=False)
    verify: bool = True
    mechanism: str | None = None
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> Security:
        """Read librdkafka's settings. Raises LocalError naming the setting that cannot be had."""
        found = first_unsupported(settings)
        if found is not None:
            raise LocalError(str(found))
        protocol = protocol_of(settings)
        tls = {name: value for name, value in settings.items() if name.startswith("ssl.")}
        verify = settings.get("enable.ssl.certificate.verification", "true").lower() not in ("false", "0", "f")
        security = cls(tls if protocol.endswith("ssl") else None, verify)
        if not protocol.startswith("sasl"):
            return security
        user, password = settings["sasl.username"], settings["sasl.password"]
        return replace(security, mechanism=mechanism_of(settings), user=user, password=password)

    def build_ssl_context(self) -> ssl.SSLContext | None:
        """Return what TLS needs, None without it. Reads files: not for the loop. Raises LocalError."""
        if self.tls is None:
            return None
        import ssl  # 3 MB, of a consumer that may not need it

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
