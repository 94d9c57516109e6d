"""A certificate authority of a test's own, and what it signs; nothing of it is ever kept."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = datetime.timedelta(days=1)


class Pair(NamedTuple):
    """Files in PEM."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates, whose files it puts into ``folder``. ``ca``: its own certificate."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.ca = folder / f"{name}.pem"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(self._name, self._name, self._key, 0.0, 30.0)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.ca.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))

    def issue(
        self,
        file: str,
        subject: str = "CN=localhost",
        *,
        names: Sequence[str] = ("localhost", "127.0.0.1"),
        days: float = 30.0,
        since_days: float = 1.0,
        password: str | None = None,
        use_rsa: bool = False,
    ) -> Pair:
        """A certificate of ``subject`` (RFC 4514), valid from ``since_days`` ago for ``days`` from now, and its key.

        The same ``file`` again replaces both.
        """
        key: Any = rsa.generate_private_key(65537, 2048) if use_rsa else ec.generate_private_key(ec.SECP256R1())
        builder = _builder(x509.Name.from_rfc4514_string(subject), self._name, key, since_days, days)
        general = [_general(name) for name in names]
        builder = builder.add_extension(x509.SubjectAlternativeName(general), critical=False)
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        pair = Pair(self.folder / f"{file}.crt", self.folder / f"{file}.key")
        encryption: Any = serialization.NoEncryption()
        if password is not None:
            encryption = serialization.BestAvailableEncryption(password.encode())
        pair.key.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        )
        pair.certificate.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        return pair


def _builder(subject: x509.Name, issuer: x509.Name, key: Any, since_days: float, days: float) -> Any:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - since_days * DAY - DAY / 24)
        .not_valid_after(now + days * DAY)
    )


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
