"""What the keys of one side of a listener say, with the texts of the files that they name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

ClientAuth = Literal["none", "requested", "required"]
TlsVersion = Literal["TLSv1.2", "TLSv1.3"]

VERSIONS: tuple[TlsVersion, ...] = ("TLSv1.2", "TLSv1.3")


@dataclass(frozen=True)
class KeyPair:
    """A certificate with its chain, and its key; both in PEM."""

    certificate: str
    key: str = field(repr=False)
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class ServerTls:
    """TLS that is terminated: towards clients. ``truststore``: the CAs of clients' certificates, in PEM."""

    pair: KeyPair
    client_auth: ClientAuth = "none"
    truststore: str | None = None
    versions: tuple[TlsVersion, ...] = VERSIONS
    cipher_suites: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClientTls:
    """TLS that is originated: towards the broker. ``truststore``: the broker's CAs in PEM, None for the system's.

    ``server_name``: the name that the broker's certificate has to have, and that is sent as SNI.
    """

    server_name: str
    verify_name: bool = True
    pair: KeyPair | None = None
    truststore: str | None = None
    versions: tuple[TlsVersion, ...] = VERSIONS
    cipher_suites: tuple[str, ...] = ()
